/* Kernels that pack rows of unequal length and unpack them; see packed_rows.cuh. */

#include "kernel_config.cuh"
#include "lanes.cuh"
#include "packed_rows.cuh"

namespace dnnffi {

using Piece = Config::Piece;
constexpr int MAX_ROWS = Config::MAX_ROWS, ROWS_PER_BLOCK = Config::ROWS_PER_BLOCK;
constexpr int MAX_ARRAYS = Config::MAX_ARRAYS, WARPS = Config::ROW_WARPS; /* of a block */

/* Clears what groups of the recurrence exchange, before its kernel starts. */
static DEVICE void clear_words(uint4 *cleared, long long count)
{
    const long long all = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += all)
        cleared[i] = make_uint4(0, 0, 0, 0);
}

/* The lengths of all rows, in the caller's order. They reach the device as an argument of a launch:
   no memory of the host has to outlive the call, also where the launch is captured and replayed. */
struct Lengths
{
    long long batch;
    int of_row[MAX_ROWS]; /* [batch] */
};

/* Lengths that the caller keeps in device memory. Others than 0 to T count as the nearest of these. */
struct DeviceLengths
{
    long long batch;
    const int *of_row; /* [batch] */

    DEVICE int length(long long row, int steps) const
    {
        const int found = of_row[row];
        return found < 0 ? 0 : found < steps ? found : steps;
    }
};

/* Whether a row precedes another one in the tables: longer ones do, and of equal ones the first. */
static DEVICE bool precedes(int length, long long row, int other_length, long long other)
{
    return length > other_length || (length == other_length && row < other);
}

/* Fills a row of one step with zeros, by the threads of a warp. */
template <class Wide> static DEVICE void fill_with_zeros(unsigned char *row, long long bytes)
{
    const Wide zero = {};
    for (long long piece = threadIdx.x % 32; piece < bytes / (long long)sizeof(Wide); piece += 32)
        ((Wide *)row)[piece] = zero;
}

/* T, B: steps and rows of the padded arrays; strides are in rows. */
struct BeginParams
{
    const Piece *padded; /* [T, B, pieces] or [B, T, pieces]; null: it is not packed */
    Piece *packed;       /* [positions, pieces] */
    int *step_offsets;   /* the tables, see packed_rows.cuh */
    int *lengths;
    int *caller_rows;
    uint4 *of_forward; /* what the groups of the forward kernel exchange: it is cleared */
    long long forward_count;
    uint4 *of_backward; /* the same of the backward kernel */
    long long backward_count;
    long long parts; /* blocks of a step, with ROWS_PER_BLOCK rows each */
    long long step_stride;
    long long row_stride;
    long long pieces;
    unsigned char *y; /* padded, rows of `y_row_bytes`; null: rows are packed already */
    long long y_row_bytes;
};

constexpr int THREADS_PER_ROW = 8;  /* that find its rank together */
constexpr int PIECES_IN_FLIGHT = 4; /* of x, by a thread */

/* Shared memory of a block that begins a forward pass, after the lengths of all rows. */
struct PartOfStep
{
    int ranks[ROWS_PER_BLOCK];          /* places of the block's rows among all, sorted */
    u32 earlier[WARPS], present[WARPS]; /* rows of all earlier steps and of this one, as each warp counts */

    /* Finds the ranks of rows `first` to `end`. Rows of equal length keep their order, so that the sums of
       gradients have the same order in every call. */
    DEVICE void find_ranks(const int *lengths, int batch, int first, int end)
    {
        const int sharer = threadIdx.x % THREADS_PER_ROW;
        for (int start = first; start < end; start += blockDim.x / THREADS_PER_ROW) {
            const int row = start + threadIdx.x / THREADS_PER_ROW, length = row < end ? lengths[row] : 0;
            u32 rank = 0;
#pragma unroll 4
            for (int other = sharer; other < batch; other += THREADS_PER_ROW)
                rank += precedes(lengths[other], other, length, row);
            rank = sum_of_lanes(rank, THREADS_PER_ROW);
            if (row < end && sharer == 0) ranks[row - first] = rank;
        }
    }

    /* Each warp counts some of the rows of all earlier steps and of this one. */
    DEVICE void count_rows(const int *lengths, int batch, int step)
    {
        u32 before = 0, now = 0;
        for (int row = threadIdx.x; row < batch; row += blockDim.x) {
            before += lengths[row] < step ? lengths[row] : step;
            now += lengths[row] > step;
        }
        before = sum_of_lanes(before, 32);
        now = sum_of_lanes(now, 32);
        if (threadIdx.x % 32 == 0) {
            earlier[threadIdx.x / 32] = before;
            present[threadIdx.x / 32] = now;
        }
    }
};

