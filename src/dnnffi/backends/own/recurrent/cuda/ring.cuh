#pragma once
/* Transfer of a step's inputs and results through a ring in shared memory: what a step reads is requested
   RING - 1 steps ahead, what it wrote is stored after it, so that neither is waited for. (With a STREAM_RING
   a step does wait for the inputs that it requested: groups of copies complete in order, and groups of
   weights follow. L2 has these inputs by then.) A slot of the ring has words of each array.

   Inputs that L2 has to fetch from device memory delay the words of h that are requested after them,
   presumably since what a multiprocessor reads comes back in order. L2 is asked for inputs PREFETCH_STEPS
   steps before they are requested; not in a CLUSTER, without tensor cores, and in teams of several blocks,
   where it gained nothing.

   A thread finds out where its words lie once, or anew in each step (FINDS_PLACES). */

#include "block.cuh"
#include "ptx_address.cuh"
#include "ptx_async_copy.cuh"
#include "ptx_l2.cuh"

namespace dnnffi {

constexpr int PREFETCH_STEPS = CLUSTER || FMA || TEAM > 1 ? 0 : 4;

/* Whether the address of a word takes one instruction instead of six. In forward passes it does for many words
   only: with few, steps took longer. */
constexpr bool SHORT_ADDRESSES = BACKWARD || THREAD_WORDS > 2;

/* Positions of rows in arrays: at constant strides, or by the tables of `ragged_rows.cuh`. */
struct RowLayout
{
    /* RAGGED: of each row its steps, the caller's number, and the position of its first step. What is added to
       that: PACKED for each step, else from a step to the next. */
    const int *lengths, *order, *first_positions, *offsets;
    int position_stride;
    /* Strides of a dense array; RAGGED: of the caller's padded arrays, 0 for layers that do not use these. */
    int steps, batch, step_stride, row_stride;
    bool reverse;

    template <class Params>
    DEVICE RowLayout(const Params &params, int direction)
        : lengths(params.lengths), order(params.caller_rows), first_positions(params.first_positions),
          offsets(params.step_offsets), position_stride(params.position_stride), steps(params.steps),
          batch(params.batch), step_stride(params.step_stride), row_stride(params.row_stride),
          reverse(direction == 1)
    {
    }

    DEVICE int length(int row) const { return RAGGED ? lengths[row] : steps; }

    /* The row of the caller's states. */
    DEVICE int caller_row(int row) const { return RAGGED ? order[row] : row; }

    /* Whether the layer's y and dy are the caller's padded arrays. */
    DEVICE bool has_padded() const { return RAGGED && step_stride != 0; }

    /* The position of a row in its step number `step`, counted in the direction of the network. */
    DEVICE long long of(int step, int row) const
    {
        const int number = reverse ? length(row) - 1 - step : step;
        if (!RAGGED) return (long long)number * step_stride + (long long)row * row_stride;
        return first_positions[row] + (PACKED ? offsets[number] : (long long)number * position_stride);
    }
};

/* The extent of a group. */
template <class Params>
DEVICE Extent extent_of(const Params &params, const Block &block, const RowLayout &layout)
{
    const int left = (int)params.batch - block.first_row;
    const int longest = layout.length(block.first_row);
    /* A group whose rows are all of length 0 runs a step, in which no row is live: its blocks exchange words of
       that step as others do. */
    const int num_steps = RAGGED && longest == 0 ? 1 : longest;
    return {left < ROWS ? left : ROWS, num_steps, (int)params.steps};
}

/* An array as the ring sees it: elements of a position, and whether words of it can be moved as
   such. `later`: what a step writes is what the next one finds there. */
template <bool MAY_BE_PADDED> struct ArrayOf
{
    Element *first;
    int width;
    bool whole, later;
    /* An array of the caller's whose rows are padded, while the kernels' own arrays may have other positions.
       Other kernels do not store this, since it changed their code. */
    static constexpr bool padded = false;
    DEVICE void set_padded(bool) {}
};

template <> struct ArrayOf<true>
{
    Element *first;
    int width;
    bool whole, later;
    bool padded;
    DEVICE void set_padded(bool value) { padded = value; }
};

using Array = ArrayOf<RAGGED && !PACKED>;

DEVICE Array no_array() { return {nullptr, 0, true, false}; }

DEVICE Array own_array(Element *first, int columns, bool later = false)
{
    return {first, columns * PADDED, true, later};
}

/* An array whose units are not padded: the caller's, or y of a layer below the last. Its rows are
   `padded` or lie as those of the kernels' own arrays. */
DEVICE Array caller_array(const Element *first, int directions, bool padded = false)
{
    const bool aligned = HIDDEN == PADDED && ((unsigned long long)first & 15) == 0;
    Array array{const_cast<Element *>(first), directions * HIDDEN, aligned, false};
    array.set_padded(padded);
    return array;
}

/* The words of an array that one place of the ring holds one after the other. */
struct RingCursor
{
    Element *first; /* in step 0; PACKED: in a step that has offset 0 */
    int advance;    /* elements, from one step to the next; PACKED: from one position */
    int steps;      /* that there are: 0 for no array, no row, or no unit */
    bool whole;
    int later;

