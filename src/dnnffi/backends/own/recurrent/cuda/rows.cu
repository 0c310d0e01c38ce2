/* Kernels that order rows of unequal length, and copy them to the kernels' own arrays and back; see
   ragged_rows.cuh. */

#include "kernel_config.cuh"
#include "lanes.cuh"
#include "ragged_rows.cuh"

namespace dnnffi {

using Piece = Config::Piece;
constexpr int MAX_ROWS = Config::MAX_ROWS, MAX_ARRAYS = Config::MAX_ARRAYS;
/* A block that begins a forward pass has a warp for each of its rows. */
constexpr int ROWS_PER_BLOCK = Config::ROWS_PER_BLOCK, STEPS_PER_BLOCK = Config::STEPS_PER_BLOCK;

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

/* Layouts of the kernels' own arrays. */
enum Places : long long {
    ROW_AFTER_ROW = 0, /* without padding */
    STEP_AFTER_STEP,   /* without padding, as the caller's packed arrays: rows are sorted already */
    AS_PADDED          /* as the caller's padded arrays */
};

/* T, B: steps and rows of the padded arrays; strides are in rows of a step. */
struct BeginParams
{
    const Piece *x; /* [T, B, pieces] or [B, T, pieces]; null: it is not copied */
    Piece *copy;    /* [positions, pieces] */
    int *lengths;   /* the tables, see ragged_rows.cuh */
    int *caller_rows;
    int *first_positions;
    int *step_offsets; /* null unless STEP_AFTER_STEP */
    Places places;
    uint4 *of_forward; /* what the groups of the forward kernel exchange: it is cleared */
    long long forward_count;
    uint4 *of_backward; /* the same of the backward kernel */
    long long backward_count;
    long long steps; /* T */
    long long parts; /* blocks of the same steps, with ROWS_PER_BLOCK rows each */
    long long step_stride;
    long long row_stride;
    long long pieces;
    unsigned char *y; /* padded, rows of `y_row_bytes`; null: rows are packed already */
    long long y_row_bytes;
};

constexpr int PIECES_IN_FLIGHT = 4; /* of x, by a thread */

/* The rows and steps of a block that begins a forward pass. `lengths` are those of all rows. */
struct Part
{
    const int *lengths;
    int batch, first_row, first_step, end_step;

    DEVICE Part(const BeginParams &params, const int *lengths_, int batch_)
        : lengths(lengths_), batch(batch_), first_row(blockIdx.x % params.parts * ROWS_PER_BLOCK),
          first_step(blockIdx.x / params.parts * STEPS_PER_BLOCK)
    {
        const int end = first_step + STEPS_PER_BLOCK;
        end_step = end < params.steps ? end : params.steps;
    }

    /* The row of a warp, and whether there is one. */
    DEVICE int row() const { return first_row + threadIdx.x / 32; }
    DEVICE bool has_row() const { return row() < batch; }

    /* Stores what the tables have of a warp's row, if the block has the first steps; leaves in `first_positions`, in
       shared memory, where the copies of the block's rows begin. Rows of equal length keep their order, so that the
       sums of gradients have the same order in every call. */
    DEVICE void place_row(const BeginParams &params, int *first_positions) const
    {
        if (!has_row()) return;
        const int number = row(), length = lengths[number], lane = threadIdx.x % 32;
        u32 rank = 0, before = 0;
        for (int other = lane; other < batch; other += 32) {
            const bool is_before = precedes(lengths[other], other, length, number);
            rank += is_before;
            before += is_before ? lengths[other] : 0;
        }
        rank = sum_of_lanes(rank, 32);
        before = sum_of_lanes(before, 32);
        if (lane != 0) return;
        first_positions[number - first_row] = before;
        if (first_step > 0) return;
        params.lengths[rank] = length;
        params.caller_rows[rank] = number;
        params.first_positions[rank] = params.places == ROW_AFTER_ROW     ? before
                                       : params.places == STEP_AFTER_STEP ? rank
                                                                          : number * params.row_stride;
    }

    /* Stores the offsets of the block's steps, and of the end of all: a step has the rows that have not ended before
       it. Each warp counts for a step. */
    DEVICE void store_offsets(int *offsets, int steps) const
    {
        const int step = first_step + threadIdx.x / 32;
        if (threadIdx.x / 32 >= STEPS_PER_BLOCK || step > steps) return;
        u32 before = 0;
        for (int row = threadIdx.x % 32; row < batch; row += 32)
            before += lengths[row] < step ? lengths[row] : step;
        before = sum_of_lanes(before, 32);
        if (threadIdx.x % 32 == 0) offsets[step] = before;
    }

