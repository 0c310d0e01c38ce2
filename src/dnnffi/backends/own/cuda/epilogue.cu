/* The kernel that adds bias, residual and ReLU to a convolution computed without them. */

#include "element.cuh"

namespace dnnffi {

constexpr int THREADS = Config::THREADS;

struct EpilogueParams
{
    Element *y;              /* [num_elements] */
    const Element *residual; /* [num_elements], or null */
    const Element *bias;     /* [channels], or null */
    double alpha;            /* factor of residual */
    long long relu;          /* 0: none */
    long long num_elements;
    long long channels;
    long long inner; /* elements of a channel that lie together */
};

/* y = relu(y + alpha * residual + bias), of what there is. The channel of element i is
   i / inner % channels. */
extern "C" __global__ void epilogue(const __grid_constant__ EpilogueParams params)
{
    const Real scale = (Real)params.alpha;
    const long long step = (long long)gridDim.x * THREADS;
    const unsigned inner = (unsigned)params.inner, channels = (unsigned)params.channels;
    const int small = params.num_elements <= 0x7fffffff; /* divisions of 64 bits are slow */
    for (long long at = (long long)blockIdx.x * THREADS + threadIdx.x; at < params.num_elements; at += step) {
        Real value = real(params.y[at]);
        if (params.residual) value += scale * real(params.residual[at]);
        if (params.bias) {
            const long long channel =
                small ? (unsigned)at / inner % channels : at / params.inner % params.channels;
            value += real(params.bias[channel]);
        }
        /* NaN stays. */
        params.y[at] = rounded(params.relu && value < 0 ? (Real)0 : value);
    }
}

} // namespace dnnffi
