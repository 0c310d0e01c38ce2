/* The kernel for channels first of a layer: sizes of images are arguments. planes.cuh has it. */

#include "planes.cuh"

namespace dnnffi {

extern "C" __global__ void __launch_bounds__(Config::MAX_BLOCK)
    depthwise(const Element *__restrict__ x, const Element *__restrict__ w, const Element *__restrict__ bias,
              const Element *__restrict__ residual, Element *__restrict__ y, double alpha, long long COUNT,
              long long BAND, long long BLOCK, long long READS, long long ACROSS, long long ROWS,
              long long FROM, long long LEAD, long long STEP, long long LEFT, long long PITCH,
              long long CELLS, long long INPUTS_Y, long long OUTPUTS_Y, long long TILES_Y, long long INPUTS_X,
              long long OUTPUTS_X, long long TILES_X)
{
    const PlaneSizes sizes{(int)COUNT,    (int)BAND,      (int)BLOCK,    (int)READS,     (int)ACROSS,
                           (int)ROWS,     (int)FROM,      (int)LEAD,     (int)STEP,      (int)LEFT,
                           (int)PITCH,    (int)CELLS,     (int)INPUTS_Y, (int)OUTPUTS_Y, (int)TILES_Y,
                           (int)INPUTS_X, (int)OUTPUTS_X, (int)TILES_X};
    convolve_planes(x, w, bias, residual, y, alpha, sizes);
}

} // namespace dnnffi
