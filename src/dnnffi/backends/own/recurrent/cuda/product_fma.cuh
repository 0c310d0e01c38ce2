#pragma once
/* The recurrent product of a step without tensor cores. Tensor cores compute eight rows at once, which is
   wasted on few rows and few units. Here a group has ROWS rows; a block has UNITS units, all of them unless
   the group is a CLUSTER, with their recurrent weights as float32 in registers.

   PARTS consecutive threads have a unit: each of them multiplies some words of 4 of what is staged, by its
   part of the unit's weights. Then they add up their sums, so that ALIKE of them have those of one row, and
   compute the same cell. */

#include "tasks.cuh"

namespace dnnffi {

/* PARTS, of a kernel that has them: an editor opens this file with the constants of another one. */
constexpr int UNIT_THREADS = FMA ? PARTS : 1;

/* The number of words of 4 that a thread multiplies, and their place. */
constexpr int STAGED_FOURS = STAGED_FLOATS / 4, FOURS = (STAGED_FOURS + UNIT_THREADS - 1) / UNIT_THREADS;
constexpr int SUMMED = BACKWARD ? 1 : GATES; /* sums of a unit */

/* Moved by one access. */
struct alignas(4 * sizeof(Element)) Four
{
    Element values[4];
};

struct Matrices
{
    const Element *recurrent;
    int first_unit;
    bool aligned; /* each Four of a row */

    DEVICE Matrices(const Element *first, int rank, int)
        : recurrent(first), first_unit(rank * UNITS),
          aligned(HIDDEN % 4 == 0 && (unsigned long long)first % sizeof(Four) == 0)
    {
    }

    /* The factors by which 4 values from `at` on of the staged words are multiplied in sum `sum` of a unit of the
       block: in a forward pass, a part of a row. `read_four` reads them at once, of `aligned` rows. */
    DEVICE void read_four(float *to, int sum, int of_block, int at) const
    {
        const int unit = first_unit + of_block;
        const bool there = of_block < UNITS && unit < HIDDEN && at < HIDDEN;
        const long long from = there ? (long long)(sum * HIDDEN + unit) * HIDDEN + at : 0;
        const Four found = *(const Four *)(recurrent + from);
#pragma unroll
        for (int e = 0; e < 4; e++) to[e] = there ? real(found.values[e]) : 0.0f;
    }

    DEVICE void read_each(float *to, int sum, int of_block, int at) const
    {
        const int unit = first_unit + of_block;
        const bool has = of_block < UNITS && unit < HIDDEN;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int gate = BACKWARD ? (at + e) % GATES : sum, other = (at + e) / VALUES;
            const bool there = has && other < HIDDEN;
            const long long row = gate * HIDDEN + (BACKWARD ? other : unit);
            const Element value = recurrent[there ? row * HIDDEN + (BACKWARD ? unit : other) : 0];
            to[e] = there ? real(value) : 0.0f;
        }
    }
};

/* Whether a forward pass reads rows of matrices, which do not begin at whole Fours, through shared memory:
   consecutive threads read consecutive values there, and distant ones here. */
constexpr bool THROUGH_SHARED = !BACKWARD && HIDDEN % 4 != 0;

struct Weights
{
    float of[SUMMED][FOURS][4];

    DEVICE void read(const Matrices &matrices, uint4 *memory, uint4 *, int warp, int lane)
    {
        const int thread = warp * 32 + lane, unit = thread / UNIT_THREADS, part = thread % UNIT_THREADS;
        if constexpr (THROUGH_SHARED) {
            float *room = (float *)(memory + WEIGHTS_AT / 16);
#pragma unroll
            for (int sum = 0; sum < SUMMED; sum++) {
                read_rows(matrices, room, sum);
#pragma unroll
                for (int i = 0; i < FOURS; i++) {
                    const int at = (i * UNIT_THREADS + part) * 4;
                    for (int e = 0; e < 4; e++) {
                        const bool there = unit < UNITS && at + e < HIDDEN;
                        of[sum][i][e] = there ? room[unit * STAGED_ROW + at + e] : 0.0f;
                    }
                }
            }
        } else if (!BACKWARD && matrices.aligned) read_all<true>(matrices, unit, part);
        else read_all<false>(matrices, unit, part);
    }

    /* Has no branch, so that all reads are in flight at once. */
    template <bool ALIGNED> DEVICE void read_all(const Matrices &matrices, int unit, int part)
    {
#pragma unroll
        for (int sum = 0; sum < SUMMED; sum++)
#pragma unroll
            for (int i = 0; i < FOURS; i++) {
                const int at = (i * UNIT_THREADS + part) * 4;
                if (ALIGNED) matrices.read_four(of[sum][i], sum, unit, at);
                else matrices.read_each(of[sum][i], sum, unit, at);
            }
    }

