#pragma once
/* The end of the convolution of a forward pass: BIAS and RESIDUAL are added, and RELU is applied. */

#include "basics.cuh"
#include "kernel_config.cuh"

namespace dnnffi {

constexpr bool BIAS = Config::BIAS, RESIDUAL = Config::RESIDUAL;

/* NaN stays. */
DEVICE float activated(float value) { return Config::RELU && value < 0 ? 0 : value; }

} // namespace dnnffi
