/* What the kernels of recurrent layers ask of PTX, on the host: stands behind numbers.cuh. */

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

#if DTYPE == 0
DEVICE float real(Element stored) { return of_float16(stored); }
DEVICE Element rounded(float value) { return in_float16(value); }
#elif DTYPE == 1
DEVICE float real(Element stored) { return of_bfloat16(stored); }
DEVICE Element rounded(float value) { return in_bfloat16(value); }
#else
DEVICE float real(Element stored) { return stored; }
DEVICE Element rounded(float value) { return value; }
#endif

DEVICE u32 two_of_float16(float first, float second)
{
    return in_float16(first) | (u32)in_float16(second) << 16;
}

/* What each lane gives to `mma`: a 16 x K, b K x 8, c 16 x 8, where K elements are 32 bytes. */
struct Factors {
    float *sums;
    u32 a[4], b[2];
};

static float factor(u32 word, int which)
{
#if FACTORS == 2
    return bits_to_float(word & ~0x1fffu); /* that is what TF32 reads */
#elif FACTORS == 1
    return of_bfloat16(word >> 16 * which);
#else
    return of_float16(word >> 16 * which);
#endif
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

DEVICE uint4 load_word(const uint4 *at)
{
    uint4 word;
    device_load(&word, at);
    return word;
}

DEVICE void store_word(uint4 *at, uint4 word) { device_store(at, &word); }

DEVICE void copy_word(uint4 *to, const void *from) { device_copy(to, from); }

DEVICE void fetch(const void *) {}

using Policy = int;
DEVICE Policy keep_a_fifth() { return 0; }
DEVICE Policy keep_none() { return 0; }
DEVICE uint4 load_by(Policy, const uint4 *at) { return *at; }

template <int COUNT> DEVICE void meet_threads(int) { device_part_barrier(COUNT); }

DEVICE void commit_copies() { device_commit(); }

template <int PENDING> DEVICE void wait_for_copies() { device_wait(PENDING); }

/* An address of a block's shared memory is a place in it, behind a block's number in the cluster. */
DEVICE u32 shared_address(const void *at)
{
    return (u32)((const unsigned char *)at - (const unsigned char *)device_shared());
}

DEVICE u32 in_block(u32 address, int rank) { return address | (u32)(rank + 1) << 24; }

DEVICE void begin_barrier(u32 barrier) { device_begin_barrier(barrier); }

DEVICE void expect_bytes(u32 barrier, int bytes) { device_expect(barrier, bytes); }

DEVICE bool phase_ended(u32 barrier, u32 parity) { return device_phase_ended(barrier, parity); }

#ifdef UNITS
constexpr int OF_CLUSTER = ((HIDDEN + 7) / 8 * 8 + UNITS - 1) / UNITS * LAYERS;

DEVICE void store_in_block(u32 at, uint4 word, u32 barrier)
{
    const int block = blockIdx.x / OF_CLUSTER * OF_CLUSTER + (int)(at >> 24) - 1;
    device_send(block, at & 0xffffff, &word, 16, barrier & 0xffffff);
}

DEVICE void store_float_in_block(u32 at, float value, u32 barrier)
{
    const int block = blockIdx.x / OF_CLUSTER * OF_CLUSTER + (int)(at >> 24) - 1;
    device_send(block, at & 0xffffff, &value, 4, barrier & 0xffffff);
}

DEVICE void meet_cluster() { device_meet(OF_CLUSTER); }
#endif
