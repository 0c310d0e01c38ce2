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

/* `N` elements of a row, 1 or 4, that a lane reads and writes at once. */
template <int N> struct Elements
{
    float of[N];

    DEVICE void read(const Element *from)
    {
        if constexpr (N == 4) {
            const float4 all = *(const float4 *)from;
            of[0] = all.x, of[1] = all.y, of[2] = all.z, of[3] = all.w;
        } else of[0] = *from;
    }

    DEVICE void write(Factor *to, float factor) const
    {
        if constexpr (N == 4) {
            const unsigned long long high = two_of_float16(of[2] * factor, of[3] * factor);
            *(unsigned long long *)to = high << 32 | two_of_float16(of[0] * factor, of[1] * factor);
        } else *to = (Factor)two_of_float16(of[0] * factor, 0);
    }
};

/* The bits of the largest finite number of a row, without its sign: that of a lane's elements. */
template <int N> DEVICE u32 largest_of(const Element *from, long long hidden, int lane)
{
    u32 largest = 0;
#pragma unroll 8
    for (long long column = N * lane; column < hidden; column += 32 * N) {
        Elements<N> elements;
        elements.read(from + column);
#pragma unroll
        for (int e = 0; e < N; e++) {
            const u32 size = float_to_bits(elements.of[e]) & 0x7fffffffu;
            if (size > largest && size < 0x7f800000u) largest = size;
        }
    }
    return largest;
}

/* Writes a lane's elements of a row, multiplied by a factor. Several are read before the first is written: a
   compiler may not move a read over a write. */
template <int N>
DEVICE void convert(Factor *to, const Element *from, float factor, long long hidden, long long padded,
                    int lane)
{
    constexpr int AT_ONCE = 4;
    for (long long first = N * lane; first < padded; first += AT_ONCE * 32 * N) {
        Elements<N> elements[AT_ONCE] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * 32 * N < hidden) elements[i].read(from + first + i * 32 * N);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * 32 * N < padded) elements[i].write(to + first + i * 32 * N, factor);
    }
}

/* A warp converts a row of a direction. */
extern "C" __global__ void narrow_rows(const __grid_constant__ NarrowParams params)
{
    const long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (row >= params.rows * params.directions) return;
    const Element *from =
        params.matrices + row / params.rows * params.stride + row % params.rows * params.hidden;
    const bool by_four =
        params.hidden % 4 == 0 && params.stride % 4 == 0 && (unsigned long long)params.matrices % 16 == 0;
    u32 largest =
        by_four ? largest_of<4>(from, params.hidden, lane) : largest_of<1>(from, params.hidden, lane);
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
    if (by_four) convert<4>(to, from, factor, params.hidden, params.padded, lane);
    else convert<1>(to, from, factor, params.hidden, params.padded, lane);
}

} // namespace dnnffi
