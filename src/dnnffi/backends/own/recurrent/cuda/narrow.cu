/* Convert a recurrent matrix from float32 to float16, row by row, each multiplied by a power of
   two that brings its largest number to between 2^14 and 2^15.

   TF32, in which the products of float32 are computed otherwise, has as many bits of mantissa as float16
   but more of exponent. A number of at least 2^-29 of the largest one of its row is rounded as TF32
   rounds it; a smaller one has an error of at most 2^-39 of the largest. Infinity and NaN stay. Products
   in float16 take half the time, and what is exchanged half the words.

   The states that are multiplied must be bounded too. Those of an LSTM and of a tanh cell are at most 1,
   except for h_0; those of a GRU are at most 1 or the largest of h_0. So of h_0, and of the states of resets,
   each row's factor is found as well. */

#include "lanes.cuh"
#include "ptx_convert.cuh"

namespace dnnffi {

/* Bounds of a factor's exponent: beyond, its reciprocal over or times STATE_SCALE is not a normal number. */
constexpr int MOST_UP = 111, MOST_DOWN = 112;

struct NarrowParams
{
    const Element *matrices; /* [directions, rows, hidden], directions `stride` elements apart */
    Factor *narrow;          /* [directions, rows, padded], zeros from `hidden` on; null: only `scales` */
    float *scales;           /* [directions, rows]: reciprocals of the factors */
    long long rows;
    long long directions;
    long long hidden;
    long long padded;
    long long stride;
};

/* A warp converts a row of a direction. */
extern "C" __global__ void narrow_rows(const __grid_constant__ NarrowParams params)
{
    const long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (row >= params.rows * params.directions) return;
    const Element *from =
        params.matrices + row / params.rows * params.stride + row % params.rows * params.hidden;
    u32 largest = 0;
#pragma unroll 8
    for (long long column = lane; column < params.hidden; column += 32) {
        const u32 size = float_to_bits(from[column]) & 0x7fffffffu;
        if (size > largest && size < 0x7f800000u) largest = size;
    }
    for (int distance = 1; distance < 32; distance *= 2) {
        const u32 other = other_lane(largest, distance);
        if (other > largest) largest = other;
    }
    int up = 14 - ((int)(largest >> 23) - 127);
    up = up > MOST_UP ? MOST_UP : up < -MOST_DOWN ? -MOST_DOWN : up;
    if (lane == 0) params.scales[row] = bits_to_float((u32)(127 - up) << 23);
    if (!params.narrow) return;
    const float factor = bits_to_float((u32)(127 + up) << 23);
    Factor *to = params.narrow + row * params.padded;
#pragma unroll 8
    for (long long column = lane; column < params.padded; column += 32)
        to[column] = column < params.hidden ? (Factor)two_of_float16(from[column] * factor, 0) : 0;
}

} // namespace dnnffi
