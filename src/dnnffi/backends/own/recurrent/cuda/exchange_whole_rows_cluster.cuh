#pragma once
/* All-gather of float32 in a cluster, without tensor cores: the state of a step, or backward the gradients of
   its gates, is staged in all blocks by who computed it, in two places in turn.

   `cluster.cuh` proves that no thread reads early, and that no word is overwritten before it is read, for
   blocks that send after a barrier of their threads. Here each thread sends its part of exchange e + 1 after
   its own products of e, so that a phase ends only when all threads have read e. */

#include "cluster.cuh"
#include "product_fma.cuh"

namespace dnnffi {

/* The staged part of an exchange, which no thread asks for. */
struct WholeRowsClusterGather
{
    Arrivals arrivals;
    const float *staged;
    int exchange;

    DEVICE void request() const {}

    DEVICE void receive(Sums &sums, Weights &weights, bool &late) const
    {
        if (threadIdx.x >= CELL_THREADS) return;
        arrivals.wait(exchange, late);
        sums.add(weights, (const float4 *)staged);
        if (late) sums.fill(bits_to_float(0x7fc00000u));
        else arrivals.expect(exchange);
    }
};

struct WholeRowsCluster : ExchangeDefaults
{
    using Gather = WholeRowsClusterGather;
    using Sums = dnnffi::Sums;
    using PartialSums = dnnffi::PartialSums;
    static constexpr bool SENDS_WORDS = false;
    static constexpr bool HAS_SECOND_BARRIER = false;

    float *staged;
    int rank, rows;
    Arrivals arrivals;
    bool late;

    DEVICE WholeRowsCluster(const Block &block, const Extent &extent, uint4 *, uint4 *staged_)
        : staged((float *)staged_), rank(block.rank), rows(extent.rows), late(false)
    {
        const int bytes = rows * STAGED_FLOATS * 4;
        arrivals = {shared_address(staged_ + STAGED_BYTES / 16), bytes, 0, 0, extent.num_steps};
        arrivals.begin();
    }

    DEVICE float *staged_of(int exchange) const { return staged + (exchange & 1) * ROWS * STAGED_FLOATS; }

    DEVICE WholeRowsClusterGather gather(int exchange, int, bool, bool) const
    {
        return {arrivals, staged_of(exchange), exchange};
    }

    /* Stages what a task's cell has for the next product. Threads that have the same cell share the
       blocks. */
    DEVICE void put(int exchange, const Task &task, const Element *stored) const
    {
        const int unit = rank * UNITS + task.unit;
        float *to = staged_of(exchange) + task.row * STAGED_FLOATS + unit * VALUES;
        float values[VALUES];
#pragma unroll
        for (int i = 0; i < VALUES; i++) values[i] = real(stored[i]);
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
    }
};

} // namespace dnnffi
