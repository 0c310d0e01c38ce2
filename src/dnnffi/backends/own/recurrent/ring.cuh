/* How do a step's inputs and results reach device memory? Through a ring in shared memory: what a
   step reads is requested RING - 1 steps ahead, what it wrote is stored after it, so that neither
   is waited for. A slot of the ring has a stream of words for each array. */

/* Where the rows of a step lie. Sequences of unequal length are packed: all rows of a step one
   after the other, the longest rows first. */
struct Places
{
    /* PACKED: of each step the first position; of each row its steps, and the caller's number. */
    const int *offsets, *lengths, *order;
    int steps, batch, step_stride, row_stride;
    bool reverse;

    DEVICE int length(int row) const { return PACKED ? lengths[row] : steps; }

    /* The row of the caller's states. */
    DEVICE int users_row(int row) const { return PACKED ? order[row] : row; }

    /* The position of a row in its step number `step`, counted in the direction of the network. */
    DEVICE long long of(int step, int row) const
    {
        if (PACKED) return offsets[reverse ? lengths[row] - 1 - step : step] + row;
        return (long long)(reverse ? steps - 1 - step : step) * step_stride +
               (long long)row * row_stride;
    }
};

/* An array as a stream sees it: elements of a position, and whether words of it can be moved as
   such. `later`: what a step writes is what the next one finds there. */
struct Array
{
    Element *first;
    int width;
    bool whole, later;
};

DEVICE Array no_array() { return {nullptr, 0, true, false}; }

DEVICE Array own_array(Element *first, int columns, bool later = false)
{
    return {first, columns * PADDED, true, later};
}

/* An array of the caller's, whose units are not padded. */
DEVICE Array users_array(const Element *first, int directions)
{
    const bool aligned = HIDDEN == PADDED && ((unsigned long long)first & 15) == 0;
    return {const_cast<Element *>(first), directions * HIDDEN, aligned, false};
}

#ifdef __CUDACC__

/* A word that arrives while the thread continues. */
DEVICE void copy_word(uint4 *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(
                     (u32)__cvta_generic_to_shared(to)),
                 "l"(from)
                 : "memory");
}

DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING> DEVICE void wait_for_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif

DEVICE void copy_in(uint4 *word, const Array &array, long long position, int unit)
{
    const Element *from = array.first + position * array.width + unit;
    if (array.whole) {
        copy_word(word, from);
        return;
    }
    for (int e = 0; e < WORD; e++)
        ((Element *)word)[e] = unit + e < HIDDEN ? from[e] : (Element)0;
}

DEVICE void copy_out(const uint4 &word, const Array &array, long long position, int unit)
{
    Element *to = array.first + position * array.width + unit;
    if (array.whole) {
        *(uint4 *)to = word;
        return;
    }
    for (int e = 0; e < WORD; e++)
        if (unit + e < HIDDEN) to[e] = ((const Element *)&word)[e];
}

/* `Arrays` says of each stream what is read (`source`) and where results go (`target`, and also
   `second`). Each thread moves the same words of a slot in every step. */
template <class Arrays> struct Ring
{
    uint4 *slots;
    Arrays arrays;
    Places places;
    int rank, first_row; /* of the block: among its group, and of its first sub-tile */

    /* Clears the ring and requests the first turns of `last`; those of the first one are there. */
    DEVICE void begin(int last) const
    {
        for (int i = threadIdx.x; i < RING * SUBTILES * RING_WORDS; i += THREADS)
            slots[i] = make_uint4(0, 0, 0, 0);
        __syncthreads();
#pragma unroll
        for (int turn = 0; turn < RING; turn++)
#pragma unroll
            for (int sub = 0; sub < SUBTILES; sub++) {
                if (turn < last) load(BACKWARD ? last - 1 - turn : turn, turn, sub);
                commit_copies();
            }
        wait_for_copies<(RING - 1) * SUBTILES>();
        __syncthreads();
    }

    DEVICE uint4 *slot(int turn, int sub) const
    {
        return slots + (turn % RING * SUBTILES + sub) * RING_WORDS;
    }

    DEVICE void load(int step, int turn, int sub) const
    {
        uint4 *to = slot(turn, sub);
#pragma unroll
        for (int r = 0; r < THREAD_WORDS; r++) {
            const int i = threadIdx.x + r * THREADS, unit = unit_of(i), row = row_of(i, sub);
            const int clamped = row < places.batch ? row : places.batch - 1;
            if (!is_word(i) || unit >= PADDED) continue;
            const Array from = arrays.source(stream_of(i));
            if (from.first && (!PACKED || step < places.length(clamped)))
                copy_in(to + i, from, places.of(step, clamped), unit);
        }
    }

    DEVICE void store(int step, int turn, int sub) const
    {
        const uint4 *from = slot(turn, sub);
#pragma unroll
        for (int r = 0; r < THREAD_WORDS; r++) {
            const int i = threadIdx.x + r * THREADS, unit = unit_of(i), row = row_of(i, sub);
            if (!is_word(i) || unit >= PADDED || row >= places.batch) continue;
            put(from[i], arrays.target(stream_of(i)), step, row, unit);
            put(from[i], arrays.second(stream_of(i)), step, row, unit);
        }
    }

  private:
    DEVICE void put(const uint4 &word, const Array &array, int step, int row, int unit) const
    {
        const int at = step + array.later;
        if (array.first && at < places.length(row))
            copy_out(word, array, places.of(at, row), unit);
    }

    DEVICE static bool is_word(int i)
    {
        return RING_WORDS % THREADS == 0 || i < RING_WORDS;
    }

    DEVICE static int stream_of(int i) { return i / (ROWS * BLOCK_WORDS); }

    DEVICE int row_of(int i, int sub) const { return first_row + sub * ROWS + i % ROWS; }

    DEVICE int unit_of(int i) const { return rank * UNITS + i / ROWS % BLOCK_WORDS * WORD; }
};
