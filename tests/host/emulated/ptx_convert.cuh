#pragma once
/* Conversions for products on the host; sigmoid and tanh in the arithmetic of the C library. */

#include "dtype.cuh"

namespace dnnffi {

DEVICE u32 two_of_float16(float first, float second)
{
    return Conversion<FLOAT16>::rounded(first) | (u32)Conversion<FLOAT16>::rounded(second) << 16;
}

DEVICE u32 to_tf32(u32 bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : (bits + 0x1000u) & ~0x1fffu;
}

DEVICE float sigmoid(float a) { return 1.0f / (1.0f + expf(-a)); }

DEVICE float tanh_of(float a) { return tanhf(a); }

} // namespace dnnffi
