/* The kernel that copies an image into a larger one with zeros around it, or out of one. */

#include "kernel_config.cuh"

namespace dnnffi {

using Bits = Config::Bits;   /* an element */
using Index = Config::Index; /* of elements of the larger image; divisions of 64 bits are slow */
constexpr int THREADS = Config::THREADS;

/* target is source from position (o0, o1, o2) on, and 0 outside of source. Offsets are negative to crop. */
extern "C" __global__ void copy_image(const Bits *source, /* [outer, s0, s1, s2, inner] */
                                      Bits *target,       /* [outer, t0, t1, t2, inner], `count` elements */
                                      long long count, long long inner, long long t0, long long t1,
                                      long long t2, long long s0, long long s1, long long s2, long long o0,
                                      long long o1, long long o2)
{
    const long long step = (long long)gridDim.x * THREADS;
    for (long long at = (long long)blockIdx.x * THREADS + threadIdx.x; at < count; at += step) {
        Index rest = (Index)at;
        const long long element = rest % (Index)inner;
        rest /= (Index)inner;
        const long long p2 = (long long)(rest % (Index)t2) - o2;
        rest /= (Index)t2;
        const long long p1 = (long long)(rest % (Index)t1) - o1;
        rest /= (Index)t1;
        const long long p0 = (long long)(rest % (Index)t0) - o0;
        const long long outer = rest / (Index)t0;
        const int inside = p0 >= 0 && p0 < s0 && p1 >= 0 && p1 < s1 && p2 >= 0 && p2 < s2;
        target[at] = inside ? source[(((outer * s0 + p0) * s1 + p1) * s2 + p2) * inner + element] : (Bits)0;
    }
}

} // namespace dnnffi
