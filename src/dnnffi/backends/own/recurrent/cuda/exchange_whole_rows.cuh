#pragma once
/* Exchange of groups without tensor cores, which are one block or a CLUSTER. The state of a step, or backward the
   gradients of its gates, is staged as float32 by who computed it, in two places in turn; in a CLUSTER in all
   blocks.

   Why no thread reads early, or overwrites what is still to be read: a step reads one place and writes the
   other, and its barrier comes after the cells. In a CLUSTER, `cluster.cuh` says why; there each thread sends its part of
   exchange e + 1 after its own products of e, so that what arrives of all threads tells that all have read
   e. */

#include "cluster.cuh"
#include "product_fma.cuh"

namespace dnnffi {

/* What is staged of an exchange: nobody asks for it. */
struct WholeRowsGather
{
    Arrivals arrivals; /* of a CLUSTER */
    const float *staged;
    int exchange;

    DEVICE void request() const {}

    DEVICE void receive(Sums &sums, const Weights &weights, bool &late) const
    {
        if (threadIdx.x >= CELL_THREADS) return;
        if constexpr (CLUSTER) arrivals.wait(exchange, late);
        sums.add(weights, (const float4 *)staged);
        if constexpr (CLUSTER) {
            if (late) sums.fill(bits_to_float(0x7fc00000u));
            else arrivals.expect(exchange);
        }
    }
};

struct WholeRows : NoScatter
{
    using Gather = WholeRowsGather;
    using Sums = dnnffi::Sums;
    using PartialSums = dnnffi::PartialSums;
    static constexpr bool SENDS_WORDS = false;
    static constexpr bool ENDS_STEP_WITH_BARRIER = false;

    float *staged;
    int rank, rows;
    Arrivals arrivals; /* of a CLUSTER */
    bool late;

    DEVICE WholeRows(const Block &block, const Extent &extent, uint4 *, uint4 *staged_)
        : staged((float *)staged_), rank(block.rank), rows(extent.rows), arrivals{}, late(false)
    {
        if constexpr (CLUSTER) {
            const int bytes = rows * STAGED_FLOATS * 4;
            arrivals = {shared_address(staged_ + STAGED_BYTES / 16), bytes, 0, 0, extent.last};
            arrivals.begin();
        }
    }

    DEVICE float *place(int exchange) const { return staged + (exchange & 1) * ROWS * STAGED_FLOATS; }

    DEVICE WholeRowsGather gather(int exchange, int, bool, bool) const
    {
        return {arrivals, place(exchange), exchange};
    }

    /* Stages what a task's cell has for the next product. Threads that have the same cell share the
       blocks of a CLUSTER. */
    DEVICE void put(int exchange, const Task &task, const Element *stored) const
    {
        const int unit = rank * UNITS + task.unit;
        float *to = place(exchange) + task.row * STAGED_FLOATS + unit * VALUES;
        float values[VALUES];
#pragma unroll
        for (int i = 0; i < VALUES; i++) values[i] = real(stored[i]);
        if constexpr (CLUSTER) {
            if (unit >= PADDED || task.row >= rows) return;
#pragma unroll
            for (int i = 0; i < BLOCKS; i += ALIKE) {
                const int block = i + task.alike;
                if (BLOCKS % ALIKE != 0 && block >= BLOCKS) continue;
                const u32 at = in_block(shared_address(to), block);
                const u32 barrier = in_block(arrivals.of(exchange), block);
                if constexpr (VALUES == 4) {
                    union {
                        float values[4];
                        uint4 word;
                    } sent;
                    for (int j = 0; j < 4; j++) sent.values[j] = values[j];
                    store_in_block(at, sent.word, barrier);
                } else
                    for (int j = 0; j < VALUES; j++) store_float_in_block(at + 4 * j, values[j], barrier);
            }
        } else if (task.alike == 0) {
#pragma unroll
            for (int i = 0; i < VALUES; i++) to[i] = values[i];
        }
    }
};

} // namespace dnnffi
