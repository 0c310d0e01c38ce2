/* Dropout of elements of a layer's y, by a random number for each, which follows from
   the state's seed, how many masks it has drawn before, and the element's place in [T, B, units]: not
   from how rows are packed or a layer is divided. A backward pass draws its forward pass's numbers again.

   Philox4x32-10: J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */

#include "ptx_convert.cuh"

namespace dnnffi {

struct Random
{
    u32 words[4];
};

DEVICE Random philox(u64 low, u64 high, u64 key)
{
    u32 c0 = (u32)low, c1 = (u32)(low >> 32), c2 = (u32)high, c3 = (u32)(high >> 32);
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 first = (u64)0xd2511f53u * c0, second = (u64)0xcd9e8d57u * c2;
        c0 = (u32)(second >> 32) ^ c1 ^ k0, c1 = (u32)second;
        c2 = (u32)(first >> 32) ^ c3 ^ k1, c3 = (u32)first;
        k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
    }
    return {{c0, c1, c2, c3}};
}

struct TakeMasksParams
{
    u64 *state; /* [2]: the seed, and how many masks were drawn */
    u64 *taken; /* [2]: the state before */
    long long masks;
};

/* A forward pass keeps the state for its backward pass and moves it on: also where a graph is replayed. */
extern "C" __global__ void take_masks(const __grid_constant__ TakeMasksParams params)
{
    params.taken[0] = params.state[0], params.taken[1] = params.state[1];
    params.state[1] += params.masks;
}

/* Four neighbouring units, moved by one access where rows have whole ones. */
constexpr int FOUR = 4;
struct alignas(FOUR * sizeof(Element)) Four
{
    Element of[FOUR];
};

struct DropParams
{
    const Element *source; /* [T, B, units], or rows of unequal length */
    Element *target;       /* likewise; may be `source` */
    const u64 *taken;      /* [2]: the state of the forward pass */
    const int *lengths;    /* tables of rows, see ragged_rows.cuh; null: dense rows */
    const int *caller_rows;
    const int *first_positions;
    const int *step_offsets; /* null: steps of a row are consecutive positions */
    long long mask;          /* its number in the forward pass */
    long long steps;
    long long batch;
    long long step_stride; /* in rows, of dense ones */
    long long row_stride;  /* likewise */
    long long units;
    long long dropped_below; /* a random number below it drops */
    double scale;            /* factor of other elements */
};

/* target = source * mask. What is dropped is multiplied by zero, so that NaN and infinity stay NaN. */
extern "C" __global__ void drop_elements(const __grid_constant__ DropParams params)
{
    const u64 seed = params.taken[0], number = params.taken[1] + params.mask;
    const long long groups = (params.units + FOUR - 1) / FOUR, threads = (long long)gridDim.x * blockDim.x;
    const bool whole = params.units % FOUR == 0;
    for (long long step = blockIdx.z; step < params.steps; step += gridDim.z) {
        for (long long row = blockIdx.y; row < params.batch; row += gridDim.y) {
            const bool ragged = params.lengths;
            if (ragged && step >= params.lengths[row]) break; /* later rows are not longer */
            const long long place = step * params.batch + (ragged ? params.caller_rows[row] : row);
            const long long position = ragged ? params.first_positions[row] +
                                                    (params.step_offsets ? params.step_offsets[step] : step)
                                              : step * params.step_stride + row * params.row_stride;
            long long group = (long long)blockIdx.x * blockDim.x + threadIdx.x;
            for (; group < groups; group += threads) {
                const Random random = philox(place * groups + group, number, seed);
                const long long at = position * params.units + group * FOUR;
                Four four;
                if (whole) four = *(const Four *)(params.source + at);
#pragma unroll
                for (int i = 0; i < FOUR; i++) {
                    const float factor = random.words[i] < params.dropped_below ? 0.0f : (float)params.scale;
                    if (whole) four.of[i] = rounded(real(four.of[i]) * factor);
                    else if (group * FOUR + i < params.units)
                        params.target[at + i] = rounded(real(params.source[at + i]) * factor);
                }
                if (whole) *(Four *)(params.target + at) = four;
            }
        }
    }
}

} // namespace dnnffi
