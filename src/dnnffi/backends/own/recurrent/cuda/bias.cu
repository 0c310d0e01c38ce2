/* The kernel that sums the gradients of the biases of all layers. */

#include "bias_gradients.cuh"

namespace dnnffi {

/* Grid: `blocks()`. */
extern "C" __global__ void bias_gradients(const __grid_constant__ BiasGradientsParams biases)
{
    extern __shared__ __align__(16) unsigned char memory[];
    biases.add_up(blockIdx.x, (float *)memory);
}

} // namespace dnnffi
