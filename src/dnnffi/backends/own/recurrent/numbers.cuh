/* Storage, rounding and products of numbers, by dtype: float16, bfloat16, or float32 with
   products in TF32, of which a STRICT one takes three. FACTORS is the dtype of what is multiplied: of a
   NARROW kernel float16, where arrays are float32 (narrow.cuh). No header is needed, so that NVRTC
   compiles it everywhere. */

#ifndef FACTORS
#define FACTORS DTYPE
#endif

typedef unsigned int u32;

enum { FLOAT16, BFLOAT16, FLOAT32 };

#if DTYPE == 2
typedef float Element;
#else
typedef unsigned short Element;
#endif

#if FACTORS == 2
typedef float Factor;
#else
typedef unsigned short Factor;
#endif

constexpr bool NARROW = sizeof(Factor) < sizeof(Element);
/* Of the states that a NARROW kernel multiplies, which are at most 1: the smallest that float16 holds with
   all of its bits is then 2^-29. */
constexpr float STATE_SCALE = 32768;

/* A word is 16 bytes: what one access of a thread moves at once. */
constexpr int WORD = 16 / (int)sizeof(Element);  /* elements of an array */
constexpr int K_WORD = 16 / (int)sizeof(Factor); /* factors, which follow each other in k */

DEVICE float bits_to_float(u32 bits)
{
    union { u32 bits; float value; } both;
    both.bits = bits;
    return both.value;
}

DEVICE u32 float_to_bits(float value)
{
    union { float value; u32 bits; } both = {value};
    return both.bits;
}

#ifdef __CUDACC__

DEVICE float real(Element stored)
{
#if DTYPE == 0
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(stored));
    return value;
#elif DTYPE == 1
    return bits_to_float((u32)stored << 16);
#else
    return stored;
#endif
}

DEVICE Element rounded(float value)
{
#if DTYPE == 0
    Element stored;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(stored) : "f"(value));
    return stored;
#elif DTYPE == 1
    Element stored;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(stored) : "f"(value));
    return stored;
#else
    return value;
#endif
}

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

/* sums[16 x 8] += factors[16 x K] other[K x 8], where K elements are 32 bytes. */
DEVICE void multiply_tile(float *sums, const uint4 &factors, u32 first, u32 second)
{
#if FACTORS == 0
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#elif FACTORS == 1
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
#endif
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(factors.x), "r"(factors.y), "r"(factors.z), "r"(factors.w), "r"(first),
                   "r"(second));
}

/* The approximations err by no more than the dtype's rounding: tanh by 2^-11 (PTX ISA), enough for
   16 bits; float32, whose factors have 11 bits, by powers and quotients of 22 bits. Of a small
   number, 2 / (1 + power) - 1 keeps as few digits as the difference leaves, so a STRICT tanh is
   CUDA's. A sigmoid near 0 is no difference. */
DEVICE float sigmoid(float a)
{
#if DTYPE == 2
    float power, result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(-1.4426950408889634f * a));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power));
    return result;
#else
    float result;
    asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(0.5f * a));
    return fmaf(0.5f, result, 0.5f);
#endif
}

DEVICE float tanh_of(float a)
{
#if DTYPE == 2 && STRICT
    return tanhf(a);
#elif DTYPE == 2
    float power, result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(-2.885390081777927f * a));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power));
    return fmaf(2.0f, result, -1.0f);
#else
    float result;
    asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(a));
    return result;
#endif
}

#else /* on the host, for tests: cells and words in exact arithmetic */

DEVICE float sigmoid(float a) { return 1.0f / (1.0f + expf(-a)); }
DEVICE float tanh_of(float a) { return tanhf(a); }
#if DTYPE == 2
DEVICE u32 to_tf32(u32 bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : (bits + 0x1000u) & ~0x1fffu;
}
#endif

#endif

DEVICE uint4 as_factors(uint4 word)
{
#if FACTORS == 2 && !STRICT
    return make_uint4(to_tf32(word.x), to_tf32(word.y), to_tf32(word.z), to_tf32(word.w));
#else
    return word;
#endif
}
