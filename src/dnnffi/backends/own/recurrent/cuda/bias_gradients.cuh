#pragma once
/* Sum the gradients of the biases of all layers. The backward kernels leave sums over some rows, `parts`
   for each direction; here they are added up, always in the same order, so that every run gives the same
   bits. One kernel is for all cells and sizes. */

#include "ptx_convert.cuh"

namespace dnnffi {

struct BiasGradientsParams
{
    const float *sums;    /* [directions, parts, columns, padded] of the first layer */
    Element *d_input;     /* [gates, hidden] of the first layer and direction, of the input biases */
    Element *d_recurrent; /* the same of the recurrent biases */
    long long layers, directions, parts;
    long long columns; /* `gates`, or of a GRU one more: 2 is n's product of x, 3 its product of h */
    long long gates, hidden, padded;
    long long layer_sums; /* floats from the sums of a layer to those of the next */
    /* Elements from the gradients of a layer, and of a direction, to those of the next. */
    long long layer_stride, direction_stride;
    long long accumulate; /* whether to add to the gradients that are there */

    /* Blocks of all units of a column. */
    DEVICE u32 unit_blocks() const { return ((u32)hidden + blockDim.x - 1) / blockDim.x; }

    DEVICE u32 blocks() const { return layers * directions * columns * unit_blocks(); }

    /* The part of a block: a thread for each unit of a column of a direction of a layer. */
    DEVICE void add_up(u32 block) const
    {
        const u32 of_columns = block / unit_blocks(), of_directions = of_columns / (u32)columns;
        const long long unit = block % unit_blocks() * blockDim.x + threadIdx.x;
        const long long column = of_columns % (u32)columns;
        const long long direction = of_directions % (u32)directions;
        const long long layer = of_directions / (u32)directions;
        if (unit >= hidden) return;
        const long long step = columns * padded;
        const float *from = sums + layer * layer_sums + direction * parts * step + column * padded + unit;
        float sum = 0;
        for (long long part = 0; part < parts; part++) sum += from[part * step];
        const bool only_recurrent = column == gates, only_input = gates < columns && column == 2;
        const long long gate = only_recurrent ? 2 : column;
        const long long at = layer * layer_stride + direction * direction_stride + gate * hidden + unit;
        if (!only_recurrent) d_input[at] = rounded(sum + (accumulate ? real(d_input[at]) : 0.0f));
        if (!only_input) d_recurrent[at] = rounded(sum + (accumulate ? real(d_recurrent[at]) : 0.0f));
    }
};

} // namespace dnnffi