    /* Address in the table of the offset of a step that the cursor has. */
    DEVICE const int *entry(const RowLayout &layout, int step) const
    {
        return layout.offsets + (layout.reverse ? steps - 1 - step : step + later);
    }

    /* The multiple of `advance` between `first` and a step that it has. */
    DEVICE int distance(const RowLayout &layout, int step) const
    {
        return PACKED ? *entry(layout, step) : step;
    }

    DEVICE Element *at(int distance) const
    {
        if (SHORT_ADDRESSES) return address_after(first, distance, advance * (int)sizeof(Element));
        return first + (long long)distance * advance;
    }

    DEVICE void read(uint4 *word, const Element *from, int unit) const
    {
        if (whole) copy_word(word, from);
        else
            for (int e = 0; e < WORD; e++) ((Element *)word)[e] = unit + e < HIDDEN ? from[e] : (Element)0;
    }

    DEVICE void write(const uint4 *word, Element *to, int unit) const
    {
        if (whole) *(uint4 *)to = *word;
        else
            for (int e = 0; e < WORD; e++)
                if (unit + e < HIDDEN) to[e] = ((const Element *)word)[e];
    }
};

DEVICE RingCursor cursor_of(const Array &array, const RowLayout &layout, int unit, int row)
{
    RingCursor cursor{nullptr, 0, 0, array.whole, array.later};
    if (!array.first || unit >= PADDED) return cursor;
    cursor.steps = layout.length(row) - array.later;
    cursor.advance = array.width;
    long long position;
    if (PACKED) position = layout.first_positions[row];
    else {
        const bool own = RAGGED && !array.padded;
        const int stride = own ? layout.position_stride : layout.step_stride;
        const int number = layout.reverse ? cursor.steps - 1 : array.later; /* of the first step */
        cursor.advance *= layout.reverse ? -stride : stride;
        position = own ? layout.first_positions[row] : (long long)layout.caller_row(row) * layout.row_stride;
        position += (long long)number * stride;
    }
    cursor.first = array.first + position * array.width + unit;
    return cursor;
}

/* A cursor that goes from step to step. Of PACKED rows the offset of a step is loaded two steps before: a step
   that waited for it would wait for the words in flight, too. */
struct PassCursor
{
    RingCursor cursor;
    int offset = 0; /* in the table, of the step that is moved next */
    int next = 0;   /* the same of the step after that, in flight */

    DEVICE Element *at(int step) const { return cursor.at(PACKED ? offset : step); }

    /* Loads the offset of a step, if it has that. */
    DEVICE void look_up(const RowLayout &layout, int step)
    {
        load_offset_if(step >= 0 && step < cursor.steps, next, cursor.entry(layout, step));
    }

