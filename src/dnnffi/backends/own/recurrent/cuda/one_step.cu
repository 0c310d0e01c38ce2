/* A single step of a layer. No earlier step has left anything to keep on the chip or to exchange: one launch
   multiplies x and h_0 by both matrices and computes the cells; in training it leaves what
   `one_step_gradients.cu` needs. A block has UNITS hidden units of ROWS rows of one direction. Its warps
   share the sum over k: the first X_WARPS have that of x, the others that of h_0, each every X_WARPS-th or
   H_WARPS-th step of k. They add up in shared memory. */

#include "cells.cuh"
#include "tiles.cuh"

namespace dnnffi {

constexpr int INPUTS = Config::INPUTS, HIDDEN = Config::HIDDEN; /* of the layer */
constexpr int OCTETS = Config::OCTETS;                          /* of the units of a block */
constexpr int ROWS = Config::ROWS;                              /* a multiple of 8 */
constexpr bool TRAINING = Config::TRAINING;
constexpr int X_WARPS = Config::X_WARPS, H_WARPS = Config::H_WARPS; /* of a block */

constexpr int UNITS = 8 * OCTETS, UNIT_BLOCKS = (HIDDEN + UNITS - 1) / UNITS;
constexpr int HALVES = OCTETS * GATES; /* half tiles: 8 units of a gate */
constexpr int TILES = (HALVES + 1) / 2;
constexpr int COLUMNS = ROWS / 8;
constexpr int WARPS = X_WARPS + H_WARPS, THREADS = WARPS * 32;
constexpr int HALF_FLOATS = COLUMNS * 2 * 32; /* sums of a half tile */
constexpr int CELLS = OCTETS * HALF_FLOATS;   /* of a block */
constexpr int THREAD_CELLS = (CELLS + THREADS - 1) / THREADS;
constexpr int AT_ONCE = ROWS > 16 ? 2 : 4; /* steps of k whose words are in flight */

static_assert(ROWS % 8 == 0, "tiles");

/* The word at k of a row of COUNT elements; zeros for what is not there. Rows are WHOLE words where their
   length and address allow it. */
template <int COUNT, bool WHOLE> DEVICE uint4 word_of(const Element *row, int k, bool there)
{
    if constexpr (WHOLE) {
        return there && k < COUNT ? *(const uint4 *)(row + k) : make_uint4(0, 0, 0, 0);
    } else {
        union {
            Element values[K_WORD];
            uint4 word;
        } found;
#pragma unroll
        for (int e = 0; e < K_WORD; e++) found.values[e] = there && k + e < COUNT ? row[k + e] : (Element)0;
        return found.word;
    }
}

/* The sums over the part of k of warp `number` of WARPS_OF_K. */
template <int COUNT, int WARPS_OF_K, bool WHOLE>
DEVICE void multiply_rows(float (&sums)[TILES][COLUMNS][4], const Element *matrices, const Element *rows,
                          int number, int first_unit, int rows_there)
{
    constexpr int STEP = 4 * K_WORD, STEPS = (COUNT + STEP - 1) / STEP;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int begin = number; begin < STEPS; begin += AT_ONCE * WARPS_OF_K) {
        uint4 factors[AT_ONCE][HALVES], words[AT_ONCE][COLUMNS];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int k = (begin + i * WARPS_OF_K) * STEP + lane % 4 * K_WORD;
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                const int unit = first_unit + half / GATES * 8 + lane / 4;
                const long long row = (long long)(half % GATES) * HIDDEN + unit;
                factors[i][half] = word_of<COUNT, WHOLE>(matrices + row * COUNT, k, unit < HIDDEN);
            }
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                const int row = j * 8 + lane / 4;
                words[i][j] = word_of<COUNT, WHOLE>(rows + (long long)row * COUNT, k, row < rows_there);
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) words[i][j] = as_factors(words[i][j]);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const uint4 low = as_factors(factors[i][2 * tile]);
                const uint4 high = 2 * tile + 1 < HALVES
                                       ? as_factors(factors[i][2 * tile + 1 < HALVES ? 2 * tile + 1 : 0])
                                       : make_uint4(0, 0, 0, 0);
                const Fragments both = fragments(low, high);
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    multiply_add(sums[tile][j], both.first, words[i][j].x, words[i][j].y);
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    multiply_add(sums[tile][j], both.second, words[i][j].z, words[i][j].w);
            }
        }
    }
}

/* The same, whether rows are whole words or not. */
template <int COUNT, int WARPS_OF_K>
DEVICE void multiply_any_rows(float (&sums)[TILES][COLUMNS][4], const Element *matrices, const Element *rows,
                              int number, int first_unit, int rows_there)
{
    const bool aligned = (((unsigned long long)matrices | (unsigned long long)rows) & 15) == 0;
    if (COUNT % K_WORD == 0 && aligned)
        multiply_rows<COUNT, WARPS_OF_K, COUNT % K_WORD == 0>(sums, matrices, rows, number, first_unit,
                                                              rows_there);
    else multiply_rows<COUNT, WARPS_OF_K, false>(sums, matrices, rows, number, first_unit, rows_there);
}

/* A cell of a block, where its sums lie: octet of units, column of rows, one of two rows, lane. */
struct OneCell
{
    int unit, row, octet, place;

