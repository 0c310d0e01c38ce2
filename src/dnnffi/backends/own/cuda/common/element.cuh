#pragma once
/* The elements of a kernel's arrays, whose dtype is `Config::DTYPE`, and the numbers that it computes in. */

#include "kernel_config.cuh"
#include "ptx_numbers.cuh"

namespace dnnffi {

constexpr Dtype DTYPE = Config::DTYPE;

using Element = Storage<DTYPE>::Type;
using Real = Conversion<DTYPE>::Real;

DEVICE Real real(Element stored) { return Conversion<DTYPE>::real(stored); }

DEVICE Element rounded(Real value) { return Conversion<DTYPE>::rounded(value); }

} // namespace dnnffi
