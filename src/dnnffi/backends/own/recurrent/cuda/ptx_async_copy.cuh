#pragma once
/* Copies to shared memory that a thread does not wait for: `copy_word` begins one, `commit_copies` ends a
   group of them, `wait_for_copies<N>` waits until at most the last N groups are on their way. */

#include "basics.cuh"
#include "ptx_l2.cuh"

namespace dnnffi {

/* A word that arrives while the thread continues. */
DEVICE void copy_word(uint4 *to, const void *from)
{
    asm volatile(
        "cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}

/* The same of a word that L2 treats by a policy. */
DEVICE void copy_word_by(Policy policy, uint4 *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                     (u32)__cvta_generic_to_shared(to)),
                 "l"(from), "l"(policy)
                 : "memory");
}

DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING> DEVICE void wait_for_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

} // namespace dnnffi
