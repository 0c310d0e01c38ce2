#pragma once
/* Common parts of the forward and the backward pass: their beginning, and the barrier of a step. */

#include "block.cuh"
#include "ptx_async_copy.cuh"
#include "ring.cuh"

namespace dnnffi {

/* Reads the weights of the block, and asks for the inputs of the first turns. `memory` is the shared memory
   of the block. */
template <class Product, class Params, class Arrays>
DEVICE typename Product::Weights read_weights(const Params &params, const Block &block, Ring<Arrays> &ring,
                                              uint4 *memory)
{
    if (!Product::WEIGHTS_PASS_THROUGH_RING) ring.begin();
    typename Product::Weights weights;
    const auto *factors =
        (const typename Product::Factor *)params.matrices + block.state_number * params.matrix_stride;
    weights.read({factors, block.rank, block.order}, memory, params.streamed, block.warp, block.lane);
    if (Product::WEIGHTS_PASS_THROUGH_RING) ring.begin();
    weights.begin_stream();
    return weights;
}

/* The barrier of a step: it shows the next step's inputs to all threads, and the partial sums or, without
   tensor cores, what the cells have staged. `received` is the exchange that the step has read.

   Groups of copies complete in order. Behind the inputs of the next step come those of RING - 2 later
   ones, and at least STREAM_RING groups of weights: those of `begin_stream`, or of the products in
   between, whose number is K_STREAMED. (A kernel that scatters multiplies a step earlier, so that its RING
   has a step more.) */
template <class Exchange> DEVICE void sync_step(const Exchange &exchange, int received)
{
    wait_for_copies<(RING - 2) * SUBTILES - !Exchange::HAS_SECOND_BARRIER + STREAM_RING>();
    __syncthreads();
    exchange.confirm(received);
}

} // namespace dnnffi
