#pragma once
/* Rows of unequal length, sorted by decreasing length. A row is one sequence of the batch; in one step it consists
   of `pieces` pieces of type Piece. Tables say where the kernels' own arrays have it (see `rows.py`):
     lengths [batch], caller_rows [batch], first_positions [batch], step_offsets [steps + 1] or null
   Its position in a step is first_positions[row], and beyond that step_offsets[step], or without these offsets a
   constant distance for each step before: one position where rows lie one after the other without padding.

   Padded arrays are [steps, batch, pieces] or [batch, steps, pieces]; `step_stride` and `row_stride` are theirs,
   in rows of a step. A warp copies one row of one step. */

#include "basics.cuh"

namespace dnnffi {

/* Copies rows that lie one after the other to a padded array; past the end of a row it writes zeros. */
struct PaddedCopy
{
    const void *source; /* [positions, row_bytes] */
    void *padded;       /* [steps, batch, row_bytes] or [batch, steps, row_bytes] */
    const int *lengths, *caller_rows, *first_positions;
    long long steps, batch; /* of the padded array */
    long long step_stride, row_stride;
    long long row_bytes;

    /* The part of a block of some; the pieces of a row are of type Piece. */
    template <class Piece> DEVICE void copy(long long block, long long blocks) const
    {
        const long long warps = blocks * blockDim.x / 32, pieces = row_bytes / sizeof(Piece);
        for (long long i = (block * blockDim.x + threadIdx.x) / 32; i < steps * batch; i += warps) {
            const long long step = i / batch, row = i % batch;
            Piece *to = (Piece *)padded + (step * step_stride + caller_rows[row] * row_stride) * pieces;
            const bool is_stored = step < lengths[row];
            const Piece *from =
                (const Piece *)source + (is_stored ? first_positions[row] + step : 0) * pieces;
            const Piece zero = {};
            for (long long piece = threadIdx.x % 32; piece < pieces; piece += 32)
                to[piece] = is_stored ? from[piece] : zero;
        }
    }
};

} // namespace dnnffi
