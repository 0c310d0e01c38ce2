/* The kernel that copies an image into a larger one with zeros around it, or out of one. */

#include "kernel_config.cuh"

namespace dnnffi {

using Bits = Config::Bits;   /* an element */
using Index = Config::Index; /* of elements of the larger image; divisions of 64 bits are slow */
constexpr int THREADS = Config::THREADS;

struct CopyImageParams
{
    const Bits *source;     /* [outer, s0, s1, s2, inner] */
    Bits *target;           /* [outer, t0, t1, t2, inner] */
    long long num_elements; /* of target */
    long long inner;
    long long t0;
    long long t1;
    long long t2;
    long long s0;
    long long s1;
    long long s2;
    /* Position in target at which source begins; negative to crop. */
    long long o0;
    long long o1;
    long long o2;
};

/* target is source from position (o0, o1, o2) on, and 0 outside of source. */
extern "C" __global__ void copy_image(const __grid_constant__ CopyImageParams params)
{
    const Bits *source = params.source;
    Bits *target = params.target;
    const long long num_elements = params.num_elements;
    const Index inner = (Index)params.inner;
    const Index t0 = (Index)params.t0, t1 = (Index)params.t1, t2 = (Index)params.t2;
    const long long s0 = params.s0, s1 = params.s1, s2 = params.s2;
    const long long o0 = params.o0, o1 = params.o1, o2 = params.o2;
    const long long step = (long long)gridDim.x * THREADS;
    for (long long at = (long long)blockIdx.x * THREADS + threadIdx.x; at < num_elements; at += step) {
        Index rest = (Index)at;
        const long long element = rest % inner;
        rest /= inner;
        const long long p2 = (long long)(rest % t2) - o2;
        rest /= t2;
        const long long p1 = (long long)(rest % t1) - o1;
        rest /= t1;
        const long long p0 = (long long)(rest % t0) - o0;
        const long long outer = rest / t0;
        const int inside = p0 >= 0 && p0 < s0 && p1 >= 0 && p1 < s1 && p2 >= 0 && p2 < s2;
        const long long from = (((outer * s0 + p0) * s1 + p1) * s2 + p2) * inner + element;
        target[at] = inside ? source[from] : (Bits)0;
    }
}

} // namespace dnnffi
