/* The kernel for channels first of a layer: a launch passes the sizes of images. planes.cuh has it. */

#include "planes.cuh"

namespace dnnffi {

struct PlanesOfAllSizesParams
{
    DepthwiseParams arrays;
    /* The sizes of PlaneSizes, in its order. */
    long long COUNT;
    long long BAND;
    long long BLOCK;
    long long READS;
    long long ACROSS;
    long long ROWS;
    long long FROM;
    long long LEAD;
    long long STEP;
    long long LEFT;
    long long PITCH;
    long long CELLS;
    long long INPUTS_Y;
    long long OUTPUTS_Y;
    long long TILES_Y;
    long long INPUTS_X;
    long long OUTPUTS_X;
    long long TILES_X;
};

extern "C" __global__ void __launch_bounds__(Config::MAX_BLOCK)
    depthwise(const __grid_constant__ PlanesOfAllSizesParams params)
{
    const DepthwiseParams &arrays = params.arrays;
    const PlaneSizes sizes{(int)params.COUNT,    (int)params.BAND,      (int)params.BLOCK,
                           (int)params.READS,    (int)params.ACROSS,    (int)params.ROWS,
                           (int)params.FROM,     (int)params.LEAD,      (int)params.STEP,
                           (int)params.LEFT,     (int)params.PITCH,     (int)params.CELLS,
                           (int)params.INPUTS_Y, (int)params.OUTPUTS_Y, (int)params.TILES_Y,
                           (int)params.INPUTS_X, (int)params.OUTPUTS_X, (int)params.TILES_X};
    convolve_planes(arrays.x, arrays.w, arrays.bias, arrays.residual, arrays.y, arrays.alpha, sizes);
}

} // namespace dnnffi