    /* Waits for the offset that was loaded last. */
    DEVICE void settle() { offset = (int)opaque(next); }
};

/* The turns of a ring, which all rings have in common. `Derived`, the ring itself, has `load` and `store`. */
template <class Derived> struct RingTurns
{
    uint4 *slots;
    RowLayout layout;
    int rank, num_steps, thread;

    DEVICE RingTurns(uint4 *slots_, const RowLayout &layout_, const Block &block, int num_steps_)
        : slots(slots_), layout(layout_), rank(block.rank), num_steps(num_steps_),
          thread(retained(threadIdx.x - RING_FIRST))
    {
    }

    /* Clears the ring and requests the first turns. */
    DEVICE void begin()
    {
        for (int i = threadIdx.x; i < RING * SUBTILES * RING_WORDS; i += THREADS)
            slots[i] = make_uint4(0, 0, 0, 0);
        __syncthreads();
#pragma unroll
        for (int turn = 0; turn < RING; turn++)
#pragma unroll
            for (int sub = 0; sub < SUBTILES; sub++) {
                ring().look_up(turn - RING, sub);
                ring().settle(sub);
                if (turn < num_steps) ring().load(step_of(turn), turn, sub);
                commit_copies();
            }
#pragma unroll
        for (int sub = 0; sub < SUBTILES; sub++) ring().look_up(0, sub);
    }

    /* All threads: what the first turn reads is there. */
    DEVICE void wait_for_first() const
    {
        wait_for_copies<(RING - 1) * SUBTILES + STREAM_RING>();
        __syncthreads();
    }

    /* The step that a turn is for. */
    DEVICE int step_of(int turn) const { return BACKWARD ? num_steps - 1 - turn : turn; }

    /* The step whose inputs L2 is asked for when those of a step are requested. */
    DEVICE static int ahead_of(int step) { return BACKWARD ? step - PREFETCH_STEPS : step + PREFETCH_STEPS; }

    /* Stores what the turn before this one left, and requests what takes its place. */
    DEVICE void advance(int turn, int sub)
    {
        if (RING_FIRST && threadIdx.x < RING_FIRST) return;
        if (turn > 0) {
            ring().store(step_of(turn - 1), turn - 1, sub);
            if (turn - 1 + RING < num_steps) ring().load(step_of(turn - 1 + RING), turn - 1, sub);
        }
        commit_copies();
    }

    /* At the end of a turn: what `advance` of the next one needs is there, and that of the one after is on its
       way. */
    DEVICE void look_ahead(int turn, int sub)
    {
        if (RING_FIRST && threadIdx.x < RING_FIRST) return;
        ring().settle(sub);
        ring().look_up(turn + 1, sub);
    }

    /* Stores what the last turn left. */
    DEVICE void store_last(int sub)
    {
        if (RING_FIRST && threadIdx.x < RING_FIRST) return;
        ring().store(step_of(num_steps - 1), num_steps - 1, sub);
    }

    DEVICE uint4 *slot(int turn, int sub) const
    {
        return slots + ((u32)turn % RING * SUBTILES + sub) * RING_WORDS;
    }

  private:
    DEVICE Derived &ring() { return static_cast<Derived &>(*this); }
};

/* `Arrays` says of each array of a slot what is read (`source`) and where results go (`target`, and if it
   HAS_SECOND also `second`; if it REPLACES_SECOND, another word may go there). Each thread moves the same words of
   a slot in every turn of `num_steps`. Where they lie is found once: a short step has no time for that. */
template <class Arrays, bool FINDS = FINDS_PLACES> struct Ring : RingTurns<Ring<Arrays, FINDS>>
{
    using Turns = RingTurns<Ring<Arrays, FINDS>>;
    using Turns::layout, Turns::rank, Turns::thread, Turns::slot;

    PassCursor sources[SUBTILES][THREAD_WORDS], targets[SUBTILES][THREAD_WORDS];
    PassCursor seconds[SUBTILES][THREAD_WORDS];
    PassCursor fetched[SUBTILES][THREAD_WORDS]; /* the sources, PREFETCH_STEPS ahead */
    Arrays arrays;
    int first_row;

    DEVICE Ring(uint4 *slots_, const Arrays &arrays_, const RowLayout &layout_, const Block &block,
                int num_steps_)
        : Turns(slots_, layout_, block, num_steps_), arrays(arrays_), first_row(block.first_row)
    {
        const bool moves = RING_FIRST == 0 || threadIdx.x >= RING_FIRST;
#pragma unroll
        for (int sub = 0; sub < SUBTILES; sub++)
#pragma unroll
            for (int r = 0; r < THREAD_WORDS; r++) {
                const int i = (moves ? threadIdx.x - RING_FIRST : 0) + r * RING_THREADS;
                const int array = i / RING_ARRAY_WORDS;
                const int row = block.first_row + sub * ROWS + i % ROWS;
                const int clamped = row < layout.batch ? row : layout.batch - 1;
                const int unit = moves && is_word(i) ? unit_of(r) : PADDED;
                const int written = row < layout.batch ? unit : PADDED;
                sources[sub][r].cursor = cursor_of(arrays.source(array), layout, unit, clamped);
                fetched[sub][r].cursor = sources[sub][r].cursor;
                targets[sub][r].cursor = cursor_of(arrays.target(array), layout, written, clamped);
                seconds[sub][r].cursor = cursor_of(arrays.second(array), layout, written, clamped);
            }
    }

    DEVICE void load(int step, int turn, int sub) const
    {
        uint4 *to = slot(turn, sub) + thread;
#pragma unroll
        for (int r = 0; r < THREAD_WORDS; r++) {
            const PassCursor &source = sources[sub][r];
            if (step >= source.cursor.steps) continue;
            source.cursor.read(to + r * RING_THREADS, source.at(step), unit_of(r));
        }
        if (PREFETCH_STEPS == 0) return;
#pragma unroll
        for (int r = 0; r < THREAD_WORDS; r++) {
            const PassCursor &source = fetched[sub][r];
            const int ahead = Turns::ahead_of(step);
            if (ahead >= 0 && ahead < source.cursor.steps) prefetch(source.at(ahead));
        }
    }

    DEVICE void store(int step, int turn, int sub) const
    {
        const uint4 *from = slot(turn, sub) + thread;
#pragma unroll
        for (int r = 0; r < THREAD_WORDS; r++) {
            const uint4 *const word = from + r * RING_THREADS;
            store_word(targets[sub][r], word, r, step);
            if constexpr (!Arrays::HAS_SECOND) continue;
            if constexpr (Arrays::REPLACES_SECOND) {
                if (step >= seconds[sub][r].cursor.steps) continue;
                const int group_row = sub * ROWS + (thread + r * RING_THREADS) % ROWS;
                const uint4 second =
                    arrays.second_word(layout, *word, turn, first_row, group_row, unit_of(r));
                store_word(seconds[sub][r], &second, r, step);
            } else store_word(seconds[sub][r], word, r, step);
        }
    }

    /* Loads the offsets that `advance` of the next turn needs. */
    DEVICE void look_up(int turn, int sub)
    {
        if (!PACKED) return;
        const int stored = Turns::step_of(turn), loaded = Turns::step_of(turn + RING);
#pragma unroll
        for (int r = 0; r < THREAD_WORDS; r++) {
            sources[sub][r].look_up(layout, loaded);
            targets[sub][r].look_up(layout, stored);
            seconds[sub][r].look_up(layout, stored);
            if (PREFETCH_STEPS > 0) fetched[sub][r].look_up(layout, Turns::ahead_of(loaded));
        }
    }

    DEVICE void settle(int sub)
    {
        if (!PACKED) return;
#pragma unroll
        for (int r = 0; r < THREAD_WORDS; r++) {
            sources[sub][r].settle();
            targets[sub][r].settle();
            seconds[sub][r].settle();
            if (PREFETCH_STEPS > 0) fetched[sub][r].settle();
        }
    }

  private:
    DEVICE void store_word(const PassCursor &target, const uint4 *from, int r, int step) const
    {
        if (step < target.cursor.steps) target.cursor.write(from, target.at(step), unit_of(r));
    }

    DEVICE static bool is_word(int i) { return RING_WORDS % RING_THREADS == 0 || i < RING_WORDS; }

    DEVICE int unit_of(int r) const
    {
        return rank * UNITS + (thread + r * RING_THREADS) / ROWS % ARRAY_WORDS * WORD;
    }
};

/* The words of a slot that a thread moves if its places are found in each step: of the same row and units
   in all arrays, or of OF_ARRAY of these. A round moves whole arrays, as many AT_ONCE as there are threads
   for. */
struct ArrayWords
{
    static constexpr int AT_ONCE = RING_THREADS > RING_ARRAY_WORDS ? RING_THREADS / RING_ARRAY_WORDS : 1;
    static constexpr int OF_ARRAY = (RING_ARRAY_WORDS + RING_THREADS - 1) / RING_THREADS;
    static constexpr int COUNT = (RING_ARRAYS + AT_ONCE - 1) / AT_ONCE * OF_ARRAY; /* words of a thread */

