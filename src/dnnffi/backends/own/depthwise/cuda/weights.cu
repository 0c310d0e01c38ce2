/* The weight gradient of a depthwise convolution, channels first.

   A block of `depthwise_weights` sums over some of the positions of one output channel, each thread in
   registers, then over its threads in shared memory. `sum_parts` adds up what the blocks of a channel leave. */

#include "element.cuh"

namespace dnnffi {

constexpr int HIGH = Config::HIGH, WIDE = Config::WIDE; /* taps of the kernel, down and across */
constexpr int THREADS = Config::THREADS;

struct DepthwiseWeightsParams
{
    const Element *dy; /* [batch, channels, rows, columns] */
    const Element *x;  /* [batch, channels / for_each_input, height, width] */
    Element *sums;     /* [parts, channels, HIGH, WIDE] */
    long long batch;
    long long channels;       /* of dy */
    long long for_each_input; /* channels of dy for each channel of x */
    long long height;
    long long width;
    long long rows;
    long long columns;
    long long stride_h;
    long long stride_w;
    long long padding_h; /* before the image */
    long long padding_w;
    long long dilation_h;
    long long dilation_w;
};

/* Grid: [channels, parts]. */
extern "C" __global__ void depthwise_weights(const __grid_constant__ DepthwiseWeightsParams params)
{
    __shared__ Element shared[HIGH * WIDE][THREADS];
    Element sum[HIGH * WIDE];
    const int channel = blockIdx.x, thread = threadIdx.x, step = gridDim.y * THREADS;
    const int size = (int)(params.rows * params.columns), count = (int)(params.batch * size);
    const int across = (int)params.columns, height = (int)params.height, width = (int)params.width;
    const int stride_h = (int)params.stride_h, stride_w = (int)params.stride_w;
    const int padding_h = (int)params.padding_h, padding_w = (int)params.padding_w;
    const int dilation_h = (int)params.dilation_h, dilation_w = (int)params.dilation_w;
    const Element *dy = params.dy, *x = params.x;
    const long long image_size = params.height * params.width;
    const long long channels = params.channels, for_each_input = params.for_each_input;
    const long long inputs = channels / for_each_input, input = channel / for_each_input;
    for (int tap = 0; tap < HIGH * WIDE; tap++) sum[tap] = 0;
    for (int at = blockIdx.y * THREADS + thread; at < count; at += step) {
        const int n = at / size, place = at - n * size, row = place / across;
        const Element gradient = dy[(n * channels + channel) * size + place];
        const Element *image = x + (n * inputs + input) * image_size;
        const int top = row * stride_h - padding_h;
        const int left = (place - row * across) * stride_w - padding_w;
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
            const int y = top + i * dilation_h;
            if (y < 0 || y >= height) continue;
#pragma unroll
            for (int j = 0; j < WIDE; j++) {
                const int z = left + j * dilation_w;
                if (z >= 0 && z < width) sum[i * WIDE + j] += gradient * image[y * width + z];
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
            params.sums[(blockIdx.y * channels + channel) * HIGH * WIDE + tap] = shared[tap][0];
}

struct SumPartsParams
{
    const Element *sums;    /* [parts, num_elements] */
    Element *dw;            /* [num_elements] */
    long long num_elements; /* of dw */
    long long parts;
};

/* dw[i] is the sum of sums[part][i] over all parts. */
extern "C" __global__ void sum_parts(const __grid_constant__ SumPartsParams params)
{
    const long long num_elements = params.num_elements, parts = params.parts;
    const int first = blockIdx.x * THREADS + threadIdx.x;
    for (long long at = first; at < num_elements; at += gridDim.x * THREADS) {
        Element sum = 0;
        for (long long part = 0; part < parts; part++) sum += params.sums[part * num_elements + at];
        params.dw[at] = sum;
    }
}

} // namespace dnnffi
