#pragma once
/* All-gather in a cluster: each block sends the words of its units into the shared memory of all blocks of
   its group. `cluster.cuh` has the protocol and its proof. */

#include "cluster.cuh"
#include "product_tensor_core.cuh"

namespace dnnffi {

/* The words of an exchange: nobody asks for them. Of several LAYERS, those from `begin` to `end` are
   there. */
struct ClusterGather
{
    Arrivals arrivals;
    const uint4 *staged;
    int phase, begin, end;

    DEVICE void request() const {}

    DEVICE void receive(Sums &sums, Weights &weights, bool &late) const
    {
        arrivals.wait(phase, late);
        multiply_staged(sums, weights, staged, 0, begin, end);
        if (late) {
            asm volatile(""); /* so that it is a branch: selecting each sum takes longer */
            sums.fill(bits_to_float(0x7fc00000u));
        } else arrivals.expect(phase);
    }
};

struct ClusterAllGather : ExchangeDefaults
{
    using Gather = ClusterGather;
    using Sums = dnnffi::Sums;
    using PartialSums = dnnffi::PartialSums;
    static constexpr bool SENDS_WORDS = true;
    static constexpr bool HAS_SECOND_BARRIER = false;

    int rank, order, rows, num_steps;
    uint4 *staged;
    Arrivals arrivals;
    bool late;

    DEVICE ClusterAllGather(const Block &block, const Extent &extent, uint4 *, uint4 *staged_)
        : rank(block.rank), order(block.order), rows(extent.rows), num_steps(extent.num_steps),
          staged(staged_), late(false)
    {
        const int words = PART_WORDS * rows * 16;
        arrivals = {shared_address(staged + STAGED_BYTES / 16), words, order > 0 ? words : 0,
                    order < LAYERS - 1 ? BLOCKS * 16 : 0, num_steps};
        arrivals.begin();
    }

    /* The phase in which words of an exchange come to their own layer. To the one that reads them they come a
       phase earlier. */
    DEVICE static int phase_of(int exchange) { return exchange + (BACKWARD && LAYERS > 1); }

    /* The words that a step multiplies. Of several LAYERS, `other` and `own` say whether the layer that it reads and
       its own have words. */
    DEVICE ClusterGather gather(int exchange, int, bool other, bool own) const
    {
        const int phase = phase_of(exchange);
        return {arrivals, staged + (phase & 1) * GATHERED_WORDS, phase, other ? 0 : PART_WORDS,
                own ? EXCHANGED : PART_WORDS};
    }

    /* Sends what a task has written into a slot of the ring. */
    DEVICE void send(int exchange, int, const uint4 *ring, const Task &task, float scale = 1) const
    {
        if constexpr (LAYERS > 1) {
            send_to_layers(exchange, ring, task);
            return;
        }
        send_words<BLOCKS>(ring, task, scale, [&](int block, const SendableWord &sent) {
            const int unit_word = rank * BLOCK_WORDS + sent.word;
            if (unit_word >= WORDS || sent.row >= rows) return;
            const uint4 *to =
                staged + (exchange & 1) * GATHERED_WORDS + staged_at(sent.gate * WORDS + unit_word, sent.row);
            store_in_block(in_block(shared_address(to), block), sent.factors(),
                           in_block(arrivals.of(exchange), block));
        });
    }

    /* Behind the barrier that follows a product: tells the layer that was read that it was. */
    DEVICE void confirm(int exchange) const
    {
        if constexpr (LAYERS > 1) {
            const int phase = phase_of(exchange), thread = threadIdx.x;
            if (order == 0 || thread >= BLOCKS || phase + 2 > (BACKWARD ? num_steps : num_steps - 1)) return;
            const int block = (order - 1) * BLOCKS + thread;
            const uint4 *to = staged + STAGED_BYTES / 16 + 1;
            store_in_block(in_block(shared_address(to), block), make_uint4(0, 0, 0, 0),
                           in_block(arrivals.of(phase), block));
        }
    }

  private:
    /* `send` with several LAYERS: to its own, and to the one that reads it. */
    DEVICE void send_to_layers(int exchange, const uint4 *ring, const Task &task) const
    {
        const int own = phase_of(exchange), other = own - 1;
        send_words<2 * BLOCKS>(ring, task, 1, [&](int target, const SendableWord &sent) {
            const int gate = sent.gate, to_layer = target / BLOCKS;
            const int unit_word = rank * BLOCK_WORDS + sent.word;
            const bool taken = to_layer == 0 ? (BACKWARD ? gate < GATES : own < num_steps)
                                             : order < LAYERS - 1 && (BACKWARD ? gate >= TWO_N : other >= 0);
            if (unit_word >= WORDS || sent.row >= rows || !taken) return;
            const int place =
                to_layer == 0 ? PART_WORDS + gate * WORDS : (BACKWARD ? gate - TWO_N : 0) * WORDS;
            const int phase = to_layer == 0 ? own : other;
            const int block = (order + to_layer) * BLOCKS + target % BLOCKS;
            const uint4 *to = staged + (phase & 1) * GATHERED_WORDS + staged_at(place + unit_word, sent.row);
            store_in_block(in_block(shared_address(to), block), sent.factors(),
                           in_block(arrivals.of(phase), block));
        });
    }
};

} // namespace dnnffi
