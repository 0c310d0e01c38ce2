#pragma once
/* Conversions of numbers on the host; sigmoid and tanh in the arithmetic of the C library. */

#include "dtype.cuh"

namespace dnnffi {

static float of_float16(unsigned short stored)
{
    const u32 sign = (stored & 0x8000u) << 16, size = stored & 0x7fffu;
    if (size >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    const float value = ldexpf((float)(size & 0x3ffu | (size >= 0x400u) << 10),
                               (size >= 0x400u ? (int)(size >> 10) : 1) - 25);
    return sign ? -value : value;
}

static unsigned short in_float16(float value)
{
    const u32 bits = float_to_bits(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7fff; /* as PTX has it */
    if (size >= 0x477ff000u) return sign | 0x7c00u;
    if (size < 0x38800000u) return sign | (u32)nearbyintf(ldexpf(fabsf(value), 24));
    return sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13;
}

static float of_bfloat16(unsigned short stored) { return bits_to_float((u32)stored << 16); }

static unsigned short in_bfloat16(float value)
{
    const u32 bits = float_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

DEVICE float real(Element stored)
{
    if constexpr (DTYPE == FLOAT16) return of_float16(stored);
    else if constexpr (DTYPE == BFLOAT16) return of_bfloat16(stored);
    else return stored;
}

DEVICE Element rounded(float value)
{
    if constexpr (DTYPE == FLOAT16) return in_float16(value);
    else if constexpr (DTYPE == BFLOAT16) return in_bfloat16(value);
    else return value;
}

DEVICE u32 two_of_float16(float first, float second)
{
    return in_float16(first) | (u32)in_float16(second) << 16;
}

DEVICE u32 to_tf32(u32 bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : (bits + 0x1000u) & ~0x1fffu;
}

DEVICE float sigmoid(float a) { return 1.0f / (1.0f + expf(-a)); }

DEVICE float tanh_of(float a) { return tanhf(a); }

} // namespace dnnffi
