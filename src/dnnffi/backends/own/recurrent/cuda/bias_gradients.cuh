#pragma once
/* Sum the gradients of the biases of all layers. The backward kernels leave sums over some rows, `parts`
   for each direction; here they are added up, always in the same order, so that every run gives the same
   bits. Many parts are shared by several warps. One kernel is for all cells and sizes. */

#include "ptx_convert.cuh"

namespace dnnffi {

struct BiasGradientsParams
{
    const float *sums;    /* [directions, parts, columns, padded] of the first layer */
    Element *d_input;     /* [gates, hidden] of the first layer and direction, of the input biases */
    Element *d_recurrent; /* the same of the recurrent biases */
    long long layers, directions, parts;
    long long shares;  /* warps of a block that have the same units, and share their parts */
    long long columns; /* `gates`, or of a GRU one more: 2 is n's product of x, 3 its product of h */
    long long gates, hidden, padded;
    long long layer_sums; /* floats from the sums of a layer to those of the next */
    /* Elements from the gradients of a layer, and of a direction, to those of the next. */
    long long layer_stride, direction_stride;
    long long accumulate; /* whether to add to the gradients that are there */

    /* Units of a block, one for each lane of a warp. */
    DEVICE u32 block_units() const { return blockDim.x / (u32)shares; }

    /* Blocks of all units of a column. */
    DEVICE u32 unit_blocks() const { return ((u32)hidden + block_units() - 1) / block_units(); }

    DEVICE u32 blocks() const { return layers * directions * columns * unit_blocks(); }

    /* The part of a block: units of a column of a direction of a layer. `shared` has a float for each thread. */
    DEVICE void add_up(u32 block, float *shared) const
    {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, share = warp % (u32)shares;
        const u32 of_columns = block / unit_blocks(), of_directions = of_columns / (u32)columns;
        const long long unit = block % unit_blocks() * block_units() + warp / (u32)shares * 32 + lane;
        const long long column = of_columns % (u32)columns;
        const long long direction = of_directions % (u32)directions;
        const long long layer = of_directions / (u32)directions;
        const long long step = columns * padded;
        const float *from = sums + layer * layer_sums + direction * parts * step + column * padded + unit;
        float sum = 0;
        if (unit < hidden) {
#pragma unroll 4
            for (long long part = share; part < parts; part += shares) sum += from[part * step];
        }
        shared[threadIdx.x] = sum;
        __syncthreads();
        if (share > 0 || unit >= hidden) return;
        for (u32 other = 1; other < (u32)shares; other++) sum += shared[threadIdx.x + other * 32];
        const bool only_recurrent = column == gates, only_input = gates < columns && column == 2;
        const long long gate = only_recurrent ? 2 : column;
        const long long at = layer * layer_stride + direction * direction_stride + gate * hidden + unit;
        if (!only_recurrent) d_input[at] = rounded(sum + (accumulate ? real(d_input[at]) : 0.0f));
        if (!only_input) d_recurrent[at] = rounded(sum + (accumulate ? real(d_recurrent[at]) : 0.0f));
    }
};

} // namespace dnnffi
