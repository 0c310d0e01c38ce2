/* The gradient of a convolution's bias: the sum over all dimensions but the channels, in two launches.

   `sums_of_images` (channels first) or `sums_of_rows` (channels last) leaves a sum of each channel for each of
   several parts of the positions; `sums_of_parts` adds these up. */

#include "element.cuh"

namespace dnnffi {

constexpr Dtype SUM = DTYPE == FLOAT64 ? FLOAT64 : FLOAT32; /* of what is added up */
constexpr int THREADS = Config::THREADS;
constexpr int LANES = THREADS < Config::LANES ? THREADS : Config::LANES; /* threads that read neighbours */
constexpr int AT_ONCE = Config::AT_ONCE;                                 /* reads of a thread that overlap */

struct SumsOfImagesParams
{
    const Element *values; /* [batch, channels, size] */
    Real *sums;            /* [parts, channels] */
    long long batch;
    long long channels;
    long long size; /* of an image */
};

/* Channels first: a block sums over some of the positions of one channel. Grid: [channels, parts]. */
extern "C" __global__ void sums_of_images(const __grid_constant__ SumsOfImagesParams params)
{
    __shared__ Real shared[THREADS];
    const Element *values = params.values;
    const long long channels = params.channels, size = params.size;
    const int channel = blockIdx.x, thread = threadIdx.x, step = gridDim.y * THREADS;
    const int across = (int)size, count = (int)(params.batch * size), rest = step % across;
    /* Elements from one position of the thread to its next; `skip` is added at the end of an image. */
    const long long hop = step / across * channels * size + rest, skip = (channels - 1) * size;
    int at = blockIdx.y * THREADS + thread, place = at % across;
    long long where = (at / across * channels + channel) * size + place;
    Real sum = 0, some[AT_ONCE];
    for (; at < count; at += AT_ONCE * step) {
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            some[n] = at + n * step < count ? real(values[where]) : (Real)0;
            where += hop;
            place += rest;
            if (place >= across) {
                place -= across;
                where += skip;
            }
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) sum += some[n];
    }
    shared[thread] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) shared[thread] += shared[thread + half];
    }
    if (thread == 0) params.sums[blockIdx.y * channels + channel] = shared[0];
}

template <Dtype FROM, Dtype TO> struct SumColumnsParams
{
    const typename Storage<FROM>::Type *values; /* [rows, columns] */
    typename Storage<TO>::Type *sums;           /* [parts, columns] */
    long long rows;
    long long columns;
};

/* The sums of the columns of a matrix: a block sums some of the rows of LANES columns at a time. Grid:
   [blocks of columns, parts]. */
template <Dtype FROM, Dtype TO> DEVICE void sum_columns(const SumColumnsParams<FROM, TO> &params)
{
    __shared__ Real shared[THREADS];
    const typename Storage<FROM>::Type *values = params.values;
    const long long rows = params.rows, columns = params.columns;
    const int lane = threadIdx.x % LANES, level = threadIdx.x / LANES;
    const int levels = THREADS / LANES, step = gridDim.y * levels;
    for (long long first = blockIdx.x * LANES; first < columns; first += gridDim.x * LANES) {
        const long long column = first + lane;
        Real sum = 0;
        if (column < columns) {
            long long row = blockIdx.y * levels + level;
            for (; row + (AT_ONCE - 1) * step < rows; row += AT_ONCE * step) {
                Real some[AT_ONCE];
                for (int n = 0; n < AT_ONCE; n++)
                    some[n] = Conversion<FROM>::real(values[(row + n * step) * columns + column]);
                for (int n = 0; n < AT_ONCE; n++) sum += some[n];
            }
            for (; row < rows; row += step) sum += Conversion<FROM>::real(values[row * columns + column]);
        }
        shared[threadIdx.x] = sum;
        __syncthreads();
        if (level == 0 && column < columns) {
            for (int other = 1; other < levels; other++) sum += shared[other * LANES + lane];
            params.sums[blockIdx.y * columns + column] = Conversion<TO>::rounded(sum);
        }
        __syncthreads();
    }
}

using SumsOfRowsParams = SumColumnsParams<DTYPE, SUM>;

/* Channels last: columns are channels. */
extern "C" __global__ void sums_of_rows(const __grid_constant__ SumsOfRowsParams params)
{
    sum_columns(params);
}

using SumsOfPartsParams = SumColumnsParams<SUM, DTYPE>;

/* [parts, channels] become [channels]. */
extern "C" __global__ void sums_of_parts(const __grid_constant__ SumsOfPartsParams params)
{
    sum_columns(params);
}

} // namespace dnnffi
