#pragma once
/* Barriers (mbarrier) by which the blocks of a group that is a CLUSTER exchange results. They write them into
   each other's shared memory, which is nearer than L2 (compute capability 9.0).

   Every block stages two exchanges, which steps use in turn, and has an mbarrier for each. A word
   comes with its 16 bytes of the barrier's count (`st.async`); a phase of the barrier ends when all
   words of an exchange are there: those of the rows that exist. No word has a tag, and nothing lies
   in device memory.

   Why no block reads early: the phase of an exchange ends after the stores that it counts.
   Why no block overwrites what is still to be read: a block sends exchange e + 2 only after all of
   e + 1 arrived, and each block sent its part of e + 1 after a barrier of its threads that follows
   their products of e.
   Why a phase counts the words of one exchange only: those of e + 2 come, as was said, after e + 1
   is complete, of which the block itself sent a part after its own phase e had ended. Words may come
   before the block says how many it expects: until it does, the phase has an arrival to wait for.
   Several LAYERS are one cluster. What a phase of a block counts is its layer's exchange and the one
   of the layer that it reads, which sends to both layers. That layer would overwrite what is still to
   be read, or send it into a phase that has not ended: so a block that has read a phase sends each
   block that it reads from a receipt, one word, which counts in that block's phase after the next.
   A block then sends exchange e + 2 to another layer only after all of that layer have read e.
   Why no block waits forever: the blocks of a cluster are on the device at once, and no block ends
   before all words that are sent to it have arrived: it waits for each exchange. Only a block that
   is `late` may; what is then sent to it ends the launch with an error. */

#include "block.cuh"
#include "exchange_flags.cuh"
#include "ptx_barrier.cuh"

namespace dnnffi {

/* The barriers of the two exchanges that a block stages. */
struct Arrivals
{
    u32 first;
    int own, other; /* bytes of its layer, and of the one that it reads */
    int receipts;   /* bytes of the layer that reads it */
    int last_phase; /* has nothing of another layer */
    int thread = retained(threadIdx.x);

    DEVICE u32 of(int phase) const { return first + 8 * (phase & 1); }

    /* Bytes that a phase counts. */
    DEVICE int bytes(int phase) const
    {
        if (LAYERS == 1) return own;
        return (BACKWARD && phase == 0 ? 0 : own) + (phase < last_phase ? other : 0) +
               (phase > 1 ? receipts : 0);
    }

    DEVICE void begin() const
    {
        if (thread == 0)
            for (int phase = 0; phase < 2; phase++) begin_barrier(of(phase));
        __syncwarp(); /* a warp begins a barrier as one, by its machine code; a thread arrives */
        if (thread == 0)
            for (int phase = 0; phase < 2; phase++) expect_bytes(of(phase), bytes(phase));
        sync_cluster();
    }

    /* Sets `late` if the words of a phase never arrive. */
    DEVICE void wait(int phase, bool &late) const
    {
        u32 polls = late ? MAX_POLLS : 0;
        while (!phase_ended(of(phase), phase >> 1 & 1))
            if (polls++ >= MAX_POLLS) {
                late = true;
                return;
            }
    }

    /* Behind that: says what the phase after the next one counts. */
    DEVICE void expect(int phase) const
    {
        if (thread == 0) expect_bytes(of(phase), bytes(phase + 2));
    }
};

} // namespace dnnffi
