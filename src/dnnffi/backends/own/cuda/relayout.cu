/* The kernel that copies an array with any strides into one without gaps. */

#include "kernel_config.cuh"

namespace dnnffi {

using Bits = Config::Bits; /* an element */
constexpr int THREADS = Config::THREADS;

/* target[i] is the element of source at index i in the order of target's memory; size_n and step_n are of its
   dimensions, outermost first, steps in elements of source. */
extern "C" __global__ void
relayout(const Bits *source, /* [size_0, size_1, size_2, size_3, size_4] with these steps */
         Bits *target,       /* [count] */
         long long count, long long size_1, long long size_2, long long size_3, long long size_4,
         long long step_0, long long step_1, long long step_2, long long step_3, long long step_4)
{
    const long long stride = (long long)gridDim.x * THREADS;
    for (long long at = (long long)blockIdx.x * THREADS + threadIdx.x; at < count; at += stride) {
        long long rest = at, from = 0;
        from += rest % size_4 * step_4;
        rest /= size_4;
        from += rest % size_3 * step_3;
        rest /= size_3;
        from += rest % size_2 * step_2;
        rest /= size_2;
        from += rest % size_1 * step_1;
        target[at] = source[from + rest / size_1 * step_0];
    }
}

} // namespace dnnffi
