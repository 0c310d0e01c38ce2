/* The backward pass with FMA, and groups of one block. */

#include "backward.cuh"
#include "exchange_whole_rows.cuh"

namespace dnnffi {

extern "C" __global__ void __launch_bounds__(THREADS, 1) recurrent_backward(const BackwardParams params)
{
    extern __shared__ __align__(16) unsigned char memory[];
    run_backward<Fma, WholeRows>(params, (uint4 *)memory);
}

} // namespace dnnffi
