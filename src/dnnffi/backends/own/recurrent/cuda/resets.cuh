#pragma once
/* Resets: before a step the state of a row is replaced, by zeros or by one that the caller gives. A border lies
   between the step whose number is flagged and the one before it, in both directions of a network. So a state is
   replaced right after the step that computes it: the other state is sent, and kept for the next step, while y
   has the computed one. Backward no gradient passes a border; what arrives there is the gradient of the other
   state. */

#include "block.cuh"
#include "params.cuh"
#include "ptx_l2.cuh"
#include "ring.cuh"
#include "tasks.cuh"

namespace dnnffi {

struct ResetLayout
{
    const unsigned char *flags;
    long long step_stride, row_stride; /* both 0 where the flags are packed */

    template <class Params>
    DEVICE ResetLayout(const Params &params)
        : flags(params.resets), step_stride(params.reset_step_stride), row_stride(params.reset_row_stride)
    {
    }

    /* The step that has the flag of the border after a row's step number `step`, which is counted in the
       direction of the network; step -1 precedes the first. Without a border (see `has_border`) it is some step
       of the row, whose place can be computed. */
    DEVICE static int flagged_step(const RowLayout &layout, int step, int length)
    {
        const int wanted = layout.reverse ? length - 1 - step : step + 1;
        const int last = PACKED && length == 0 ? 0 : length - 1;
        return wanted < 0 ? 0 : wanted < last ? wanted : last;
    }

    DEVICE bool is_packed() const { return PACKED && step_stride == 0; }

    /* The flag of a row's step; where flags are packed, of its first: `offsets` has the distance. */
    DEVICE const unsigned char *place(const RowLayout &layout, int step, int row) const
    {
        const int there = row < layout.batch ? row : layout.batch - 1;
        if (is_packed()) return flags + there;
        return flags + step * step_stride + layout.caller_row(there) * row_stride;
    }

    DEVICE u32 flag_after(const RowLayout &layout, int step, int row, int length) const
    {
        const int flagged = flagged_step(layout, step, length);
        return place(layout, flagged, row)[is_packed() ? layout.offsets[flagged] : 0];
    }

    /* Whether a row has a step after number `step`, and a border between the two. */
    DEVICE static bool has_border(const RowLayout &layout, int step, int length)
    {
        return step + 1 < length && !(layout.reverse && step < 0);
    }
};

/* The flags after a step of a thread's cells, and those after the next step of the pass, which are loaded
   meanwhile: a step may take no longer than a load. What a multiprocessor reads comes back in order, so flags are
   asked for before the step's inputs are, and not among the words of an exchange. Of each cell the place of the
   flag is kept, since its address takes longer to compute than the rest of what resets add to a step. Of a step
   without a border no flag is loaded, and the one before it stays. */
struct StepResets
{
    u32 flags[SUBTILES][WARP_TASKS][CELLS], next[SUBTILES][WARP_TASKS][CELLS];
    const unsigned char *place[SUBTILES][WARP_TASKS][CELLS]; /* of the flag to be loaded next */
    int offset[SUBTILES][WARP_TASKS][CELLS]; /* of packed flags: added to the place, loaded a step before */

    /* Loads the flags after the first two steps of the pass. */
    DEVICE StepResets(const ResetLayout &resets, const RowLayout &layout, const Block &block, int num_steps,
                      const int (&lengths)[SUBTILES][WARP_TASKS][CELLS])
    {
        if (!RESETS) return;
        const int step = BACKWARD ? num_steps - 1 : 0;
#pragma unroll
        for (int sub = 0; sub < SUBTILES; sub++) {
#pragma unroll
            for (int i = 0; i < WARP_TASKS; i++) {
                const Task task(i, block.warp, block.lane);
#pragma unroll
                for (int e = 0; e < CELLS; e++) {
                    const int row = block.first_row + sub * ROWS + task.row + e;
                    const int flagged = ResetLayout::flagged_step(layout, step, lengths[sub][i][e]);
                    place[sub][i][e] = resets.place(layout, flagged, row);
                    if (resets.is_packed()) offset[sub][i][e] = layout.offsets[flagged];
                }
            }
            load(resets, layout, step, sub, lengths);
            advance(resets, layout, BACKWARD ? step + 1 : step - 1, sub, lengths);
        }
    }

    /* At the end of step number `step`: the flags loaded last, which are awaited here as by `PassCursor::settle`,
       are those after the next step. Loads those after the step that follows it. */
    DEVICE void advance(const ResetLayout &resets, const RowLayout &layout, int step, int sub,
                        const int (&lengths)[SUBTILES][WARP_TASKS][CELLS])
    {
        if (!RESETS) return;
#pragma unroll
        for (int i = 0; i < WARP_TASKS; i++)
#pragma unroll
            for (int e = 0; e < CELLS; e++) {
                flags[sub][i][e] = opaque(next[sub][i][e] != 0);
                if (PACKED) offset[sub][i][e] = offset[sub][i][e] > 0 ? offset[sub][i][e] : 0;
            }
        load(resets, layout, BACKWARD ? step - 2 : step + 2, sub, lengths);
    }

    DEVICE bool at(int sub, int i, int e, const RowLayout &layout, int step, int length) const
    {
        return flags[sub][i][e] != 0 && ResetLayout::has_border(layout, step, length);
    }

  private:
    /* Loads the flags after number `step`, and goes on to those after the step that follows in the pass. */
    DEVICE void load(const ResetLayout &resets, const RowLayout &layout, int step, int sub,
                     const int (&lengths)[SUBTILES][WARP_TASKS][CELLS])
    {
        const long long along = layout.reverse != BACKWARD ? -resets.step_stride : resets.step_stride;
#pragma unroll
        for (int i = 0; i < WARP_TASKS; i++)
#pragma unroll
            for (int e = 0; e < CELLS; e++) {
                const int length = lengths[sub][i][e];
                const unsigned char *&at = place[sub][i][e];
                const bool wanted = ResetLayout::has_border(layout, step, length);
                if (resets.is_packed()) {
                    int &from = offset[sub][i][e];
                    load_flag_if(wanted, next[sub][i][e], at + from);
                    const int following = BACKWARD ? step - 1 : step + 1;
                    from = layout.offsets[ResetLayout::flagged_step(layout, following, length)];
                    continue;
                }
                load_flag_if(wanted, next[sub][i][e], at);
                if (flag_moves(layout, step, length)) at += along;
            }
    }

    /* Whether the flag after the step that follows number `step` in the pass is another one. */
    DEVICE static bool flag_moves(const RowLayout &layout, int step, int length)
    {
        if (!BACKWARD) return step + 2 < length;
        const int border = layout.reverse ? step - 1 : step;
        return border >= 0 && border < length - 1;
    }
};

} // namespace dnnffi
