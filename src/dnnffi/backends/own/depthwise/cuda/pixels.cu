/* The kernel for channels last of one problem: sizes of images are constants. pixels.cuh has it. */

#include "pixels.cuh"

namespace dnnffi {

extern "C" __global__ void __launch_bounds__(Config::BLOCK)
    depthwise(const __grid_constant__ DepthwiseParams params)
{
    convolve_pixels(params.x, params.w, params.bias, params.residual, params.y, params.alpha, Config());
}

} // namespace dnnffi
