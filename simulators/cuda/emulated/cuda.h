/* The keywords of CUDA that kernels use, in C++; included before their source. */
#include "arguments.h"
#include "device.h"

/* No headers, which take longer to compile than a kernel. */
extern "C" {
float fmaf(float, float, float);
float ldexpf(float, int);
float nearbyintf(float);
float fabsf(float);
void *memcpy(void *, const void *, unsigned long);
}

#define __global__
#define __grid_constant__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class T> static inline T __ldg(const T *at) { return *at; }

static inline void __syncthreads() { device_barrier(); }
static inline void nothing(void **) {}
static inline void __syncwarp() { device_warp(nothing, nullptr); }

struct Shuffle {
    float *value;
    int mask;
};
static void shuffle(void **lanes)
{
    float found[32];
    for (int i = 0; i < 32; i++) {
        const Shuffle *one = (const Shuffle *)lanes[i];
        found[i] = *((const Shuffle *)lanes[i ^ one->mask])->value;
    }
    for (int i = 0; i < 32; i++) *((const Shuffle *)lanes[i])->value = found[i];
}
static inline float __shfl_xor_sync(unsigned, float value, int mask)
{
    Shuffle one{&value, mask};
    device_warp(shuffle, &one);
    return value;
}
