#pragma once
/* Forward and backward data of a depthwise convolution, channels last.

   A thread has READ channels, and their weights in registers, and computes up to TURNS tiles of outputs one
   after the other. The threads of a warp have the channels next to each other, so that they read and write
   contiguous memory. Inputs that two tiles both need come out of the first-level cache: the tiles of a block
   are neighbours.

   A block has PLACES tiles of LANES threads each, which are all channels or one of PARTS parts of them.
   Shared memory: weights [TAPS, PITCH], a channel in each column. */

#include "axis.cuh"
#include "epilogue.cuh"
#include "pack.cuh"
#include "params.cuh"

namespace dnnffi {

constexpr int CHANNELS = Config::CHANNELS, TAPS = Config::TAPS, READ = Config::READ;
constexpr int LANES = Config::LANES, PLACES = Config::PLACES, PARTS = Config::PARTS;
constexpr int WIDTH_IN = AxisX::HIGH - AxisX::LOW + 1; /* inputs of a tile, across */

using Channels = Pack<READ>;

/* Constants of a `Config`, unless its kernel serves all sizes of a layer. */
struct PixelSizes
{
    int COUNT;                        /* images */
    int TURNS;                        /* tiles of a thread */
    int INPUTS_Y, OUTPUTS_Y, TILES_Y; /* rows of an image, of the result, and of tiles */
    int INPUTS_X, OUTPUTS_X, TILES_X; /* columns */
};

/* Read a row of a tile's inputs, zeros outside of the image; `from` is the image. */
template <class Sizes>
DEVICE void load_row(Channels (&read)[WIDTH_IN], const Element *__restrict__ from, int row, int left,
                     const Sizes sizes)
{
#pragma unroll
    for (int in_x = AxisX::LOW; in_x <= AxisX::HIGH; in_x++) {
        const int column = left * AxisX::TIMES / AxisX::OVER + in_x;
        const Channels zeros = {{0}};
        read[in_x - AxisX::LOW] = zeros; /* the bits of zero, in each type */
        if (row >= 0 && row < sizes.INPUTS_Y && column >= 0 && column < sizes.INPUTS_X)
            read[in_x - AxisX::LOW] = *(const Channels *)(from + (row * sizes.INPUTS_X + column) * CHANNELS);
    }
}

/* Add the products of a row of inputs to all rows of the tile that it belongs to. */
DEVICE void multiply(float (&sums)[AxisY::TILE][AxisX::TILE][READ], const float (&taps)[TAPS][READ],
                     const Channels (&read)[WIDTH_IN], int in_y)
{
#pragma unroll
    for (int in_x = AxisX::LOW; in_x <= AxisX::HIGH; in_x++) {
        float value[READ];
#pragma unroll
        for (int e = 0; e < READ; e++) value[e] = get(read[in_x - AxisX::LOW], e);
#pragma unroll
        for (int out_y = 0; out_y < AxisY::TILE; out_y++) {
            const int tap_y = AxisY::tap(in_y, out_y);
            if (!AxisY::has_weight(tap_y)) continue;
#pragma unroll
            for (int out_x = 0; out_x < AxisX::TILE; out_x++) {
                const int tap_x = AxisX::tap(in_x, out_x);
                if (!AxisX::has_weight(tap_x)) continue;
#pragma unroll
                for (int e = 0; e < READ; e++)
                    sums[out_y][out_x][e] +=
                        taps[AxisY::weight(tap_y) * Config::WIDTH + AxisX::weight(tap_x)][e] * value[e];
            }
        }
    }
}

/* Store a tile; `origin` is the thread's channel in the first element of the image. */
template <class Sizes>
DEVICE void store(const float (&sums)[AxisY::TILE][AxisX::TILE][READ], const Channels &shift,
                  const Element *__restrict__ residual, Element *__restrict__ y, double alpha,
                  const Sizes sizes, long long origin, int top, int left)
{
#pragma unroll
    for (int out_y = 0; out_y < AxisY::TILE; out_y++) {
#pragma unroll
        for (int out_x = 0; out_x < AxisX::TILE; out_x++) {
            if (top + out_y >= sizes.OUTPUTS_Y || left + out_x >= sizes.OUTPUTS_X) continue;
            const long long to = origin + ((top + out_y) * sizes.OUTPUTS_X + left + out_x) * CHANNELS;
            Channels written, more;
            if (RESIDUAL) more = *(const Channels *)(residual + to);
#pragma unroll
            for (int e = 0; e < READ; e++) {
                float value = sums[out_y][out_x][e];
                if (RESIDUAL) value += (float)alpha * get(more, e);
                if (BIAS) value += get(shift, e);
                set(&written, e, activated(value));
            }
            *(Channels *)(y + to) = written;
        }
    }
}

/* Grid: PARTS blocks for each chunk of PLACES * TURNS tiles. `sizes` is an object of `Config`, or made of
   what a launch passes. */
template <class Sizes>
DEVICE void convolve_pixels(const Element *__restrict__ x,        /* [COUNT, INPUTS_Y, INPUTS_X, CHANNELS] */
                            const Element *__restrict__ w,        /* [CHANNELS, TAPS]: rows of WIDTH taps */
                            const Element *__restrict__ bias,     /* [CHANNELS], if BIAS */
                            const Element *__restrict__ residual, /* as y, if RESIDUAL; times alpha */
                            Element *__restrict__ y, /* [COUNT, OUTPUTS_Y, OUTPUTS_X, CHANNELS] */
                            double alpha, const Sizes sizes)
{
    constexpr int PITCH = Config::PITCH;
    __shared__ float weights[TAPS * PITCH];
    const int lane = threadIdx.x % LANES, place = threadIdx.x / LANES;
    const int part = blockIdx.x % PARTS, chunk = blockIdx.x / PARTS, first = part * LANES * READ;
    const int channel = first + lane * READ;

    for (int at = threadIdx.x; at < LANES * READ * TAPS; at += Config::BLOCK) {
        const int offset = at / TAPS, tap = at - offset * TAPS;
        if (first + offset < CHANNELS) weights[tap * PITCH + offset] = real(w[first * TAPS + at]);
    }
    __syncthreads();
    if (channel >= CHANNELS || place >= PLACES) return;
    float taps[TAPS][READ];
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int e = 0; e < READ; e++) taps[tap][e] = weights[tap * PITCH + lane * READ + e];

