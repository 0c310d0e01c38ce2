/* The kernel that copies an array with any strides into one without gaps. */

#include "kernel_config.cuh"

namespace dnnffi {

using Bits = Config::Bits; /* an element */
constexpr int THREADS = Config::THREADS;

struct RelayoutParams
{
    const Bits *source; /* [size_0, size_1, size_2, size_3, size_4] with these steps */
    Bits *target;       /* [num_elements] */
    long long num_elements;
    /* Sizes of the dimensions, outermost first, without the first one. */
    long long size_1;
    long long size_2;
    long long size_3;
    long long size_4;
    /* Steps in elements of source. */
    long long step_0;
    long long step_1;
    long long step_2;
    long long step_3;
    long long step_4;
};

/* target[i] is the element of source at index i in the order of target's memory. */
extern "C" __global__ void relayout(const __grid_constant__ RelayoutParams params)
{
    const long long stride = (long long)gridDim.x * THREADS;
    for (long long at = (long long)blockIdx.x * THREADS + threadIdx.x; at < params.num_elements;
         at += stride) {
        long long rest = at, from = 0;
        from += rest % params.size_4 * params.step_4;
        rest /= params.size_4;
        from += rest % params.size_3 * params.step_3;
        rest /= params.size_3;
        from += rest % params.size_2 * params.step_2;
        rest /= params.size_2;
        from += rest % params.size_1 * params.step_1;
        params.target[at] = params.source[from + rest / params.size_1 * params.step_0];
    }
}

} // namespace dnnffi
