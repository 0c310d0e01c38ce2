/* The backward pass with tensor cores, and a cluster whose blocks write into each other's shared memory. */

#include "backward.cuh"
#include "exchange_cluster.cuh"

namespace dnnffi {

extern "C" __global__ void __cluster_dims__(BLOCKS *LAYERS, 1, 1) __launch_bounds__(THREADS, 1)
    recurrent_backward(const BackwardParams params)
{
    extern __shared__ __align__(16) unsigned char memory[];
    run_backward<TensorCores, ClusterAllGather>(params, (uint4 *)memory);
}

} // namespace dnnffi
