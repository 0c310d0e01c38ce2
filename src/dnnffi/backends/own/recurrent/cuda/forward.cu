/* The forward pass with tensor cores, and words that go through L2. */

#include "exchange_l2.cuh"
#include "forward.cuh"

namespace dnnffi {

extern "C" __global__ void __launch_bounds__(THREADS, 1) recurrent_forward(const ForwardParams params)
{
    extern __shared__ __align__(16) unsigned char memory[];
    run_forward<TensorCores, L2AllGather>(params, (uint4 *)memory);
}

} // namespace dnnffi
