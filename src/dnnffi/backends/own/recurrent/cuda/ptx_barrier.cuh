#pragma once
/* Barriers: of some threads of a block, and of a cluster, whose blocks store into each other's shared
   memory and count in mbarriers what arrived (compute capability 9.0). */

#include "basics.cuh"

namespace dnnffi {

/* A barrier of COUNT threads of a block; each of several groups has one. */
template <int COUNT> DEVICE void sync_threads(int group)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(COUNT) : "memory");
}

DEVICE u32 shared_address(const void *at) { return (u32)__cvta_generic_to_shared(at); }

/* The same place of another block. */
DEVICE u32 in_block(u32 address, int rank)
{
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

DEVICE void store_in_block(u32 at, uint4 word, u32 barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                 "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(at),
                 "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w), "r"(barrier)
                 : "memory");
}

DEVICE void store_float_in_block(u32 at, float value, u32 barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(at),
                 "f"(value), "r"(barrier)
                 : "memory");
}

DEVICE void begin_barrier(u32 barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}

/* The only arrival of a phase, which says what the phase counts. */
DEVICE void expect_bytes(u32 barrier, int bytes)
{
    asm volatile(
        "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(barrier),
        "r"(bytes)
        : "memory");
}

/* Acquires for the block alone: all that comes with a phase is in its own shared memory. To acquire
   for the cluster would empty L1, from which arrays of odd sizes are read. */
DEVICE bool phase_ended(u32 barrier, u32 parity)
{
    u32 ended;
    asm volatile("{ .reg .pred ended; mbarrier.try_wait.parity.shared::cta.b64 "
                 "ended, [%1], %2; selp.u32 %0, 1, 0, ended; }"
                 : "=r"(ended)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return ended;
}

/* All threads of a cluster meet; they see each other's barriers. */
DEVICE void sync_cluster()
{
    asm volatile("fence.mbarrier_init.release.cluster;\n\t"
                 "barrier.cluster.arrive.release.aligned;\n\t"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

} // namespace dnnffi
