/* The end of a backward pass on ragged rows: sum the gradients of the biases, and copy dx to the caller's
   padded array. Neither reads what the other writes; one launch for both costs the host less than two. */

#include "bias_gradients.cuh"
#include "ragged_rows.cuh"

namespace dnnffi {

struct BackwardEnd
{
    BiasGradientsParams biases;
    PaddedCopy dx;
};

/* Grid: the blocks of the biases, then those of dx, a warp for one row of one step, or fewer. */
extern "C" __global__ void finish_backward(const __grid_constant__ BackwardEnd end)
{
    extern __shared__ __align__(16) unsigned char memory[];
    const u32 bias_blocks = end.biases.blocks();
    if (blockIdx.x < bias_blocks) {
        end.biases.add_up(blockIdx.x, (float *)memory);
        return;
    }
    const PaddedCopy &dx = end.dx;
    const u32 block = blockIdx.x - bias_blocks, blocks = gridDim.x - bias_blocks;
    const unsigned long long alignment =
        (unsigned long long)dx.source | (unsigned long long)dx.padded | dx.row_bytes;
    if (alignment % sizeof(uint4) == 0) dx.copy<uint4>(block, blocks);
    else dx.copy<Element>(block, blocks);
}

} // namespace dnnffi
