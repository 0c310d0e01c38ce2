#pragma once
/* Products of a tile: factors stored in words of 16 bytes become fragments of `mma`. */

#include "ptx_convert.cuh"
#include "ptx_mma.cuh"

namespace dnnffi {

/* A word of numbers as the factors that `mma` takes. */
DEVICE uint4 as_factors(uint4 word)
{
    if constexpr (FACTORS == FLOAT32 && !STRICT)
        return make_uint4(to_tf32(word.x), to_tf32(word.y), to_tf32(word.z), to_tf32(word.w));
    return word;
}

/* The two fragments of a tile in a step of k. The k of a fragment may come in any order, as long as
   the other factor's come in the same: here each thread holds one word of two rows. */
struct Fragments
{
    uint4 first, second;
};

DEVICE Fragments fragments(const uint4 &low, const uint4 &high)
{
    return {make_uint4(low.x, high.x, low.y, high.y), make_uint4(low.z, high.z, low.w, high.w)};
}

/* A factor as a sum of two, each of which TF32 holds. The second one is 0 where the first one is not
   finite. */
struct Halves
{
    u32 high, low;

    DEVICE explicit Halves(u32 bits) : high(to_tf32(bits))
    {
        const float rest = bits_to_float(bits) - bits_to_float(high);
        low = (high & 0x7f800000u) == 0x7f800000u ? 0 : to_tf32(float_to_bits(rest));
    }
};

/* A STRICT product is the sum of three, without that of the two low parts, which is less than float32's
   rounding. */
DEVICE void multiply_add(float *sums, const uint4 &factors, u32 first, u32 second)
{
    if constexpr (!STRICT) {
        multiply_tile(sums, factors, first, second);
        return;
    }
    const Halves a(factors.x), b(factors.y), c(factors.z), d(factors.w), e(first), f(second);
    const uint4 high = make_uint4(a.high, b.high, c.high, d.high);
    multiply_tile(sums, make_uint4(a.low, b.low, c.low, d.low), e.high, f.high);
    multiply_tile(sums, high, e.low, f.low);
    multiply_tile(sums, high, e.high, f.high);
}

} // namespace dnnffi
