/* The weight gradient of a depthwise convolution, channels first.

   A block of `depthwise_weights` sums over some of the positions of one output channel, each thread in
   registers, then over its threads in shared memory. `sum_parts` adds up what the blocks of a channel leave. */

#include "element.cuh"

namespace dnnffi {

constexpr int HIGH = Config::HIGH, WIDE = Config::WIDE; /* taps of the kernel, down and across */
constexpr int THREADS = Config::THREADS;

/* Grid: [channels, parts]. */
extern "C" __global__ void
depthwise_weights(const Element *dy, /* [batch, channels, rows, columns] */
                  const Element *x,  /* [batch, channels / for_each_input, height, width] */
                  Element *sums,     /* [parts, channels, HIGH, WIDE] */
                  long long batch, long long channels, long long for_each_input, long long height,
                  long long width, long long rows, long long columns, long long stride_h, long long stride_w,
                  long long padding_h, long long padding_w, long long dilation_h, long long dilation_w)
{
    __shared__ Element shared[HIGH * WIDE][THREADS];
    Element sum[HIGH * WIDE];
    const int channel = blockIdx.x, thread = threadIdx.x, step = gridDim.y * THREADS;
    const int size = (int)(rows * columns), count = (int)(batch * size), across = (int)columns;
    const long long inputs = channels / for_each_input, input = channel / for_each_input;
    for (int tap = 0; tap < HIGH * WIDE; tap++) sum[tap] = 0;
    for (int at = blockIdx.y * THREADS + thread; at < count; at += step) {
        const int n = at / size, place = at - n * size, row = place / across;
        const Element gradient = dy[(n * channels + channel) * size + place];
        const Element *image = x + (n * inputs + input) * height * width;
        const int top = row * (int)stride_h - (int)padding_h;
        const int left = (place - row * across) * (int)stride_w - (int)padding_w;
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
            const int y = top + i * (int)dilation_h;
            if (y < 0 || y >= (int)height) continue;
#pragma unroll
            for (int j = 0; j < WIDE; j++) {
                const int z = left + j * (int)dilation_w;
                if (z >= 0 && z < (int)width) sum[i * WIDE + j] += gradient * image[y * (int)width + z];
            }
        }
    }
    for (int tap = 0; tap < HIGH * WIDE; tap++) shared[tap][thread] = sum[tap];
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half)
            for (int tap = 0; tap < HIGH * WIDE; tap++) shared[tap][thread] += shared[tap][thread + half];
    }
    if (thread == 0)
        for (int tap = 0; tap < HIGH * WIDE; tap++)
            sums[(blockIdx.y * channels + channel) * HIGH * WIDE + tap] = shared[tap][0];
}

/* dw[i] is the sum of sums[part][i] over all parts; `count` is the size of dw. */
extern "C" __global__ void sum_parts(const Element *sums, /* [parts, count] */
                                     Element *dw,         /* [count] */
                                     long long count, long long parts)
{
    const int first = blockIdx.x * THREADS + threadIdx.x;
    for (long long at = first; at < count; at += gridDim.x * THREADS) {
        Element sum = 0;
        for (long long part = 0; part < parts; part++) sum += sums[part * count + at];
        dw[at] = sum;
    }
}

} // namespace dnnffi