    int thread;

    DEVICE int array(int r) const
    {
        return r / OF_ARRAY * AT_ONCE + (AT_ONCE > 1 ? thread / RING_ARRAY_WORDS : 0);
    }

    DEVICE int place(int r) const { return array(r) * RING_ARRAY_WORDS + in_array(r); } /* in the slot */

    DEVICE bool has(int r) const
    {
        if (AT_ONCE > 1)
            return thread < AT_ONCE * RING_ARRAY_WORDS &&
                   (RING_ARRAYS % AT_ONCE == 0 || array(r) < RING_ARRAYS);
        return RING_ARRAY_WORDS % RING_THREADS == 0 || in_array(r) < RING_ARRAY_WORDS;
    }

    DEVICE int row(int r) const { return in_array(r) % ROWS; }

    /* The first unit of a word, counted from the block's first. */
    DEVICE int unit(int r) const { return in_array(r) / ROWS * WORD; }

  private:
    DEVICE int in_array(int r) const
    {
        return AT_ONCE > 1 ? thread % RING_ARRAY_WORDS : thread + r % OF_ARRAY * RING_THREADS;
    }
};

/* The same with places that are found in each step. Cursors of many words would take the registers that sums
   and weights need, and what is spilled goes to L2, since shared memory leaves next to no room in L1. */
template <class Arrays> struct Ring<Arrays, true> : RingTurns<Ring<Arrays, true>>
{
    using Turns = RingTurns<Ring<Arrays, true>>;
    using Turns::layout, Turns::rank, Turns::thread, Turns::slot;

    Arrays arrays;
    int first_row;

    DEVICE Ring(uint4 *slots_, const Arrays &arrays_, const RowLayout &layout_, const Block &block,
                int num_steps_)
        : Turns(slots_, layout_, block, num_steps_), arrays(arrays_), first_row(block.first_row)
    {
    }

    DEVICE void load(int step, int turn, int sub) const
    {
        uint4 *const to = slot(turn, sub);
        for_each_word(sub, [&](int place, int array, int unit, int row) {
            const int clamped = row < layout.batch ? row : layout.batch - 1;
            const RingCursor source = cursor_of(arrays.source(array), layout, unit, clamped);
            if (step < source.steps) source.read(to + place, source.at(source.distance(layout, step)), unit);
            const int ahead = Turns::ahead_of(step);
            if (PREFETCH_STEPS > 0 && ahead >= 0 && ahead < source.steps)
                prefetch(source.at(source.distance(layout, ahead)));
        });
    }

    DEVICE void store(int step, int turn, int sub) const
    {
        const uint4 *const from = slot(turn, sub);
        for_each_word(sub, [&](int place, int array, int unit, int row) {
            if (row >= layout.batch) return;
            const auto store_to = [&](const Array &found, const uint4 *word) {
                const RingCursor target = cursor_of(found, layout, unit, row);
                if (step < target.steps) target.write(word, target.at(target.distance(layout, step)), unit);
            };
            store_to(arrays.target(array), from + place);
            if constexpr (!Arrays::HAS_SECOND) return;
            const Array second = arrays.second(array);
            if constexpr (Arrays::REPLACES_SECOND) {
                if (!second.first) return;
                const uint4 word =
                    arrays.second_word(layout, from[place], turn, first_row, row - first_row, unit);
                store_to(second, &word);
            } else store_to(second, from + place);
        });
    }

    DEVICE void look_up(int, int) const {}
    DEVICE void settle(int) const {}

  private:
    /* Calls `move` with the place in the slot, the array, the unit and the row of each word of the thread.
       The compiler cannot know that the thread is the same in every step; else it would find all places
       before the loop. */
    template <class Move> DEVICE void for_each_word(int sub, Move move) const
    {
        const ArrayWords words{(int)opaque(thread)};
#pragma unroll
        for (int r = 0; r < ArrayWords::COUNT; r++)
            if (words.has(r))
                move(words.place(r), words.array(r), rank * UNITS + words.unit(r),
                     first_row + sub * ROWS + words.row(r));
    }
};

} // namespace dnnffi
