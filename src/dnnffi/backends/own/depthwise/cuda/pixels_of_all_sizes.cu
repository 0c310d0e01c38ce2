/* The kernel for channels last of a layer: a launch passes the sizes of images. pixels.cuh has it. */

#include "pixels.cuh"

namespace dnnffi {

struct PixelsOfAllSizesParams
{
    DepthwiseParams arrays;
    /* The sizes of PixelSizes, in its order. */
    long long COUNT;
    long long TURNS;
    long long INPUTS_Y;
    long long OUTPUTS_Y;
    long long TILES_Y;
    long long INPUTS_X;
    long long OUTPUTS_X;
    long long TILES_X;
};

extern "C" __global__ void __launch_bounds__(Config::BLOCK)
    depthwise(const __grid_constant__ PixelsOfAllSizesParams params)
{
    const DepthwiseParams &arrays = params.arrays;
    const PixelSizes sizes{(int)params.COUNT,     (int)params.TURNS,   (int)params.INPUTS_Y,
                           (int)params.OUTPUTS_Y, (int)params.TILES_Y, (int)params.INPUTS_X,
                           (int)params.OUTPUTS_X, (int)params.TILES_X};
    convolve_pixels(arrays.x, arrays.w, arrays.bias, arrays.residual, arrays.y, arrays.alpha, sizes);
}

} // namespace dnnffi