    /* Copies x of the block's rows. AS_PADDED, what is past the end of a row becomes zeros. */
    DEVICE void copy_x(const BeginParams &params, const int *first_positions) const
    {
        const u32 pieces = params.pieces, all = STEPS_PER_BLOCK * ROWS_PER_BLOCK * pieces;
        for (u32 start = threadIdx.x; start < all; start += PIECES_IN_FLIGHT * blockDim.x) {
            Piece loaded[PIECES_IN_FLIGHT] = {};
            Piece *to[PIECES_IN_FLIGHT] = {};
#pragma unroll
            for (int n = 0; n < PIECES_IN_FLIGHT; n++) {
                const u32 i = start + n * blockDim.x, of_rows = i / pieces, piece = i % pieces;
                const int in_block = of_rows % ROWS_PER_BLOCK, row = first_row + in_block;
                const int step = first_step + of_rows / ROWS_PER_BLOCK;
                if (i >= all || row >= batch || step >= end_step) continue;
                const bool ended = step >= lengths[row];
                if (ended && params.places != AS_PADDED) continue;
                const long long place = step * params.step_stride + row * params.row_stride;
                if (!ended) loaded[n] = params.x[place * pieces + piece];
                const long long position =
                    params.places == AS_PADDED ? place : (long long)first_positions[in_block] + step;
                to[n] = params.copy + position * pieces + piece;
            }
#pragma unroll
            for (int n = 0; n < PIECES_IN_FLIGHT; n++) {
                if (to[n]) *to[n] = loaded[n];
            }
        }
    }

