/* Functions that the tables of meanings call in addition to C's operators. */
#ifndef HELPERS_H
#define HELPERS_H

#include "wave.h"

/* Conversions saturate, and a NaN gives 0. */
static inline uint32_t to_i32(double x)
{
    if (x != x) return 0;
    if (x >= 2147483647.0) return 0x7FFFFFFF;
    return x <= -2147483648.0 ? 0x80000000 : (uint32_t)(int32_t)x;
}

static inline uint32_t to_u32(double x)
{
    if (!(x > 0)) return 0;
    return x >= 4294967295.0 ? 0xFFFFFFFF : (uint32_t)x;
}

static inline uint32_t saturated_u16(uint32_t x)
{
    return x > 0xFFFF ? 0xFFFF : x;
}

static inline uint32_t u24(uint32_t x)
{
    return x & 0xFFFFFF;
}

static inline int32_t i24(uint32_t x)
{
    return (int32_t)(x << 8) >> 8;
}

/* `count` bits of x from bit `first`. */
static inline uint32_t bit_field(uint32_t x, uint32_t first, uint32_t count)
{
    first &= 31;
    count &= 63;
    return count >= 32 ? x >> first : x >> first & ((1u << count) - 1);
}

static inline uint32_t signed_bit_field(uint32_t x, uint32_t first, uint32_t count)
{
    first &= 31;
    count &= 63;
    if (count == 0) return 0;
    if (count >= 32) return (uint32_t)((int32_t)x >> first);
    uint32_t field = bit_field(x, first, count);
    return (uint32_t)((int32_t)(field << (32 - count)) >> (32 - count));
}

static inline uint32_t reversed(uint32_t x)
{
    uint32_t result = 0;
    for (int i = 0; i < 32; i++) result |= (x >> i & 1) << (31 - i);
    return result;
}

static inline uint32_t first_one(uint32_t x)
{
    return x ? (uint32_t)__builtin_ctz(x) : UINT32_MAX;
}

static inline uint32_t leading_zeros(uint32_t x)
{
    return x ? (uint32_t)__builtin_clz(x) : UINT32_MAX;
}

/* Each byte of `selector` picks one of the eight bytes of x:y, a sign, 0 or 255. */
static inline uint32_t permuted(uint32_t x, uint32_t y, uint32_t selector)
{
    uint64_t bytes = (uint64_t)x << 32 | y;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t pick = selector >> 8 * i & 255, byte = 0;
        if (pick < 8) byte = bytes >> 8 * pick & 255;
        else if (pick < 12) byte = bytes >> (16 * (pick - 8) + 15) & 1 ? 255 : 0;
        else if (pick > 12) byte = 255;
        result |= byte << 8 * i;
    }
    return result;
}

/* The last step of a division: special operands have special quotients. */
static inline double fixed_quotient(double quotient, double divisor, double dividend)
{
    bool special = divisor != divisor || dividend != dividend || divisor == 0 || dividend == 0
        || isinf(divisor) || isinf(dividend);
    return special ? dividend / divisor : quotient;
}

/* Bits of v_cmp_class: NaNs 0 and 1, -inf 2, -normal 3, -denormal 4, -0 5, then +0 6, +denormal 7,
 * +normal 8, +inf 9. */
static inline bool has_class(double x, bool denormal, uint32_t asked)
{
    bool negative = signbit(x);
    uint32_t class;
    if (x != x) class = 1 << 0 | 1 << 1;
    else if (isinf(x)) class = negative ? 1 << 2 : 1 << 9;
    else if (x == 0) class = negative ? 1 << 5 : 1 << 6;
    else if (denormal) class = negative ? 1 << 4 : 1 << 7;
    else class = negative ? 1 << 3 : 1 << 8;
    return (class & asked) != 0;
}

#endif
