#pragma once
/* Conversions of numbers by dtype, between what is stored and what is computed in.

   Instructions for 16 bits need compute capability 8.0. Older devices, and tests on the host, convert in
   integers; the results are the same, except for the bits of a NaN. */

#include "basics.cuh"

namespace dnnffi {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
constexpr bool HAS_CONVERSIONS = true;
#else
constexpr bool HAS_CONVERSIONS = false;
#endif

/* `Real` is the type in which numbers of a dtype are computed, `real` and `rounded` convert. */
template <Dtype> struct Conversion;

template <> struct Conversion<FLOAT16>
{
    using Real = float;

    DEVICE static float real(unsigned short stored)
    {
        if constexpr (HAS_CONVERSIONS) {
            float value;
            asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(stored));
            return value;
        } else {
            /* The exponents are 112 apart: the product makes a subnormal number a normal one. */
            const float scaled =
                bits_to_float((stored & 0x7fffu) << 13) * 5192296858534827628530496329220096.0f;
            u32 bits = float_to_bits(scaled);
            if ((stored & 0x7c00) == 0x7c00) bits |= 0x7f800000;
            return bits_to_float(bits | (stored & 0x8000u) << 16);
        }
    }

    DEVICE static unsigned short rounded(float value)
    {
        if constexpr (HAS_CONVERSIONS) {
            unsigned short stored;
            asm("cvt.rn.f16.f32 %0, %1;" : "=h"(stored) : "f"(value));
            return stored;
        } else {
            const u32 sign = (float_to_bits(value) >> 16) & 0x8000, bits = float_to_bits(value) & 0x7fffffff;
            if (bits > 0x7f800000) return sign | 0x7e00;
            if (bits >= 0x477ff000) return sign | 0x7c00; /* from 65520 on it is infinity */
            if (bits >= 0x38800000) return sign | ((bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13);
            /* The last digit of one half is that of the subnormal numbers: a sum with it is rounded to them. */
            return sign | (float_to_bits(bits_to_float(bits) + 0.5f) - 0x3f000000);
        }
    }
};

template <> struct Conversion<BFLOAT16>
{
    using Real = float;

    DEVICE static float real(unsigned short stored) { return bits_to_float((u32)stored << 16); }

    DEVICE static unsigned short rounded(float value)
    {
        if constexpr (HAS_CONVERSIONS) {
            unsigned short stored;
            asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(stored) : "f"(value));
            return stored;
        } else {
            const u32 bits = float_to_bits(value);
            if (value != value) return 0x7fc0;
            return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        }
    }
};

template <> struct Conversion<FLOAT32>
{
    using Real = float;

    DEVICE static float real(float stored) { return stored; }
    DEVICE static float rounded(float value) { return value; }
};

template <> struct Conversion<FLOAT64>
{
    using Real = double;

    DEVICE static double real(double stored) { return stored; }
    DEVICE static double rounded(double value) { return value; }
};

} // namespace dnnffi