/* Copies the rows `first` to `end` that have this step to the places of their ranks from `packed` on. */
static DEVICE void pack(const BeginParams &params, const int *lengths, const int *ranks, int first, int end,
                        long long step, Piece *packed)
{
    const u32 pieces = params.pieces, all = (end - first) * pieces;
    for (u32 start = threadIdx.x; start < all; start += PIECES_IN_FLIGHT * blockDim.x) {
        Piece loaded[PIECES_IN_FLIGHT];
        Piece *to[PIECES_IN_FLIGHT] = {};
#pragma unroll
        for (int n = 0; n < PIECES_IN_FLIGHT; n++) {
            const u32 i = start + n * blockDim.x;
            if (i >= all || lengths[first + i / pieces] <= step) continue;
            const long long place = step * params.step_stride + (first + i / pieces) * params.row_stride;
            loaded[n] = params.padded[place * pieces + i % pieces];
            to[n] = packed + (long long)ranks[i / pieces] * pieces + i % pieces;
        }
#pragma unroll
        for (int n = 0; n < PIECES_IN_FLIGHT; n++) {
            if (to[n]) *to[n] = loaded[n];
        }
    }
}

/* Fills the rows `first` to `end` of y that have ended before a step with zeros. */
static DEVICE void fill_ended(const BeginParams &params, const int *lengths, int first, int end,
                              long long step)
{
    const unsigned long long alignment = (unsigned long long)params.y | params.y_row_bytes;
    for (int row = first + threadIdx.x / 32; row < end; row += blockDim.x / 32) {
        if (lengths[row] > step) continue;
        const long long place = step * params.step_stride + row * params.row_stride;
        unsigned char *ended = params.y + place * params.y_row_bytes;
        /* y need not be aligned as x is: the widest type that fits */
        if (alignment % sizeof(uint4) == 0) fill_with_zeros<uint4>(ended, params.y_row_bytes);
        else if (alignment % sizeof(u32) == 0) fill_with_zeros<u32>(ended, params.y_row_bytes);
        else fill_with_zeros<unsigned short>(ended, params.y_row_bytes);
    }
}

/* Stores the tables, packs `padded` (unless it is null) and clears what the groups of the forward kernel and
   those of the backward kernel exchange. The recurrent kernel writes the rows of `y`; past their ends they get
   zeros here. A block has some rows of one step, of which it finds the ranks: no block waits for another. Grid:
   steps * parts, with the steps of the padded arrays, of which the last ones may have no rows. ALL_STEPS: these
   have entries in the tables, too. `lengths` [batch] are in shared memory, before a `PartOfStep`. */
template <bool ALL_STEPS> static DEVICE void begin(const BeginParams &params, const int *lengths, int batch)
{
    PartOfStep &part = *(PartOfStep *)(lengths + batch);
    const long long step = blockIdx.x / params.parts, part_number = blockIdx.x % params.parts;
    const int first = part_number * ROWS_PER_BLOCK;
    const int end = first + ROWS_PER_BLOCK < batch ? first + ROWS_PER_BLOCK : batch;
    clear_words(params.of_forward, params.forward_count);
    clear_words(params.of_backward, params.backward_count);
    if (params.y) fill_ended(params, lengths, first, end, step);
    if (!params.padded && step > 0 && part_number > 0) return; /* it neither packs nor stores anything */
    if (params.padded || step == 0) part.find_ranks(lengths, batch, first, end);
    part.count_rows(lengths, batch, step);
    __syncthreads();
    u32 offset = 0, count = 0;
    for (int warp = 0; warp < WARPS; warp++) {
        offset += part.earlier[warp];
        count += part.present[warp];
    }
    if (part_number == 0 && threadIdx.x == 0 && (ALL_STEPS || count > 0)) {
        params.step_offsets[step] = offset;
        params.step_offsets[step + 1] = offset + count; /* as the block of that step does, or the last one */
    }
    if (step == 0) {
        for (int row = first + threadIdx.x; row < end; row += blockDim.x) {
            params.lengths[part.ranks[row - first]] = lengths[row];
            params.caller_rows[part.ranks[row - first]] = row;
        }
    }
    if (params.padded)
        pack(params, lengths, part.ranks, first, end, step, params.packed + offset * params.pieces);
}

/* Shared memory: int [batch] and a `PartOfStep`, also of the next kernel. */
extern "C" __global__ void begin_rows(const __grid_constant__ BeginParams params,
                                      const __grid_constant__ Lengths rows)
{
    extern __shared__ __align__(16) unsigned char memory[];
    int *lengths = (int *)memory;
    for (int row = threadIdx.x; row < rows.batch; row += blockDim.x) lengths[row] = rows.of_row[row];
    __syncthreads();
    begin<false>(params, lengths, rows.batch);
}