    for (int turn = 0; turn < sizes.TURNS; turn++) {
        const int at = (chunk * sizes.TURNS + turn) * PLACES + place;
        if (at >= sizes.COUNT * sizes.TILES_Y * sizes.TILES_X) return;
        const int line = at / sizes.TILES_X, image = line / sizes.TILES_Y;
        const int top = (line - image * sizes.TILES_Y) * AxisY::TILE;
        const int left = (at - line * sizes.TILES_X) * AxisX::TILE;
        const Element *from = x + (long long)image * (sizes.INPUTS_Y * sizes.INPUTS_X * CHANNELS) + channel;
        float sums[AxisY::TILE][AxisX::TILE][READ];
#pragma unroll
        for (int i = 0; i < AxisY::TILE * AxisX::TILE * READ; i++)
            sums[i / READ / AxisX::TILE][i / READ % AxisX::TILE][i % READ] = 0;
#pragma unroll
        for (int in_y = AxisY::LOW; in_y <= AxisY::HIGH; in_y++) {
            Channels read[WIDTH_IN];
            load_row(read, from, top * AxisY::TIMES / AxisY::OVER + in_y, left, sizes);
            multiply(sums, taps, read, in_y);
        }
        const long long origin = (long long)image * (sizes.OUTPUTS_Y * sizes.OUTPUTS_X * CHANNELS) + channel;
        Channels shift;
        if (BIAS) shift = *(const Channels *)(bias + channel);
        store(sums, shift, residual, y, alpha, sizes, origin, top, left);
    }
}

} // namespace dnnffi
