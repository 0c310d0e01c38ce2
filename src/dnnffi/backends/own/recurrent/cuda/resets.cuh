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

    /* The flag of the border after a row's step number `step`, which is counted in the direction of the network; step
       -1 precedes the first. 0 if there is no row, or the row has no step before or after that border. There is no
       branch, so that several flags are loaded at once. */
    DEVICE u32 flag_after(const RowLayout &layout, int step, int row) const
    {
        const int there = row < layout.batch ? row : layout.batch - 1, length = layout.length(there);
        const bool is_border = row < layout.batch && step >= (layout.reverse ? 0 : -1) && step + 1 < length;
        const int flagged = !is_border ? 0 : layout.reverse ? length - 1 - step : step + 1;
        const bool is_packed = PACKED && step_stride == 0;
        const long long place = is_packed ? layout.offsets[flagged] + there
                                          : flagged * step_stride + layout.caller_row(there) * row_stride;
        u32 flag = 0;
        load_flag_if(is_border, flag, flags + place);
        return flag;
    }
};

/* Flags of the borders after a step, one for each of a thread's cells. */
struct Borders
{
    u32 of[WARP_TASKS][CELLS];
};

/* The flags of a group's rows for WINDOW turns of the pass, in shared memory: whether there is a flagged border after
   a row's step. (A turn of a forward pass is a step.) They are loaded when a window begins, by all threads at once.
   Loads in every step took longer, by their addresses and conditions, and delayed the words that were asked for after
   them. */
struct ResetWindow
{
    static constexpr int GROUP_ROWS = SUBTILES * ROWS, WINDOW = RESET_FLAGS / GROUP_ROWS;
    static constexpr int LOADS = (RESET_FLAGS + THREADS - 1) / THREADS; /* of a thread */

    unsigned char *flags; /* [WINDOW, GROUP_ROWS] */

    DEVICE ResetWindow(uint4 *memory) : flags((unsigned char *)(memory + RESETS_AT / 16)) {}

    /* The turn in which the window that begins with a turn ends, at most `last`. */
    DEVICE static int end(int turn, int last)
    {
        return RESETS && turn + WINDOW < last ? turn + WINDOW : last;
    }

    /* Loads the flags of the window that begins with a turn, of a pass of `num_steps` steps. The compiler cannot
       know that the thread is the same in each window; else it would keep what follows from it in registers. */
    DEVICE void begin(const ResetLayout &resets, const RowLayout &layout, const Block &block, int num_steps,
                      int turn) const
    {
        if (!RESETS) return;
        const int thread = (int)opaque(threadIdx.x);
        u32 loaded[LOADS];
#pragma unroll
        for (int n = 0; n < LOADS; n++) {
            const int i = thread + n * THREADS, other = turn + i / GROUP_ROWS;
            const int step = BACKWARD ? num_steps - 1 - other : other;
            loaded[n] = resets.flag_after(layout, step, block.first_row + i % GROUP_ROWS);
        }
        /* All threads have read the flags of the window before: a turn has a barrier after that. */
#pragma unroll
        for (int n = 0; n < LOADS; n++) {
            const int i = thread + n * THREADS;
            if (i < RESET_FLAGS) flags[i] = (unsigned char)(loaded[n] != 0);
        }
        __syncthreads();
    }

    /* Reads the flags of a turn, which is counted from the first one of the window. */
    DEVICE void read(Borders &borders, const Block &block, int turn, int sub) const
    {
        if (!RESETS) return;
        const unsigned char *const of_turn = flags + (turn * GROUP_ROWS + sub * ROWS);
#pragma unroll
        for (int i = 0; i < WARP_TASKS; i++) {
            const Task task(i, block.warp, block.lane);
            if (!task.there) continue;
#pragma unroll
            for (int e = 0; e < CELLS; e++) borders.of[i][e] = of_turn[task.row + e];
        }
    }
};

} // namespace dnnffi