extern "C" __global__ void begin_rows_of_device(const __grid_constant__ BeginParams params,
                                                const __grid_constant__ DeviceLengths rows)
{
    extern __shared__ __align__(16) unsigned char memory[];
    int *lengths = (int *)memory;
    const int steps = gridDim.x / params.parts;
    for (int row = threadIdx.x; row < rows.batch; row += blockDim.x) lengths[row] = rows.length(row, steps);
    __syncthreads();
    begin<true>(params, lengths, rows.batch);
}

struct TableParams
{
    const int *of_row; /* [B]: lengths in device memory, in the caller's order */
    long long batch;
    long long steps;   /* T */
    int *step_offsets; /* the tables, see packed_rows.cuh */
    int *lengths;
    int *caller_rows;
};

/* Makes the tables of more rows than `begin_rows_of_device` ranks: a thread finds the place of one row, and the
   offset of one step, from the lengths of all rows. Grid: a thread for each row, and for each of T + 1 offsets;
   shared memory: an int a thread. */
extern "C" __global__ void make_tables(const __grid_constant__ TableParams params)
{
    extern __shared__ __align__(16) unsigned char memory[];
    int *const others = (int *)memory;
    const int steps = params.steps, number = blockIdx.x * blockDim.x + threadIdx.x;
    const DeviceLengths rows{params.batch, params.of_row};
    const auto length_of = [&](long long row) { return row < rows.batch ? rows.length(row, steps) : 0; };
    const int length = length_of(number);
    int rank = 0, offset = 0;
    for (long long first = 0; first < params.batch; first += blockDim.x) {
        others[threadIdx.x] = length_of(first + threadIdx.x);
        __syncthreads();
        const long long left = params.batch - first;
        for (int i = 0; i < blockDim.x && i < left; i++) {
            rank += precedes(others[i], first + i, length, number);
            offset += others[i] < number ? others[i] : number;
        }
        __syncthreads();
    }
    if (number < params.batch) {
        params.lengths[rank] = length;
        params.caller_rows[rank] = number;
    }
    if (number <= steps) params.step_offsets[number] = offset;
}

/* Arrays of as many positions as the rows may have at most. */
struct ClearParams
{
    const int *step_offsets; /* [steps + 1] */
    long long steps;
    long long positions;
    long long blocks;                  /* of each array */
    unsigned char *arrays[MAX_ARRAYS]; /* the first position of each */
    long long row_bytes[MAX_ARRAYS];   /* bytes of a position of each */
};

/* Clears the positions that no row has: sums over all positions read them, since the host does not know how
   many positions the rows have. Grid: blocks * arrays. */
extern "C" __global__ void clear_unused(const __grid_constant__ ClearParams params)
{
    const long long number = blockIdx.x / params.blocks, block = blockIdx.x % params.blocks;
    const long long row_bytes = params.row_bytes[number];
    const long long first = params.step_offsets[params.steps] * row_bytes / (long long)sizeof(Piece);
    const long long end = params.positions * row_bytes / (long long)sizeof(Piece);
    Piece *const array = (Piece *)params.arrays[number];
    const long long threads = params.blocks * blockDim.x;
    for (long long i = first + block * blockDim.x + threadIdx.x; i < end; i += threads) array[i] = Piece{};
}

/* A part of the tables of a larger batch than `begin_rows` takes. */
struct Entries
{
    int *target; /* [count] */
    long long count;
    int values[MAX_ROWS]; /* the first `count` are stored */
};

extern "C" __global__ void store_entries(const __grid_constant__ Entries entries)
{
    for (int i = threadIdx.x; i < entries.count; i += blockDim.x) entries.target[i] = entries.values[i];
}

struct GatherParams
{
    const Piece *padded; /* [T, B, pieces] or [B, T, pieces] */
    Piece *packed;       /* [positions, pieces] */
    const int *step_offsets;
    const int *caller_rows;
    long long steps;
    long long batch;
    long long step_stride; /* in rows, of the padded array */
    long long row_stride;  /* likewise */
    long long pieces;
};

/* Packs a padded array by tables that are stored. */
extern "C" __global__ void gather_rows(const __grid_constant__ GatherParams params)
{
    const long long warps = (long long)gridDim.x * blockDim.x / 32;
    const long long first = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (long long i = first; i < params.steps * params.batch; i += warps) {
        const long long step = i / params.batch, row = i % params.batch;
        const long long position = params.step_offsets[step] + row;
        if (position >= params.step_offsets[step + 1]) continue;
        const Piece *from =
            params.padded +
            (step * params.step_stride + params.caller_rows[row] * params.row_stride) * params.pieces;
        Piece *to = params.packed + position * params.pieces;
        for (long long piece = threadIdx.x % 32; piece < params.pieces; piece += 32) to[piece] = from[piece];
    }
}

extern "C" __global__ void scatter_rows(const __grid_constant__ PackedCopy copy)
{
    copy.unpack<Piece>(blockIdx.x, gridDim.x);
}

} // namespace dnnffi
