#pragma once
/* Conversions for products on the host; sigmoid and tanh in double precision. Only sums and products are
   used, whose bits are the same on every machine; those of a C library's functions are not. */

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

/* e to the power of a number that is not NaN: the Taylor series of a 1024th of it, squared ten times. */
DEVICE double power_of_e(double a)
{
    const double part = (a > 200 ? 200 : a < -200 ? -200 : a) / 1024;
    double sum = 1;
    for (int term = 12; term > 0; term--) sum = 1 + sum * part / term;
    for (int i = 0; i < 10; i++) sum *= sum;
    return sum;
}

DEVICE float sigmoid(float a) { return a != a ? a : (float)(1 / (1 + power_of_e(-(double)a))); }

DEVICE float tanh_of(float a)
{
    const double exact = a;
    if (a != a || exact * exact < 1e-8) return (float)(exact - exact * exact * exact / 3);
    return (float)(1 - 2 / (1 + power_of_e(2 * exact)));
}

} // namespace dnnffi
