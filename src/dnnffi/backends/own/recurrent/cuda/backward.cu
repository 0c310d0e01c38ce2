/* The backward pass with tensor cores, and words that go through L2. */

#include "backward.cuh"
#include "exchange_l2.cuh"

namespace dnnffi {

extern "C" __global__ void __launch_bounds__(THREADS, 1) recurrent_backward(const BackwardParams params)
{
    extern __shared__ __align__(16) unsigned char memory[];
    run_backward<TensorCores, L2AllGather>(params, (uint4 *)memory);
}

} // namespace dnnffi
