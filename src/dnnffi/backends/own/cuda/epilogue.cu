/* The kernel that adds bias, residual and ReLU to a convolution computed without them. */

#include "element.cuh"

namespace dnnffi {

constexpr int THREADS = Config::THREADS;

/* y = relu(y + alpha * residual + bias), of what there is. The channel of element i is
   i / inner % channels. */
extern "C" __global__ void epilogue(Element *y,              /* [count] */
                                    const Element *residual, /* [count], or null */
                                    const Element *bias,     /* [channels], or null */
                                    double alpha, long long relu, long long count, long long channels,
                                    long long inner)
{
    const Real scale = (Real)alpha;
    const long long step = (long long)gridDim.x * THREADS;
    const int small = count <= 0x7fffffff; /* divisions of 64 bits are slow */
    for (long long at = (long long)blockIdx.x * THREADS + threadIdx.x; at < count; at += step) {
        Real value = real(y[at]);
        if (residual) value += scale * real(residual[at]);
        if (bias)
            value += real(
                bias[small ? (unsigned)at / (unsigned)inner % (unsigned)channels : at / inner % channels]);
        /* NaN stays. */
        y[at] = rounded(relu && value < 0 ? (Real)0 : value);
    }
}

} // namespace dnnffi
