#pragma once
/* Exchange of a group that is one block, without tensor cores: nothing leaves the block. The state of a step,
   or backward the gradients of its gates, is staged as float32 by who computed it, in two places in turn.

   Why no thread reads early, or overwrites what is still to be read: a step reads one place and writes the
   other, and its barrier comes after the cells. */

#include "block.cuh"
#include "product_fma.cuh"

namespace dnnffi {

/* The staged part of an exchange, which no thread asks for. */
struct WholeRowsGather
{
    const float *staged;

    DEVICE void request() const {}

    DEVICE void receive(Sums &sums, Weights &weights, bool &) const
    {
        if (threadIdx.x < CELL_THREADS) sums.add(weights, (const float4 *)staged);
    }
};

struct WholeRows : ExchangeDefaults
{
    using Gather = WholeRowsGather;
    using Sums = dnnffi::Sums;
    using PartialSums = dnnffi::PartialSums;
    static constexpr bool SENDS_WORDS = false;
    static constexpr bool HAS_SECOND_BARRIER = false;

    float *staged;
    bool late;

    DEVICE WholeRows(const Block &, const Extent &, uint4 *, uint4 *staged_)
        : staged((float *)staged_), late(false)
    {
    }

    DEVICE float *staged_of(int exchange) const { return staged + (exchange & 1) * ROWS * STAGED_FLOATS; }

    DEVICE WholeRowsGather gather(int exchange, int, bool, bool) const { return {staged_of(exchange)}; }

    /* Stages what a task's cell has for the next product. */
    DEVICE void put(int exchange, const Task &task, const Element *stored) const
    {
        if (task.alike > 0) return;
        float *to = staged_of(exchange) + task.row * STAGED_FLOATS + task.unit * VALUES;
#pragma unroll
        for (int i = 0; i < VALUES; i++) to[i] = real(stored[i]);
    }
};

} // namespace dnnffi
