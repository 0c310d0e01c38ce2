#pragma once
/* All-gather through L2: each block of a group sends the words of its units, and gathers those of all units.
   `exchange_flags.cuh` has the protocol and its proof. */

#include "block.cuh"
#include "gather.cuh"

namespace dnnffi {

template <bool FIRST, class A, class B> struct Either
{
    using Type = A;
};

template <class A, class B> struct Either<false, A, B>
{
    using Type = B;
};

struct L2AllGather : ExchangeDefaults
{
    using Gather =
        Either<(CHUNKS > 1), ChunkedGather, Either<STAGED, StagedGather, RegisterGather>::Type>::Type;
    using Sums = dnnffi::Sums;
    using PartialSums = dnnffi::PartialSums;
    static constexpr bool SENDS_WORDS = true;
    static constexpr bool HAS_SECOND_BARRIER = true;

    int rank, order, steps;
    uint4 *slots; /* of each sub-tile: two, or all of all LAYERS */
    uint4 *staged;
    Gather::Place place;
    Tags tags; /* of the previous launch, found in this block's own words */
    bool late;

    DEVICE L2AllGather(const Block &block, const Extent &extent, uint4 *exchange, uint4 *staged_)
        : rank(block.rank), order(block.order), steps(extent.max_steps),
          slots(exchange + (long long)block.group * SUBTILES * slot_count() * SLOT_WORDS), staged(staged_),
          tags{}, late(false)
    {
        if constexpr (LAYERS == 1) /* of LAYERS each word is written once, with the tag 1 */
            tags.read(gathered(0, 0) + rank * BLOCK_WORDS * ROWS);
    }

    /* Slots of a sub-tile. */
    DEVICE int slot_count() const { return LAYERS > 1 ? (steps + LAYERS) * LAYERS : 2; }

    /* The slot of an exchange of a sub-tile. Those of LAYERS lie by diagonals, so that one layer's
       next exchange is just before what the layer that reads it exchanges. */
    DEVICE uint4 *slot(int exchange, int sub) const
    {
        if constexpr (LAYERS > 1) {
            const long long number = sub * slot_count() + (exchange + order) * LAYERS + order;
            return slots + number * SLOT_WORDS;
        }
        return slots + (sub * 2 + (exchange & 1)) * SLOT_WORDS;
    }

    /* In it, the words that this block gathers; of LAYERS from those of the layer that it reads. */
    DEVICE uint4 *gathered(int exchange, int sub) const
    {
        return slot(exchange, sub) - (LAYERS > 1 ? PART_WORDS * ROWS : 0);
    }

    /* The words that a step multiplies. Of several LAYERS, `other` and `own` say whether the layer that it reads and
       its own have words. */
    DEVICE Gather gather(int exchange, int sub, bool other, bool own) const
    {
        const Source source{gathered(exchange, sub), other ? 0 : PART_WORDS * ROWS,
                            (own ? EXCHANGED : PART_WORDS) * ROWS};
        return Gather(place, source, staged, tags.of(exchange));
    }

    /* Sends what a task has written into a slot of the ring. */
    DEVICE void send(int exchange, int sub, const uint4 *ring, const Task &task, float scale = 1) const
    {
        send_words<1>(ring, task, scale, [&](int, const SendableWord &sent) {
            const int unit_word = rank * BLOCK_WORDS + sent.word;
            if (unit_word >= WORDS) return;
            store_word(slot(exchange, sub) + (unit_word * ROWS + sent.row) + sent.gate * WORDS * ROWS,
                       tagged(sent.factors(), tags.of(exchange)));
        });
    }
};

} // namespace dnnffi
