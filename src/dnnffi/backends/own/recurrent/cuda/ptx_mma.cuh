#pragma once
/* The product of a tile by tensor cores. */

#include "dtype.cuh"

namespace dnnffi {

/* sums[16 x 8] += factors[16 x K] other[K x 8], where K elements are 32 bytes. */
DEVICE void multiply_tile(float *sums, const uint4 &factors, u32 first, u32 second)
{
    if constexpr (FACTORS == FLOAT16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(factors.x), "r"(factors.y), "r"(factors.z), "r"(factors.w), "r"(first), "r"(second));
    else if constexpr (FACTORS == BFLOAT16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(factors.x), "r"(factors.y), "r"(factors.z), "r"(factors.w), "r"(first), "r"(second));
    else
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(factors.x), "r"(factors.y), "r"(factors.z), "r"(factors.w), "r"(first), "r"(second));
}

} // namespace dnnffi
