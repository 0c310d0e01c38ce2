/* The forward pass with tensor cores, and a cluster whose blocks write into each other's shared memory. */

#include "exchange_cluster.cuh"
#include "forward.cuh"

namespace dnnffi {

extern "C" __global__ void __cluster_dims__(BLOCKS *LAYERS, 1, 1) __launch_bounds__(THREADS, MIN_BLOCKS)
    recurrent_forward(const ForwardParams params)
{
    extern __shared__ __align__(16) unsigned char memory[];
    run_forward<TensorCores, ClusterAllGather>(params, (uint4 *)memory);
}

} // namespace dnnffi
