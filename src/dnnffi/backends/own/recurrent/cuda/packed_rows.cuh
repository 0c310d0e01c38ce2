#pragma once
/* Packed rows: sequences of unequal length, sorted by decreasing length and stored step by step
   without padding. A row is one sequence of the batch at one step, and consists of `pieces` pieces of
   type Piece. The tables say where packed rows are stored (see `rows.py`):
     step_offsets [steps + 1], lengths [batch], caller_rows [batch]
   Padded arrays are [steps, batch, pieces] or [batch, steps, pieces]; `step_stride` and `row_stride`
   are theirs, in rows. Packed arrays are [positions, pieces]. A warp copies one row of one step. */

#include "basics.cuh"

namespace dnnffi {

/* Copies packed rows to a padded array; past the end of a row it writes zeros. */
struct PackedCopy
{
    const void *packed; /* [positions, row_bytes] */
    void *padded;       /* [steps, batch, row_bytes] or [batch, steps, row_bytes] */
    const int *step_offsets, *lengths, *caller_rows;
    long long steps, batch; /* of the padded array */
    long long step_stride, row_stride;
    long long row_bytes;

    /* The part of a block of some; the pieces of a row are of type Piece. */
    template <class Piece> DEVICE void unpack(long long block, long long blocks) const
    {
        const long long warps = blocks * blockDim.x / 32, pieces = row_bytes / sizeof(Piece);
        for (long long i = (block * blockDim.x + threadIdx.x) / 32; i < steps * batch; i += warps) {
            const long long step = i / batch, row = i % batch;
            Piece *to = (Piece *)padded + (step * step_stride + caller_rows[row] * row_stride) * pieces;
            const bool is_stored = step < lengths[row];
            const Piece *from = (const Piece *)packed + (is_stored ? step_offsets[step] + row : 0) * pieces;
            const Piece zero = {};
            for (long long piece = threadIdx.x % 32; piece < pieces; piece += 32)
                to[piece] = is_stored ? from[piece] : zero;
        }
    }
};

} // namespace dnnffi
