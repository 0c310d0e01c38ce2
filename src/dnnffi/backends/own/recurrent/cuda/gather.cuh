#pragma once
/* Gathering of words that a group exchanged through L2, in three variants: `StagedGather`, `ChunkedGather`,
   `RegisterGather`. `request` asks for the first words; `receive` waits for them, asks for the rest, and
   multiplies. Other loads are issued between the two. */

#include "exchange_flags.cuh"
#include "product_tensor_core.cuh"
#include "ptx_barrier.cuh"
#include "ptx_l2.cuh"

namespace dnnffi {

constexpr int IN_FLIGHT = 8; /* words of a thread that are in flight at once */

/* The words that a block gathers in a step, [EXCHANGED][ROWS]. Of several LAYERS, those from `begin` to
   `end` are there or will be; the others count as zeros. */
struct Source
{
    const uint4 *first;
    int begin, end;

    DEVICE bool has(int at) const { return LAYERS == 1 || (at >= begin && at < end); }
};

/* The warps that multiply the same part of k gather its words together, a slice, and synchronize with each
   other only: other slices wait for other words, and multiply at another time. There are K_WARPS slices. */
constexpr int SLICE_THREADS = 32 * TILE_WARPS;
constexpr int STEP_WORDS = 4 * ROWS;              /* of a step of k */
constexpr int SLICE_WORDS = CHUNK_K * STEP_WORDS; /* of a chunk */

struct Slice
{
    int number, thread, first; /* where the thread's first word is in a chunk */

    DEVICE Slice()
        : number(threadIdx.x / SLICE_THREADS), thread(threadIdx.x % SLICE_THREADS),
          first(number * NEXT_WARP * STEP_WORDS + spread(thread))
    {
    }

    /* Where a word of a slice is, from the slice's first. */
    DEVICE static constexpr int spread(int word)
    {
        return word / STEP_WORDS * NEXT_K * STEP_WORDS + word % STEP_WORDS;
    }

    /* Where a thread's word is in a chunk. */
    DEVICE int at(int i) const
    {
        constexpr bool EVEN = SLICE_THREADS % STEP_WORDS == 0 || STEP_WORDS % SLICE_THREADS == 0;
        return EVEN ? first + spread(i * SLICE_THREADS)
                    : number * NEXT_WARP * STEP_WORDS + spread(thread + i * SLICE_THREADS);
    }

    DEVICE bool has(int chunk, int i) const
    {
        return (SLICE_WORDS % SLICE_THREADS == 0 || thread + i * SLICE_THREADS < SLICE_WORDS) &&
               (WHOLE || chunk * CHUNK_WORDS + at(i) < GATHERED_WORDS);
    }

    DEVICE void sync() const
    {
        if (K_WARPS == 1) __syncthreads();
        else if (SLICE_THREADS == 32) __syncwarp();
        else sync_threads<SLICE_THREADS>(number);
    }
};

/* Each slice gathers a step's words into shared memory. */
struct StagedGather
{
    static constexpr int COUNT = CHUNK_LOADS < IN_FLIGHT ? CHUNK_LOADS : IN_FLIGHT;

    Source source;
    uint4 *staged;
    u32 tag;
    Slice slice;
    const uint4 *from; /* the thread's first word, found once: polls follow each other fast */
    uint4 words[COUNT];

    DEVICE StagedGather(const Source &source_, uint4 *staged_, u32 tag_)
        : source(source_), staged(staged_), tag(tag_), from(source_.first + slice.first)
    {
    }

    DEVICE void request()
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) words[i] = load(i);
    }

    DEVICE void receive(Sums &sums, Weights &weights, bool &late)
    {
#pragma unroll
        for (int first = 0; first < CHUNK_LOADS; first += COUNT) {
            const auto load_of_part = [&](int i) { return load(first + i); };
            if (first > 0) {
#pragma unroll
                for (int i = 0; i < COUNT; i++) words[i] = load(first + i);
            }
            wait_for_each<COUNT>(words, tag, late, load_of_part);
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const int at = slice.at(first + i);
                if (is_there(first + i)) staged[staged_at(at / ROWS, at % ROWS)] = untagged(words[i]);
            }
        }
        slice.sync();
        multiply_staged(sums, weights, staged);
    }

  private:
    DEVICE bool is_there(int i) const { return i < CHUNK_LOADS && slice.has(0, i); }

    DEVICE uint4 load(int i) const
    {
        return is_there(i) && source.has(slice.at(i)) ? load_word(from + (slice.at(i) - slice.first))
                                                      : make_uint4(0, 0, 0, tag);
    }
};

/* The same in CHUNKS, with at most IN_FLIGHT words of a thread in flight.

   One barrier of a slice a chunk and two places suffice: a thread writes chunk c + 2 into the place of
   chunk c when it has passed the barrier of chunk c + 1, which each thread of the slice reaches after its
   products of chunk c. Behind the last barrier, that of the block, partial sums may replace the words. */
