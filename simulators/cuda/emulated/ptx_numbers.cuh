#pragma once
/* Conversions of numbers by dtype on the host, with the bits that PTX gives a NaN. */

#include "basics.cuh"

namespace dnnffi {

template <Dtype> struct Conversion;

template <> struct Conversion<FLOAT16>
{
    using Real = float;

    DEVICE static float real(unsigned short stored)
    {
        const u32 sign = (stored & 0x8000u) << 16, size = stored & 0x7fffu;
        if (size >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (size & 0x3ffu) << 13);
        const float value = ldexpf((float)(size & 0x3ffu | (size >= 0x400u) << 10),
                                   (size >= 0x400u ? (int)(size >> 10) : 1) - 25);
        return sign ? -value : value;
    }

    DEVICE static unsigned short rounded(float value)
    {
        const u32 bits = float_to_bits(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
        if (size > 0x7f800000u) return 0x7fff; /* as PTX has it */
        if (size >= 0x477ff000u) return sign | 0x7c00u;
        if (size < 0x38800000u) return sign | (u32)nearbyintf(ldexpf(fabsf(value), 24));
        return sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13;
    }
};

template <> struct Conversion<BFLOAT16>
{
    using Real = float;

    DEVICE static float real(unsigned short stored) { return bits_to_float((u32)stored << 16); }

    DEVICE static unsigned short rounded(float value)
    {
        const u32 bits = float_to_bits(value);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
        return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    }
};

template <> struct Conversion<FLOAT32>
{
    using Real = float;

    DEVICE static float real(float stored) { return stored; }
    DEVICE static float rounded(float value) { return value; }
};

} // namespace dnnffi