    /* Fills the steps of a warp's row of y that are past its end with zeros. */
    DEVICE void fill_ended(const BeginParams &params) const
    {
        if (!has_row()) return;
        const unsigned long long alignment = (unsigned long long)params.y | params.y_row_bytes;
        const int length = lengths[row()];
        for (int step = first_step > length ? first_step : length; step < end_step; step++) {
            const long long place = step * params.step_stride + row() * params.row_stride;
            unsigned char *ended = params.y + place * params.y_row_bytes;
            /* y need not be aligned as x is: the widest type that fits */
            if (alignment % sizeof(uint4) == 0) fill_with_zeros<uint4>(ended, params.y_row_bytes);
            else if (alignment % sizeof(u32) == 0) fill_with_zeros<u32>(ended, params.y_row_bytes);
            else fill_with_zeros<unsigned short>(ended, params.y_row_bytes);
        }
    }
};

/* Stores the tables, copies `x` (unless it is null) and clears what the groups of the forward kernel and those of the
   backward kernel exchange. The recurrent kernel writes the rows of `y`; past their ends they get zeros here. A block
   finds the places of its own rows: none waits for another. Grid: `parts` blocks for each STEPS_PER_BLOCK of T + 1
   steps. `lengths` [batch] are in shared memory, before an int for each of ROWS_PER_BLOCK. */
static DEVICE void begin(const BeginParams &params, int *lengths, int batch)
{
    const Part part(params, lengths, batch);
    int *const first_positions = lengths + batch;
    clear_words(params.of_forward, params.forward_count);
    clear_words(params.of_backward, params.backward_count);
    if (params.y) part.fill_ended(params);
    if (params.step_offsets && part.first_row == 0) part.store_offsets(params.step_offsets, params.steps);
    if (part.first_step == 0 || (params.x && params.places == ROW_AFTER_ROW))
        part.place_row(params, first_positions);
    if (!params.x) return;
    __syncthreads();
    part.copy_x(params, first_positions);
}

/* Shared memory: int [batch + ROWS_PER_BLOCK], also of the next kernel. */
extern "C" __global__ void begin_rows(const __grid_constant__ BeginParams params,
                                      const __grid_constant__ Lengths rows)
{
    extern __shared__ __align__(16) unsigned char memory[];
    int *lengths = (int *)memory;
    for (int row = threadIdx.x; row < rows.batch; row += blockDim.x) lengths[row] = rows.of_row[row];
    __syncthreads();
    begin(params, lengths, rows.batch);
}

extern "C" __global__ void begin_rows_of_device(const __grid_constant__ BeginParams params,
                                                const __grid_constant__ DeviceLengths rows)
{
    extern __shared__ __align__(16) unsigned char memory[];
    int *lengths = (int *)memory;
    const int steps = params.steps;
    for (int row = threadIdx.x; row < rows.batch; row += blockDim.x) lengths[row] = rows.length(row, steps);
    __syncthreads();
    begin(params, lengths, rows.batch);
}

struct TableParams
{
    const int *of_row; /* [B]: lengths in device memory, in the caller's order */
    long long batch;
    long long steps;      /* T */
    long long row_stride; /* positions from a row to the next, which are AS_PADDED */
    int *lengths;         /* the tables, see ragged_rows.cuh */
    int *caller_rows;
    int *first_positions;
};

/* Makes the tables of more rows than `begin_rows_of_device` ranks: a thread finds the place of a row from the lengths
   of all rows. Grid: a thread for each row; shared memory: an int a thread. */
extern "C" __global__ void make_tables(const __grid_constant__ TableParams params)
{
    extern __shared__ __align__(16) unsigned char memory[];
    int *const others = (int *)memory;
    const int steps = params.steps, number = blockIdx.x * blockDim.x + threadIdx.x;
    const DeviceLengths rows{params.batch, params.of_row};
    const auto length_of = [&](long long row) { return row < rows.batch ? rows.length(row, steps) : 0; };
    const int length = length_of(number);
    int rank = 0;
    for (long long first = 0; first < params.batch; first += blockDim.x) {
        others[threadIdx.x] = length_of(first + threadIdx.x);
        __syncthreads();
        const long long left = params.batch - first;
        for (int i = 0; i < blockDim.x && i < left; i++)
            rank += precedes(others[i], first + i, length, number);
        __syncthreads();
    }
    if (number >= params.batch) return;
    params.lengths[rank] = length;
    params.caller_rows[rank] = number;
    params.first_positions[rank] = number * params.row_stride;
}

/* Arrays whose rows are AS_PADDED. */
struct ClearParams
{
    const int *lengths; /* tables, see ragged_rows.cuh */
    const int *caller_rows;
    long long batch;
    long long steps;
    long long step_stride;             /* in positions */
    long long row_stride;              /* likewise */
    long long part_steps;              /* of a row, that a block clears */
    long long count;                   /* of arrays */
    unsigned char *arrays[MAX_ARRAYS]; /* the first position of each */
    long long row_bytes[MAX_ARRAYS];   /* bytes of a position of each */
};

/* Clears the positions past the ends of rows: sums over all positions read them. Grid: a block for each part of each
   row. */
extern "C" __global__ void clear_ended(const __grid_constant__ ClearParams params)
{
    const long long start = blockIdx.x / params.batch * params.part_steps, row = blockIdx.x % params.batch;
    const long long length = params.lengths[row], limit = start + params.part_steps;
    const long long first = start > length ? start : length;
    const long long end = limit < params.steps ? limit : params.steps;
    if (first >= end) return;
    const long long of_row = params.caller_rows[row] * params.row_stride;
    for (int number = 0; number < params.count; number++) {
        const u32 pieces = params.row_bytes[number] / sizeof(Piece), all = (end - first) * pieces;
        Piece *const array = (Piece *)params.arrays[number];
        for (u32 i = threadIdx.x; i < all; i += blockDim.x) {
            const long long position = (first + i / pieces) * params.step_stride + of_row;
            array[position * pieces + i % pieces] = Piece{};
        }
    }
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
    const Piece *x; /* [T, B, pieces] or [B, T, pieces] */
    Piece *copy;    /* [positions, pieces] */
    const int *lengths;
    const int *caller_rows;
    const int *first_positions; /* null: rows of the copy are AS_PADDED */
    long long steps;
    long long batch;
    long long step_stride; /* in rows, of the padded array */
    long long row_stride;  /* likewise */
    long long pieces;
};

/* Copies x as `begin_rows` does, by tables that are stored. */
extern "C" __global__ void gather_rows(const __grid_constant__ GatherParams params)
{
    const long long warps = (long long)gridDim.x * blockDim.x / 32;
    const long long first = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (long long i = first; i < params.steps * params.batch; i += warps) {
        const long long step = i / params.batch, row = i % params.batch;
        const bool ended = step >= params.lengths[row];
        if (ended && params.first_positions) continue;
        const long long place = step * params.step_stride + params.caller_rows[row] * params.row_stride;
        const long long position = params.first_positions ? params.first_positions[row] + step : place;
        const Piece *from = params.x + place * params.pieces;
        const Piece zero = {};
        Piece *to = params.copy + position * params.pieces;
        for (long long piece = threadIdx.x % 32; piece < params.pieces; piece += 32)
            to[piece] = ended ? zero : from[piece];
    }
}

extern "C" __global__ void scatter_rows(const __grid_constant__ PaddedCopy copy)
{
    copy.copy<Piece>(blockIdx.x, gridDim.x);
}

} // namespace dnnffi
