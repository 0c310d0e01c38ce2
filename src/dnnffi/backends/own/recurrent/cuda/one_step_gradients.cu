/* The gradients of the gates of a single step, from what `one_step.cu` left. No later step has anything to
   add, so each cell is computed alone. Matrix products then give dx, dh_0 and the gradients of the weights. A
   block has UNITS hidden units, one a lane, of ROWS rows, which its warps take in turn. One kernel is for all
   sizes. */

#include "cells.cuh"
#include "dtype.cuh"

namespace dnnffi {

constexpr int UNITS = Config::UNITS, ROWS = Config::ROWS, WARPS = Config::WARPS; /* of a block */

static_assert(UNITS == 32 && ROWS % WARPS == 0, "a lane has a unit, and all warps as many rows");
static_assert(WARPS >= SAVED, "a warp adds up a column");

/* D: directions, B: batch, H: hidden. */
struct OneStepGradientsParams
{
    const Element *saved;  /* [D, B, SAVED, H] */
    const Element *before; /* [D, B, H]: c_0 of an LSTM, h_0 of a GRU; null: zeros */
    const Element *dy;     /* [B, D, H] */
    const Element *dh_n;   /* [D, B, H]; null: zeros */
    const Element *dc_n;   /* [D, B, H]; null: zeros */
    Element *d_x_products; /* [D, B, GATES, H]: gradients of the products of x */
    Element *d_h_products; /* [D, B, GATES, H]: of those of h_0, if they differ (GRU) */
    Element *dh_0;    /* [D, B, H]: of a GRU, without the part through the product; null: not asked for */
    Element *dc_0;    /* [D, B, H]; null: not asked for */
    float *bias_sums; /* [D, blocks of rows, SAVED, H]; null without biases */
    long long batch;
    long long directions;
    long long hidden;
    double clip_low; /* bounds of c, unless UNCLIPPED */
    double clip_high;
};

/* The sums over a block's rows, [SAVED, H], from those of its warps, which meet in `parts`, [WARPS, SAVED,
   UNITS]. */
DEVICE void store_sums(const float *sums, float *parts, float *of_block, int unit, int hidden)
{
    const int lane = threadIdx.x % UNITS, warp = threadIdx.x / UNITS;
#pragma unroll
    for (int column = 0; column < SAVED; column++)
        parts[(warp * SAVED + column) * UNITS + lane] = sums[column];
    __syncthreads();
    if (warp >= SAVED || unit >= hidden) return;
    float sum = 0;
#pragma unroll
    for (int other = 0; other < WARPS; other++) sum += parts[(other * SAVED + warp) * UNITS + lane];
    of_block[(long long)warp * hidden + unit] = sum;
}

/* Grid: blocks of units of the first rows of the first direction, then of the next rows, then of the next
   direction. */
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    one_step_gradients(const __grid_constant__ OneStepGradientsParams params)
{
    extern __shared__ __align__(16) unsigned char memory[];
    const int hidden = params.hidden, batch = params.batch;
    const int unit_blocks = (hidden + UNITS - 1) / UNITS, row_blocks = (batch + ROWS - 1) / ROWS;
    const int unit = blockIdx.x % unit_blocks * UNITS + threadIdx.x % UNITS;
    const int of_rows = blockIdx.x / unit_blocks, direction = of_rows / row_blocks;
    const int first_row = of_rows % row_blocks * ROWS + threadIdx.x / UNITS;
    float sums[SAVED] = {};
#pragma unroll
    for (int i = 0; i < ROWS / WARPS; i++) {
        const int row = first_row + i * WARPS;
        if (unit >= hidden || row >= batch) continue;
        const long long cell_row = (long long)direction * batch + row, at = cell_row * hidden + unit;
        const auto read = [&](const Element *state) { return state ? real(state[at]) : 0.0f; };
        float saved[SAVED];
#pragma unroll
        for (int column = 0; column < SAVED; column++)
            saved[column] = real(params.saved[(cell_row * SAVED + column) * hidden + unit]);
        const float dy = real(params.dy[(row * params.directions + direction) * hidden + unit]);
        const CellGradients d_before = step_backward(saved, read(params.before), read(params.dh_n) + dy,
                                                     read(params.dc_n), params.clip_low, params.clip_high);
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) {
            const long long of_gate = (cell_row * GATES + gate) * hidden + unit;
            params.d_x_products[of_gate] = rounded(d_before.gates[gate]);
            if (CELL == GRU)
                params.d_h_products[of_gate] = rounded(d_before.gates[gate == 2 ? SAVED - 1 : gate]);
        }
        if (CELL == GRU && params.dh_0) params.dh_0[at] = rounded(d_before.h);
        if (CELL == LSTM && params.dc_0) params.dc_0[at] = rounded(d_before.c);
#pragma unroll
        for (int column = 0; column < SAVED; column++) sums[column] += d_before.gates[column];
    }
    if (!params.bias_sums) return;
    float *const of_block = params.bias_sums + (long long)of_rows * SAVED * hidden;
    store_sums(sums, (float *)memory, of_block, unit, hidden);
}

} // namespace dnnffi
