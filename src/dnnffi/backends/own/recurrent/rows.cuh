/* Copies between padded sequences of unequal length and packed rows, and the tables that say where
   each packed row is stored: see `rows.py`. A row consists of `pieces` pieces of type PIECE. */

/* Tables reach the device as an argument of a launch: no memory of the host has to outlive the call,
   also where the launch is captured and replayed. */
struct Entries
{
    int *target;    /* [count] */
    long long count;
    int values[960]; /* the first `count` are stored */
};

extern "C" __global__ void store_entries(const __grid_constant__ Entries entries)
{
    for (int i = threadIdx.x; i < entries.count; i += blockDim.x) entries.target[i] = entries.values[i];
}

/* A warp copies one row of one step. `step_stride` and `row_stride` are those of the padded array, in
   rows. padded [steps, batch, pieces] or [batch, steps, pieces], packed [positions, pieces]. */
extern "C" __global__ void gather_rows(
    const PIECE *padded, PIECE *packed, const int *step_offsets, const int *caller_rows,
    long long steps, long long batch, long long step_stride, long long row_stride, long long pieces)
{
    const long long warps = (long long)gridDim.x * blockDim.x / 32;
    const long long first = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (long long i = first; i < steps * batch; i += warps) {
        const long long step = i / batch, row = i % batch;
        const long long position = step_offsets[step] + row;
        if (position >= step_offsets[step + 1]) continue;
        const PIECE *from = padded + (step * step_stride + caller_rows[row] * row_stride) * pieces;
        PIECE *to = packed + position * pieces;
        for (long long piece = threadIdx.x % 32; piece < pieces; piece += 32) to[piece] = from[piece];
    }
}

/* The inverse copy; past the end of a row it writes zeros. `steps` are those of the padded array. */
extern "C" __global__ void scatter_rows(
    const PIECE *packed, PIECE *padded, const int *step_offsets, const int *lengths,
    const int *caller_rows, long long steps, long long batch, long long step_stride,
    long long row_stride, long long pieces)
{
    const long long warps = (long long)gridDim.x * blockDim.x / 32;
    const long long first = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (long long i = first; i < steps * batch; i += warps) {
        const long long step = i / batch, row = i % batch;
        PIECE *to = padded + (step * step_stride + caller_rows[row] * row_stride) * pieces;
        const bool is_stored = step < lengths[row];
        const PIECE *from = packed + (is_stored ? step_offsets[step] + row : 0) * pieces;
        const PIECE zero = {};
        for (long long piece = threadIdx.x % 32; piece < pieces; piece += 32)
            to[piece] = is_stored ? from[piece] : zero;
    }
}
