/* The kernel for channels first of one problem: sizes of images are constants. planes.cuh has it. */

#include "planes.cuh"

namespace dnnffi {

extern "C" __global__ void __launch_bounds__(Config::MAX_BLOCK)
    depthwise(const __grid_constant__ DepthwiseParams params)
{
    convolve_planes(params.x, params.w, params.bias, params.residual, params.y, params.alpha, Config());
}

} // namespace dnnffi