    DEVICE explicit OneCell(int number)
    {
        const int lane = number % 32, e = number / 32 % 2, column = number / 64 % COLUMNS;
        octet = number / HALF_FLOATS;
        unit = octet * 8 + lane / 4;
        row = column * 8 + lane % 4 * 2 + e;
        place = number % HALF_FLOATS;
    }
};

/* D: directions, B: batch, I: INPUTS, H: HIDDEN; strides are in elements, to the next direction. */
struct OneStepParams
{
    const Element *x;    /* [B, I] */
    const Element *w_ih; /* [GATES, H, I] */
    const Element *w_hh; /* [GATES, H, H] */
    const Element *b_ih; /* [GATES, H]; both null without biases */
    const Element *b_hh; /* [GATES, H] */
    const Element *h_0;  /* [D, B, H]; null: zeros */
    const Element *c_0;  /* [D, B, H]; null: zeros */
    Element *y;          /* [B, D, H] */
    Element *h_n;        /* [D, B, H]; null: not asked for */
    Element *c_n;        /* [D, B, H]; null: not asked for */
    long long batch;
    long long directions;
    long long matrix_stride;
    long long bias_stride;
    double clip_low; /* bounds of c, unless UNCLIPPED */
    double clip_high;
    Element *saved; /* [D, B, SAVED, H]; written in TRAINING */
};

extern "C" __global__ void __launch_bounds__(THREADS) one_step(const OneStepParams params)
{
    extern __shared__ __align__(16) unsigned char memory[];
    float *const parts = (float *)memory; /* [WARPS][HALVES][HALF_FLOATS] */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row_blocks = ((int)params.batch + ROWS - 1) / ROWS, of_rows = blockIdx.x / UNIT_BLOCKS;
    const int first_unit = blockIdx.x % UNIT_BLOCKS * UNITS, first_row = of_rows % row_blocks * ROWS;
    const int direction = of_rows / row_blocks;
    const int rows = (int)params.batch - first_row < ROWS ? (int)params.batch - first_row : ROWS;
    const long long state = ((long long)direction * params.batch + first_row) * HIDDEN;

    /* Inputs of cells are loaded while the sums are. */
    float bias_x[THREAD_CELLS][GATES], bias_h[THREAD_CELLS][GATES], h[THREAD_CELLS], c[THREAD_CELLS];
#pragma unroll
    for (int i = 0; i < THREAD_CELLS; i++) {
        const OneCell cell(threadIdx.x + i * THREADS);
        const int unit = first_unit + cell.unit;
        const bool there = cell.octet < OCTETS && unit < HIDDEN && cell.row < rows;
        const long long at = state + (long long)cell.row * HIDDEN + unit;
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) {
            const long long of_bias = direction * params.bias_stride + gate * HIDDEN + unit;
            bias_x[i][gate] = there && params.b_ih ? real(params.b_ih[of_bias]) : 0.0f;
            bias_h[i][gate] = there && params.b_ih ? real(params.b_hh[of_bias]) : 0.0f;
        }
        h[i] = there && params.h_0 ? real(params.h_0[at]) : 0.0f;
        c[i] = there && params.c_0 ? real(params.c_0[at]) : 0.0f;
    }

    float sums[TILES][COLUMNS][4];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[tile][j][e] = 0;
    if (warp < X_WARPS)
        multiply_any_rows<INPUTS, X_WARPS>(sums, params.w_ih + direction * params.matrix_stride,
                                           params.x + (long long)first_row * INPUTS, warp, first_unit, rows);
    else if (params.h_0)
        multiply_any_rows<HIDDEN, H_WARPS>(sums, params.w_hh + direction * params.matrix_stride,
                                           params.h_0 + state, warp - X_WARPS, first_unit, rows);
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                parts[(warp * HALVES + half) * HALF_FLOATS + (j * 2 + e) * 32 + lane] =
                    sums[half / 2][j][half % 2 * 2 + e];
    __syncthreads();

#pragma unroll
    for (int i = 0; i < THREAD_CELLS; i++) {
        const OneCell cell(threadIdx.x + i * THREADS);
        const int unit = first_unit + cell.unit;
        if (cell.octet >= OCTETS || unit >= HIDDEN || cell.row >= rows) continue;
        float of_x[GATES], of_h[GATES];
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) {
            const float *of_gate = parts + (cell.octet * GATES + gate) * HALF_FLOATS + cell.place;
            of_x[gate] = bias_x[i][gate];
            of_h[gate] = bias_h[i][gate];
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                (w < X_WARPS ? of_x : of_h)[gate] += of_gate[w * HALVES * HALF_FLOATS];
        }
        const Cell after = step_forward(of_x, of_h, h[i], c[i], params.clip_low, params.clip_high);
        const long long row = first_row + cell.row, at = state + (long long)cell.row * HIDDEN + unit;
        params.y[(row * params.directions + direction) * HIDDEN + unit] = rounded(after.h);
        if (params.h_n) params.h_n[at] = rounded(after.h);
        if (CELL == LSTM && params.c_n) params.c_n[at] = rounded(after.c);
        if constexpr (TRAINING) {
            const long long cell_row = direction * params.batch + row;
#pragma unroll
            for (int column = 0; column < SAVED; column++)
                params.saved[(cell_row * SAVED + column) * HIDDEN + unit] = rounded(after.saved[column]);
        }
    }
}

} // namespace dnnffi
