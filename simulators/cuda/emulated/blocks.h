/* The keywords of CUDA that the kernels of convolutions use, in C++; included before their source. Threads of
   a block run in turns, each on a separate stack, and switch at a barrier. Blocks run one after another, so
   that shared memory is static. */
#include <ucontext.h>

#include "arguments.h"

#define __global__
#define __grid_constant__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(threads)
static struct { int x, y; } blockIdx, gridDim, threadIdx;

static constexpr int MOST_THREADS = 1024, STACK = 1 << 16;
static ucontext_t block, of_thread[MOST_THREADS];
static bool ended[MOST_THREADS];
static const void *given;

static void launch(const void *arguments);

/* Switch to the other threads until all have reached the barrier. */
static void __syncthreads() { swapcontext(&of_thread[threadIdx.x], &block); }

static void run_thread()
{
    launch(given);
    ended[threadIdx.x] = true;
}

/* Nonzero if some threads have ended and others wait at a barrier, for good on a device. */
extern "C" __attribute__((visibility("default")))
int run_block(char *stacks, const void *arguments, int threads, int x, int y, int across, int down)
{
    blockIdx = {x, y}, gridDim = {across, down};
    given = arguments;
    for (int thread = 0; thread < threads; thread++) {
        ended[thread] = false;
        getcontext(&of_thread[thread]);
        of_thread[thread].uc_stack.ss_sp = stacks + thread * STACK;
        of_thread[thread].uc_stack.ss_size = STACK;
        of_thread[thread].uc_link = &block;
        makecontext(&of_thread[thread], run_thread, 0);
    }
    for (int left = threads; left;) {
        const int before = left;
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {
            if (ended[threadIdx.x]) continue;
            swapcontext(&block, &of_thread[threadIdx.x]);
            left -= ended[threadIdx.x];
        }
        if (left && left < before) return 1;
    }
    return 0;
}