    DEVICE void begin_stream() const {} /* all are in registers */
    DEVICE void end_stream() const {}
    DEVICE void release() const {}

    /* Reads the rows of the block's units from the matrix of a gate. */
    DEVICE static void read_rows(const Matrices &matrices, float *to, int gate)
    {
        const int first = matrices.first_unit, left = (HIDDEN - first) * HIDDEN;
        const Element *from = matrices.recurrent + (long long)(gate * HIDDEN + first) * HIDDEN;
        __syncthreads(); /* the gate before this one is read */
#pragma unroll 16
        for (int i = threadIdx.x; i < UNITS * HIDDEN; i += THREADS)
            to[i / HIDDEN * STAGED_ROW + i % HIDDEN] = i < left ? real(from[i]) : 0.0f;
        __syncthreads();
    }
};

/* An FMA waits for the one before it in the same sum: a thread that has few sums splits each. */
constexpr int CHAINS = ROWS * SUMMED >= 4 ? 1 : ROWS * SUMMED >= 2 ? 2 : 4;

struct Sums
{
    float of[ROWS][SUMMED], chains[CHAINS][ROWS][SUMMED];

    DEVICE void fill(float value)
    {
#pragma unroll
        for (int row = 0; row < ROWS; row++)
#pragma unroll
            for (int sum = 0; sum < SUMMED; sum++)
#pragma unroll
                for (int chain = 0; chain < CHAINS; chain++) chains[chain][row][sum] = value;
    }

    DEVICE void add(const Weights &weights, const float4 *staged)
    {
        const int part = threadIdx.x % UNIT_THREADS;
        const float4 *const from = staged + part;
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            if (STAGED_FOURS % UNIT_THREADS != 0 && i * UNIT_THREADS + part >= STAGED_FOURS) continue;
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                const float4 four = from[row * STAGED_FOURS + i * UNIT_THREADS];
                const float factors[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int e = 0; e < 4; e++)
#pragma unroll
                    for (int sum = 0; sum < SUMMED; sum++) {
                        float &to = chains[e % CHAINS][row][sum];
                        to = fmaf(weights.of[sum][i][e], factors[e], to);
                    }
            }
        }
    }

    /* Adds up those of the unit's threads: afterwards of[0] is that of the thread's row. While there
       are several rows, half of the threads take half of them from the others, who take the rest. */
    DEVICE void total()
    {
        if (threadIdx.x >= CELL_THREADS) return;
#pragma unroll
        for (int row = 0; row < ROWS; row++)
#pragma unroll
            for (int sum = 0; sum < SUMMED; sum++) {
                float all = chains[0][row][sum];
#pragma unroll
                for (int chain = 1; chain < CHAINS; chain++) all += chains[chain][row][sum];
                of[row][sum] = all;
            }
        int rows = ROWS;
#pragma unroll
        for (int distance = UNIT_THREADS / 2; distance > 0; distance /= 2) {
            const bool upper = threadIdx.x & distance;
            const int half = rows / 2;
            if (rows > 1) {
#pragma unroll
                for (int row = 0; row < half; row++)
#pragma unroll
                    for (int sum = 0; sum < SUMMED; sum++) {
                        const float first = of[row][sum], second = of[half + row][sum];
                        of[row][sum] =
                            (upper ? second : first) + __shfl_xor_sync(~0u, upper ? first : second, distance);
                    }
                rows = half;
            } else {
#pragma unroll
                for (int sum = 0; sum < SUMMED; sum++)
                    of[0][sum] += __shfl_xor_sync(~0u, of[0][sum], distance);
            }
        }
        if (ALIKE > 1) __syncwarp(); /* all have read the inputs that one of them will overwrite */
    }
};

/* The sums of a thread's cell: no other thread has a part of them. */
struct PartialSums
{
    float of[SUMMED];

    DEVICE PartialSums(float *, int) {}

    DEVICE void write(Sums &sums, int, int)
    {
        sums.total();
#pragma unroll
        for (int sum = 0; sum < SUMMED; sum++) of[sum] = sums.of[0][sum];
    }

    DEVICE void add_up(float *sums, const Task &, int) const
    {
#pragma unroll
        for (int sum = 0; sum < SUMMED; sum++) sums[sum] = of[sum];
    }
};

struct Fma
{
    using Weights = dnnffi::Weights;
    using Factor = Element; /* of the matrices */
    /* Weights go to registers at once, while the ring is filled. */
    static constexpr bool WEIGHTS_PASS_THROUGH_RING = false;
    /* The threads of a cell add up their sums among themselves. */
    static constexpr bool REDUCES_THROUGH_SHARED = false;
};

} // namespace dnnffi
