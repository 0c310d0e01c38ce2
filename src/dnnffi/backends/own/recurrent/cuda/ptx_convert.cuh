#pragma once
/* Conversions for products, and the two functions of cells: `two_of_float16`, `to_tf32`, `sigmoid`,
   `tanh_of`. Elements are converted by element.cuh. */

#include "dtype.cuh"

namespace dnnffi {

/* Two numbers in float16, the first in the low half. */
DEVICE u32 two_of_float16(float first, float second)
{
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

/* The 11 bits of mantissa that a product in TF32 reads: rounded, since it would drop the rest. */
DEVICE u32 to_tf32(u32 bits)
{
    u32 result;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(bits_to_float(bits)));
    return result;
}

/* The approximations err by no more than the dtype's rounding: tanh by 2^-11 (PTX ISA), enough for
   16 bits; float32, whose factors have 11 bits, by powers and quotients of 22 bits. Of a small
   number, 2 / (1 + power) - 1 keeps as few digits as the difference leaves, so a STRICT tanh is
   CUDA's. A sigmoid near 0 is no difference. */
DEVICE float sigmoid(float a)
{
    if constexpr (DTYPE == FLOAT32) {
        float power, result;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(-1.4426950408889634f * a));
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power));
        return result;
    }
    float result;
    asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(0.5f * a));
    return fmaf(0.5f, result, 0.5f);
}

DEVICE float tanh_of(float a)
{
    if constexpr (DTYPE == FLOAT32 && STRICT) return tanhf(a);
    if constexpr (DTYPE == FLOAT32) {
        float power, result;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(-2.885390081777927f * a));
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power));
        return fmaf(2.0f, result, -1.0f);
    }
    float result;
    asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(a));
    return result;
}

} // namespace dnnffi
