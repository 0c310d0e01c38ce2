/* The kernel for channels last of a layer: sizes of images are arguments. pixels.cuh has it. */

#include "pixels.cuh"

namespace dnnffi {

extern "C" __global__ void __launch_bounds__(Config::BLOCK)
    depthwise(const Element *__restrict__ x, const Element *__restrict__ w, const Element *__restrict__ bias,
              const Element *__restrict__ residual, Element *__restrict__ y, double alpha, long long COUNT,
              long long TURNS, long long INPUTS_Y, long long OUTPUTS_Y, long long TILES_Y, long long INPUTS_X,
              long long OUTPUTS_X, long long TILES_X)
{
    const PixelSizes sizes{(int)COUNT,   (int)TURNS,    (int)INPUTS_Y,  (int)OUTPUTS_Y,
                           (int)TILES_Y, (int)INPUTS_X, (int)OUTPUTS_X, (int)TILES_X};
    convolve_pixels(x, w, bias, residual, y, alpha, sizes);
}

} // namespace dnnffi
