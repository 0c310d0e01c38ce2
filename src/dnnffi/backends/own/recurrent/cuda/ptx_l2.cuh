#pragma once
/* Accesses of device memory for which L2 matters: of words that other blocks read or write, of words that
   are read again in every step, and requests that L2 fetch what will be read. */

#include "basics.cuh"

namespace dnnffi {

/* A word that another block may write at the same time. */
DEVICE uint4 load_word(const uint4 *at)
{
    uint4 word;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "l"(at)
                 : "memory");
    return word;
}

/* The same, but leaves `word` as it is unless it is `wanted`. There is no branch and no copy of `word`, after
   either of which the compiler waits for a word before it asks for the next one. */
DEVICE void load_word_if(bool wanted, uint4 &word, const uint4 *at)
{
    asm volatile("{\n"
                 "    .reg .pred wanted;\n"
                 "    setp.ne.u32 wanted, %5, 0;\n"
                 "    @wanted ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w)
                 : "l"(at), "r"((u32)wanted)
                 : "memory");
}

DEVICE void store_word(uint4 *at, uint4 word)
{
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(word.x), "r"(word.y),
                 "r"(word.z), "r"(word.w)
                 : "memory");
}

/* A flag of one byte; `flag` stays as it is unless it is `wanted`. There is no branch. */
DEVICE void load_flag_if(bool wanted, u32 &flag, const unsigned char *at)
{
    asm volatile("{\n"
                 "    .reg .pred wanted;\n"
                 "    setp.ne.u32 wanted, %2, 0;\n"
                 "    @wanted ld.global.u8 %0, [%1];\n"
                 "}"
                 : "+r"(flag)
                 : "l"(at), "r"((u32)wanted));
}

/* An offset of the table of PACKED rows that a later step uses; `offset` stays as it is unless it is `wanted`. Of
   a plain load the compiler makes a copy at the beginning of the next step, which waits for the load. */
DEVICE void load_offset_if(bool wanted, int &offset, const int *at)
{
    asm volatile("{\n"
                 "    .reg .pred wanted;\n"
                 "    setp.ne.u32 wanted, %2, 0;\n"
                 "    @wanted ld.global.u32 %0, [%1];\n"
                 "}"
                 : "+r"(offset)
                 : "l"(at), "r"((u32)wanted));
}

/* Makes L2 fetch what lies there. */
DEVICE void prefetch(const void *from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

/* The policy of L2 for lines that are read: it keeps a part of them as long as it can, or none; it replaces the
   others first. If it had to keep all of more than it has room for, none would be there when it is read
   again. */
using Policy = unsigned long long;

/* `part` is above 0, up to 1; the device knows sixteenths. */
DEVICE Policy keep_part(float part)
{
    Policy policy;
    asm("createpolicy.fractional.L2::evict_last.L2::evict_first.b64 %0, %1;" : "=l"(policy) : "f"(part));
    return policy;
}

DEVICE Policy keep_none()
{
    Policy policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

DEVICE uint4 load_by(Policy policy, const uint4 *at)
{
    uint4 word;
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "l"(at), "l"(policy));
    return word;
}

} // namespace dnnffi
