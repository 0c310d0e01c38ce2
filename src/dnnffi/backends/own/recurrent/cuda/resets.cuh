#pragma once
/* Resets: before a step the state of a row is replaced, by zeros or by one that the caller gives. A border lies
   between the step whose number is flagged and the one before it, in both directions of a network. So a state is
   replaced right after the step that computes it: the other state is sent, and kept for the next step, while y
   has the computed one. Backward no gradient passes a border; what arrives there is the gradient of the other
   state. */

#include "block.cuh"
#include "params.cuh"
#include "ring.cuh"
#include "tasks.cuh"

namespace dnnffi {

struct ResetLayout
{
    const unsigned char *flags;
    long long step_stride, row_stride;

    template <class Params>
    DEVICE ResetLayout(const Params &params)
        : flags(params.resets), step_stride(params.reset_step_stride), row_stride(params.reset_row_stride)
    {
    }

    /* The flag of the border after a row's step number `step`, counted in the direction of the pass; step -1
       precedes the first. Without a border (see `has_border`) the result is some flag of the row: a load under a
       condition would be waited for. */
    DEVICE u32 flag_after(const RowLayout &layout, int step, int row, int length) const
    {
        const int wanted = layout.reverse ? length - 1 - step : step + 1;
        const int last = PACKED && length == 0 ? 0 : length - 1;
        const int number = wanted < 0 ? 0 : wanted < last ? wanted : last;
        const int clamped = row < layout.batch ? row : layout.batch - 1;
        if (PACKED && step_stride == 0) return flags[layout.offsets[number] + clamped];
        return flags[number * step_stride + layout.caller_row(clamped) * row_stride];
    }

    /* Whether a row has a step after number `step`, and a border between the two. */
    DEVICE static bool has_border(const RowLayout &layout, int step, int length)
    {
        return step + 1 < length && !(layout.reverse && step < 0);
    }
};

/* The flags after a step of a thread's cells, and those after the next step, which are loaded meanwhile: a step
   of a cluster takes no longer than a load. */
struct StepResets
{
    u32 flags[SUBTILES][WARP_TASKS][CELLS], next[SUBTILES][WARP_TASKS][CELLS];

    /* Loads the flags after step number `step`. */
    DEVICE void request(const ResetLayout &resets, const RowLayout &layout, const Block &block, int step,
                        int sub, const int (&lengths)[SUBTILES][WARP_TASKS][CELLS])
    {
        if (!RESETS) return;
#pragma unroll
        for (int i = 0; i < WARP_TASKS; i++) {
            const Task task(i, block.warp, block.lane);
#pragma unroll
            for (int e = 0; e < CELLS; e++) {
                const int row = block.first_row + sub * ROWS + task.row + e;
                next[sub][i][e] = resets.flag_after(layout, step, row, lengths[sub][i][e]);
            }
        }
    }

    /* At the beginning of a step: the flags loaded last are those after it. */
    DEVICE void advance(int sub)
    {
        if (!RESETS) return;
#pragma unroll
        for (int i = 0; i < WARP_TASKS; i++)
#pragma unroll
            for (int e = 0; e < CELLS; e++) flags[sub][i][e] = next[sub][i][e];
    }

    DEVICE bool at(int sub, int i, int e, const RowLayout &layout, int step, int length) const
    {
        return flags[sub][i][e] != 0 && ResetLayout::has_border(layout, step, length);
    }
};

} // namespace dnnffi
