/* What is common to the forward and the backward kernel: a thread's cells, and the loop's parts. */

/* The cells of a thread in one of its warp's tasks: one unit, one or two rows. */
struct Task
{
    int octet, column, odd; /* of the block's units, of the rows; which of two rows comes first */
    int unit, row;          /* of the thread, in the block */
    bool there;

    DEVICE Task(int number, int warp, int lane)
    {
        const int task = warp + number * WARPS, pair = CELLS == 1 ? task / 2 : task;
        odd = CELLS == 1 ? task % 2 : 0;
        octet = pair / COLUMNS;
        column = pair % COLUMNS;
        unit = octet * 8 + lane / 4;
        row = column * 8 + lane % 4 * 2 + odd;
        there = task < TASKS;
    }
};

/* The element of a thread's cell in a stream of a slot. */
DEVICE Element &element(uint4 *slot, int stream, int unit, int row)
{
    return ((Element *)(slot + (stream * BLOCK_WORDS + unit / WORD) * ROWS + row))[unit % WORD];
}

/* Sends what a task has written into the stream `stream` of a slot: word `gate` of the exchange,
   of which `to` is a slot, or what is staged of a group ALONE. */
DEVICE void send(
    uint4 *to, const uint4 *slot, int stream, int gate, const Task &task, int rank, u32 tag)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = lane; i < TASK_WORDS; i += 32) {
        const int word = task.octet * (8 / WORD) + i / (4 * CELLS);
        const int row = task.column * 8 + (CELLS == 2 ? i % 8 : i % 4 * 2 + task.odd);
        const int unit_word = rank * BLOCK_WORDS + word, at = gate * WORDS + unit_word;
        if (unit_word >= WORDS) continue;
        const uint4 factors = as_factors(slot[(stream * BLOCK_WORDS + word) * ROWS + row]);
        if constexpr (ALONE) to[staged_at(at, row)] = factors;
        else store_word(to + at * ROWS + row, tagged(factors, tag));
    }
}

/* The tags that the previous launch left in this block's own words. */
DEVICE Tags tags_of(const uint4 *exchanged, int rank)
{
    Tags tags{};
    for (int slot = 0; slot < 2 && !ALONE; slot++)
        tags.found[slot] =
            load_word(exchanged + slot * SLOT_WORDS + rank * BLOCK_WORDS * ROWS).w & TAG ? 1 : 0;
    return tags;
}

/* The product of a step, from what the group exchanged; `meanwhile` runs while words arrive. */
template <class Meanwhile>
DEVICE void product(
    Sums &sums, const Weights &weights, const uint4 *exchanged, uint4 *staged, int exchange,
    const Tags &tags, bool &late, Meanwhile meanwhile)
{
    const uint4 *slot = exchanged + (exchange & 1) * SLOT_WORDS;
    const u32 tag = tags.of(exchange);
    if constexpr (ALONE) {
        meanwhile();
        multiply_staged(sums, weights, staged);
    } else if constexpr (STAGED) gather_staged(sums, weights, slot, staged, tag, late, meanwhile);
    else gather(sums, weights, slot, tag, late, meanwhile);
}
