#pragma once
/* Forward and backward data of a depthwise convolution, channels first: each channel of an image is a plane.

   A block has PLANES planes, or a band of the rows of one plane. It reads them once into shared memory, as
   floats, with zeros around them: taps outside of the image read zeros, without a condition. Each thread has
   tiles of outputs: it reads the rows that a tile needs one after the other, and adds each row to all of the
   tile's rows that it belongs to. Between two rows, and between two planes, there are zeros once, not twice:
   what follows one precedes the other.

   Shared memory, in floats:
       tile     plane p, row r, column c are at (p * STEP + LEAD + r) * PITCH + LEFT + c
       weights  [PLANES, WEIGHTS], of which TAPS are used: WEIGHTS is odd, so that planes are in other banks

   Invariant: zeros and weights are written before the first barrier, the image between it and the second,
   and both arrays are only read from then on. */

#include "axis.cuh"
#include "epilogue.cuh"
#include "pack.cuh"
#include "params.cuh"

namespace dnnffi {

constexpr int PLANES = Config::PLANES, CHANNELS = Config::CHANNELS;
constexpr int TAPS = Config::TAPS, WEIGHTS = Config::WEIGHTS;
constexpr int READ = Config::READ, WRITE = Config::WRITE; /* elements of a pack */

/* A row of a tile's inputs: SEGMENTS of WIDE floats, from column BEGIN on, counted from the base. */
constexpr int WIDE = Config::WIDE, SEGMENTS = Config::SEGMENTS, BEGIN = Config::BEGIN;
using Segment = Floats<WIDE>;

/* Constants of a `Config`, unless its kernel serves all sizes of a layer. */
struct PlaneSizes
{
    int COUNT;                        /* planes of all images */
    int BAND;                         /* tiles of a block, down */
    int BLOCK;                        /* threads of a block */
    int READS;                        /* packs that a thread reads */
    int ACROSS;                       /* packs of a row */
    int ROWS;                         /* rows of a plane that a block reads */
    int FROM;                         /* the first of them, from the base of the band */
    int LEAD;                         /* rows of zeros in front of a plane */
    int STEP;                         /* rows from plane to plane in shared memory */
    int LEFT;                         /* columns of zeros in front of a row */
    int PITCH;                        /* floats from row to row in shared memory */
    int CELLS;                        /* floats of `tile` that are used, of MAX_CELLS */
    int INPUTS_Y, OUTPUTS_Y, TILES_Y; /* rows of an image, of the result, and of tiles */
    int INPUTS_X, OUTPUTS_X, TILES_X; /* columns */
};

/* Fill the shared memory of a block: planes from `first` on, rows counted from row `base` of the image. */
template <class Sizes>
DEVICE void load_planes(const Element *__restrict__ x, const Element *__restrict__ w, const Sizes sizes,
                        int thread, int first, int base, float *tile, float *weights)
{
    constexpr int AT_ONCE = Config::AT_ONCE, FLOATS = Config::FLOATS;
    /* Loads are in flight while the zeros are written. */
    for (int done = 0; done < sizes.READS; done += AT_ONCE) {
        Pack<READ> some[AT_ONCE];
        int to[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const int at = (done + n) * sizes.BLOCK + thread;
            const int line = at / sizes.ACROSS, plane = line / sizes.ROWS;
            const int row = line - plane * sizes.ROWS + sizes.FROM;
            const int column = (at - line * sizes.ACROSS) * READ, in_image = base + row;
            to[n] = -1;
            if (plane < PLANES && first + plane < sizes.COUNT && in_image >= 0 && in_image < sizes.INPUTS_Y) {
                some[n] = *(const Pack<READ> *)(x +
                                                ((long long)(first + plane) * sizes.INPUTS_Y + in_image) *
                                                    sizes.INPUTS_X +
                                                column);
                to[n] = (plane * sizes.STEP + sizes.LEAD + row) * sizes.PITCH + sizes.LEFT + column;
            }
        }
        if (done == 0) {
            const Floats<4> zeros = {{0, 0, 0, 0}};
            for (int at = thread; at < sizes.CELLS / 4; at += sizes.BLOCK)
                *(Floats<4> *)(tile + 4 * at) = zeros;
            for (int at = thread; at < PLANES * TAPS; at += sizes.BLOCK) {
                const int plane = at / TAPS, tap = at - plane * TAPS;
                weights[plane * WEIGHTS + tap] = real(w[(first + plane) % CHANNELS * TAPS + tap]);
            }
            __syncthreads();
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            if (to[n] < 0) continue;
#pragma unroll
            for (int part = 0; part < READ; part += FLOATS) {
                Floats<FLOATS> floats;
#pragma unroll
                for (int e = 0; e < FLOATS; e++) floats.e[e] = get(some[n], part + e);
                *(Floats<FLOATS> *)(tile + to[n] + part) = floats;
            }
        }
    }
    __syncthreads();
}

/* Add the products of a row of inputs, from BEGIN on, to all rows of the tile that it belongs to. */
DEVICE void multiply(float (&sums)[AxisY::TILE][AxisX::TILE], const float (&taps)[TAPS],
                     const Segment (&row)[SEGMENTS], int in_y)
{
#pragma unroll
    for (int out_y = 0; out_y < AxisY::TILE; out_y++) {
        const int tap_y = AxisY::tap(in_y, out_y);
        if (!AxisY::has_weight(tap_y)) continue;
#pragma unroll
        for (int in_x = AxisX::LOW; in_x <= AxisX::HIGH; in_x++) {
#pragma unroll
            for (int out_x = 0; out_x < AxisX::TILE; out_x++) {
                const int tap_x = AxisX::tap(in_x, out_x);
                if (!AxisX::has_weight(tap_x)) continue;
                sums[out_y][out_x] += taps[AxisY::weight(tap_y) * Config::WIDTH + AxisX::weight(tap_x)] *
                                      row[(in_x - BEGIN) / WIDE].e[(in_x - BEGIN) % WIDE];
            }
        }
    }
}

/* Store a tile that begins at an output; `line` is the number of its row, counted over all planes. */
template <class Sizes>
DEVICE void store(const float (&sums)[AxisY::TILE][AxisX::TILE], float shift,
                  const Element *__restrict__ residual, Element *__restrict__ y, double alpha,
                  const Sizes sizes, long long line, int row, int column)
{
#pragma unroll
    for (int out_y = 0; out_y < AxisY::TILE; out_y++) {
        if (row + out_y >= sizes.OUTPUTS_Y) continue;
        const long long at = (line + out_y) * sizes.OUTPUTS_X + column;
#pragma unroll
        for (int out_x = 0; out_x < AxisX::TILE; out_x += WRITE) {
            if (column + out_x >= sizes.OUTPUTS_X) continue;
            Pack<WRITE> written, more;
            if (RESIDUAL) more = *(const Pack<WRITE> *)(residual + at + out_x);
#pragma unroll
            for (int e = 0; e < WRITE; e++) {
                float value = sums[out_y][out_x + e];
                if (RESIDUAL) value += (float)alpha * get(more, e);
                set(&written, e, activated(value + shift));
            }
            *(Pack<WRITE> *)(y + at + out_x) = written;
        }
    }
}

/* Grid: [blocks of PLANES planes, bands]. `sizes` is an object of `Config`, or made of what a launch passes. */
template <class Sizes>
DEVICE void convolve_planes(
    const Element *__restrict__ x,        /* [COUNT, INPUTS_Y, INPUTS_X] */
    const Element *__restrict__ w,        /* [CHANNELS, TAPS]: rows of WIDTH taps */
    const Element *__restrict__ bias,     /* [CHANNELS], if BIAS */
    const Element *__restrict__ residual, /* [COUNT, OUTPUTS_Y, OUTPUTS_X], if RESIDUAL; times alpha */
    Element *__restrict__ y,              /* [COUNT, OUTPUTS_Y, OUTPUTS_X] */
    double alpha, const Sizes sizes)
{
    alignas(16) __shared__ float tile[Config::MAX_CELLS];
    __shared__ float weights[PLANES * WEIGHTS];
    const int thread = threadIdx.x, first = blockIdx.x * PLANES;
    const int band = blockIdx.y * sizes.BAND * AxisY::TILE;
    load_planes(x, w, sizes, thread, first, band * AxisY::TIMES / AxisY::OVER, tile, weights);

    for (int item = thread; item < PLANES * sizes.BAND * sizes.TILES_X; item += sizes.BLOCK) {
        const int line = item / sizes.TILES_X, plane = line / sizes.BAND;
        const int top = (line - plane * sizes.BAND) * AxisY::TILE;
        const int left = (item - line * sizes.TILES_X) * AxisX::TILE;
        if (first + plane >= sizes.COUNT || band + top >= sizes.OUTPUTS_Y) continue;
        const int first_row = plane * sizes.STEP + sizes.LEAD + AxisY::LOW + top * AxisY::TIMES / AxisY::OVER;
        const float *from =
            tile + first_row * sizes.PITCH + sizes.LEFT + left * AxisX::TIMES / AxisX::OVER + BEGIN;
        float taps[TAPS], sums[AxisY::TILE][AxisX::TILE];
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) taps[tap] = weights[plane * WEIGHTS + tap];
#pragma unroll
        for (int i = 0; i < AxisY::TILE * AxisX::TILE; i++) sums[i / AxisX::TILE][i % AxisX::TILE] = 0;
#pragma unroll
        for (int in_y = AxisY::LOW; in_y <= AxisY::HIGH; in_y++) {
            Segment row[SEGMENTS];
#pragma unroll
            for (int part = 0; part < SEGMENTS; part++)
                row[part] = *(const Segment *)(from + (in_y - AxisY::LOW) * sizes.PITCH + part * WIDE);
            multiply(sums, taps, row, in_y);
        }
        const float shift = BIAS ? real(bias[(first + plane) % CHANNELS]) : 0;
        const long long output_row = (long long)(first + plane) * sizes.OUTPUTS_Y + band + top;
        store(sums, shift, residual, y, alpha, sizes, output_row, band + top, left);
    }
}

} // namespace dnnffi