struct ChunkedGather
{
    static constexpr int FITTING = IN_FLIGHT / CHUNK_LOADS < 1 ? 1 : IN_FLIGHT / CHUNK_LOADS;
    static constexpr int AHEAD = FITTING < CHUNKS ? FITTING : CHUNKS;

    const uint4 *slot;
    uint4 *staged;
    u32 tag;
    Slice slice;
    uint4 words[AHEAD][CHUNK_LOADS];

    DEVICE ChunkedGather(const Source &source, uint4 *staged_, u32 tag_)
        : slot(source.first), staged(staged_), tag(tag_)
    {
    }

    DEVICE void request()
    {
#pragma unroll
        for (int chunk = 0; chunk < AHEAD; chunk++)
#pragma unroll
            for (int i = 0; i < CHUNK_LOADS; i++) words[chunk][i] = load(chunk, i);
    }

    DEVICE void receive(Sums &sums, Weights &weights, bool &late)
    {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            uint4 *mine = words[chunk % AHEAD], *place = staged + chunk % 2 * CHUNK_WORDS;
            wait_for_each<CHUNK_LOADS>(mine, tag, late, [&](int i) { return load(chunk, i); });
#pragma unroll
            for (int i = 0; i < CHUNK_LOADS; i++) {
                const int at = slice.at(i);
                if (slice.has(chunk, i)) place[staged_at(at / ROWS, at % ROWS)] = untagged(mine[i]);
            }
            /* The next chunk's words may not have been there yet when they were requested. */
            if (AHEAD > 1 && chunk + 1 < CHUNKS) {
                uint4 *next = words[(chunk + 1) % AHEAD];
#pragma unroll
                for (int i = 0; i < CHUNK_LOADS; i++)
                    if (!has_tag(next[i], tag)) next[i] = load(chunk + 1, i);
            }
            if (chunk + AHEAD < CHUNKS) {
#pragma unroll
                for (int i = 0; i < CHUNK_LOADS; i++) mine[i] = load(chunk + AHEAD, i);
            }
            slice.sync();
            multiply_staged(sums, weights, place, chunk);
        }
        __syncthreads();
    }

  private:
    DEVICE uint4 load(int chunk, int i) const
    {
        const uint4 *from = slot + chunk * CHUNK_WORDS + slice.at(i);
        return slice.has(chunk, i) ? load_word(from) : make_uint4(0, 0, 0, tag);
    }
};

/* Each warp gathers the words of its part of k into registers, a few steps ahead of the product. */
struct RegisterGather
{
    static constexpr int FITTING = IN_FLIGHT / COLUMNS < 1 ? 1 : IN_FLIGHT / COLUMNS;
    static constexpr int STEPS = FITTING < WARP_K ? FITTING : WARP_K;
    static constexpr int COUNT = STEPS * COLUMNS, ROUNDS = (WARP_K + STEPS - 1) / STEPS;

    Source source;
    u32 tag;
    int lane, begin; /* the latter is the first word of the warp's part of k that the lane multiplies */
    uint4 words[2][COUNT];

    DEVICE RegisterGather(const Source &source_, uint4 *, u32 tag_)
        : source(source_), tag(tag_), lane(threadIdx.x % 32),
          begin(threadIdx.x / 32 / TILE_WARPS * NEXT_WARP * 4 + lane % 4)
    {
    }

    DEVICE void request()
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) words[0][i] = load(0, i);
    }

    DEVICE void receive(Sums &sums, Weights &weights, bool &late)
    {
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            uint4 *mine = words[round & 1], *next = words[(round + 1) & 1];
            wait_for_all<COUNT>(mine, tag, late, [&](int i) { return load(round, i); });
            __syncwarp();
            if (round + 1 < ROUNDS) {
#pragma unroll
                for (int i = 0; i < COUNT; i++) next[i] = load(round + 1, i);
            }
#pragma unroll
            for (int i = 0; i < STEPS; i++)
                if (round * STEPS + i < WARP_K) {
#pragma unroll
                    for (int j = 0; j < COLUMNS; j++) mine[i * COLUMNS + j] = untagged(mine[i * COLUMNS + j]);
                    sums.add(weights, round * STEPS + i, mine + i * COLUMNS);
                }
        }
    }

  private:
    DEVICE uint4 load(int round, int i) const
    {
        const int s = round * STEPS + i / COLUMNS, word = begin + first_word(s);
        const bool there = s < WARP_K && (WHOLE || word < EXCHANGED);
        const int at = word * ROWS + i % COLUMNS * 8 + lane / 4;
        return there && source.has(at) ? load_word(source.first + at) : make_uint4(0, 0, 0, tag);
    }
};

} // namespace dnnffi
