#pragma once
/* Resets: before a step the state of a row is replaced, by zeros or by one that the caller gives. A border lies
   between the step whose number is flagged and the one before it, in both directions of a network. So in the
   direction of a pass a state is replaced behind the step that leaves it: what is sent, and kept for the next
   step, is the other one, while y has the state itself. Backward no gradient passes a border; the one that
   arrives there is that of the other state. */

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

    /* The flag behind step number `step` of a row, as the pass counts them: -1 precedes the first. Read without
       a condition, so that nothing waits for it; it counts where a state `can_follow`. */
    DEVICE u32 behind(const RowLayout &layout, int step, int row, int length) const
    {
        const int wanted = layout.reverse ? length - 1 - step : step + 1;
        const int number = wanted < 0 ? 0 : wanted < length ? wanted : length - 1;
        const int clamped = row < layout.batch ? row : layout.batch - 1;
        if (PACKED && step_stride == 0) return flags[layout.offsets[number] + clamped];
        return flags[number * step_stride + layout.caller_row(clamped) * row_stride];
    }

    /* Whether the row has a step behind this one, and a border between them. */
    DEVICE static bool can_follow(const RowLayout &layout, int step, int length)
    {
        return step + 1 < length && !(layout.reverse && step < 0);
    }
};

/* The flags behind a step of a thread's cells, and those behind the next one, which are on their way meanwhile:
   a step of a cluster takes no longer than a load. */
struct StepResets
{
    u32 flags[SUBTILES][WARP_TASKS][CELLS], next[SUBTILES][WARP_TASKS][CELLS];

    /* Asks for the flags behind step number `step`. */
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
                next[sub][i][e] = resets.behind(layout, step, row, lengths[sub][i][e]);
            }
        }
    }

    /* A step begins: the flags that were asked for are those behind it. */
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
        return flags[sub][i][e] != 0 && ResetLayout::can_follow(layout, step, length);
    }
};

} // namespace dnnffi
