#pragma once
/* The product of a tile on the host. */

#include "dtype.cuh"

namespace dnnffi {

/* A lane's operands of `mma`: a 16 x K, b K x 8, c 16 x 8, where K elements are 32 bytes. */
struct Factors {
    float *sums;
    u32 a[4], b[2];
};

static float factor(u32 word, int which)
{
    if constexpr (FACTORS == FLOAT32)
        return bits_to_float(word & ~0x1fffu); /* that is what TF32 reads */
    else return Conversion<FACTORS>::real((unsigned short)(word >> 16 * which));
}

static void multiply(void **lanes)
{
    constexpr int IN_WORD = K_WORD / 4, K = K_WORD * 2, HALF = K / 2;
    float a[16][K], b[K][8];
    for (int lane = 0; lane < 32; lane++) {
        const Factors *one = (const Factors *)lanes[lane];
        const int g = lane / 4, t = lane % 4;
        for (int e = 0; e < IN_WORD; e++) {
            for (int i = 0; i < 4; i++)
                a[g + i % 2 * 8][i / 2 * HALF + t * IN_WORD + e] = factor(one->a[i], e);
            for (int i = 0; i < 2; i++) b[i * HALF + t * IN_WORD + e][g] = factor(one->b[i], e);
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        float *sums = ((const Factors *)lanes[lane])->sums;
        for (int i = 0; i < 4; i++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
            sums[i] += sum;
        }
    }
}

DEVICE void multiply_tile(float *sums, const uint4 &factors, u32 first, u32 second)
{
    Factors one{sums, {factors.x, factors.y, factors.z, factors.w}, {first, second}};
    device_warp(multiply, &one);
}

} // namespace dnnffi
