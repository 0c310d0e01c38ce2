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
    long long step_stride, row_stride; /* both 0 where the flags are PACKED */

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
        const long long place = PACKED ? layout.offsets[flagged] + layout.first_positions[there]
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
   a row's step. (A turn of a forward pass is a step.) All threads load them at once, those of a window while the one
   before it runs. Loads in every step took longer, by their addresses and conditions, and delayed the words that were
   asked for after them. */
struct ResetWindow
{
    static constexpr int GROUP_ROWS = SUBTILES * ROWS, WINDOW = RESET_FLAGS / GROUP_ROWS;
    static constexpr int LOADS = (RESET_FLAGS + THREADS - 1) / THREADS; /* of a thread */

    unsigned char *flags; /* [RESET_WINDOWS, WINDOW, GROUP_ROWS]: of this window, and of the one before it */
    u32 loaded[LOADS];    /* of the next window, in flight */

    DEVICE ResetWindow(uint4 *memory) : flags((unsigned char *)(memory + RESETS_AT / 16)), loaded{} {}

    /* The turn in which the window that begins with a turn ends, at most `last`. */
    DEVICE static int end(int turn, int last)
    {
        return RESETS && turn + WINDOW < last ? turn + WINDOW : last;
    }

    /* Loads the flags of the window that begins with a turn, if a pass of `num_steps` steps has that turn. The
       compiler cannot know that the thread is the same in each window; else it would keep what follows from it in
       registers. */
    DEVICE void request(const ResetLayout &resets, const RowLayout &layout, const Block &block, int num_steps,
                        int turn)
    {
        if (!RESETS) return;
        const int thread = (int)opaque(threadIdx.x);
#pragma unroll
        for (int n = 0; n < LOADS; n++) {
            const int i = thread + n * THREADS, other = turn + i / GROUP_ROWS;
            const int step = BACKWARD ? num_steps - 1 - other : other;
            loaded[n] = resets.flag_after(layout, step, block.first_row + i % GROUP_ROWS);
        }
    }

    /* The place of the flags of a turn. */
    DEVICE static u32 place_of(int turn)
    {
        return (u32)turn / WINDOW % RESET_WINDOWS * RESET_FLAGS + (u32)turn % WINDOW * GROUP_ROWS;
    }

    /* Begins the window that was loaded, with a turn. All threads have read the flags whose place it takes: a turn has
       a barrier after that. With two windows these are flags of the one before the last: the results of a turn are
       stored in the next one, at its beginning, or at its end (CLUSTER and FMA, whose windows have two turns). */
    DEVICE void begin(int turn) const
    {
        if (!RESETS) return;
#pragma unroll
        for (int n = 0; n < LOADS; n++) {
            const int i = threadIdx.x + n * THREADS;
            if (i < RESET_FLAGS) flags[place_of(turn) + i] = (unsigned char)(loaded[n] != 0);
        }
        __syncthreads();
    }

    /* Reads the flags of a turn of the window. */
    DEVICE void read(Borders &borders, const Block &block, int turn, int sub) const
    {
        if (!RESETS) return;
        const unsigned char *const of_turn = flags + (place_of(turn) + sub * ROWS);
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
