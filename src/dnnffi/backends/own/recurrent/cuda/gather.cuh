#pragma once
/* Gathering of words that a group exchanged through L2, in three variants: `StagedGather`, `ChunkedGather`,
   `RegisterGather`. `request` asks for the first words; `receive` waits for them, asks for the rest, and
   multiplies. Other loads are issued between the two. A `Place` is found once for all steps. */

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
    int number, thread, first, first_place; /* where the thread's first word is in a chunk, and is staged */

    DEVICE Slice()
        : number(retained(threadIdx.x / SLICE_THREADS)), thread(retained(threadIdx.x % SLICE_THREADS)),
          first(retained(number * NEXT_WARP * STEP_WORDS + spread(thread))),
          first_place(retained(place_of(first)))
    {
    }

    /* The distance of a word of a slice from the slice's first. */
    DEVICE static constexpr int spread(int word)
    {
        return word / STEP_WORDS * NEXT_K * STEP_WORDS + word % STEP_WORDS;
    }

    static constexpr bool EVEN = SLICE_THREADS % STEP_WORDS == 0 || STEP_WORDS % SLICE_THREADS == 0;

    /* The place of a thread's word in a chunk. */
    DEVICE int at(int i) const
    {
        return EVEN ? first + spread(i * SLICE_THREADS)
                    : number * NEXT_WARP * STEP_WORDS + spread(thread + i * SLICE_THREADS);
    }

    /* The place of a thread's words, and one of them from there: an offset that the compiler knows, if it
       is EVEN. */
    DEVICE const uint4 *words(const uint4 *chunk) const { return EVEN ? chunk + first : chunk; }

    DEVICE const uint4 *word(const uint4 *from, int i) const
    {
        return from + (EVEN ? spread(i * SLICE_THREADS) : at(i));
    }

    /* Its place in shared memory. */
    DEVICE uint4 *place(uint4 *staged, int i) const
    {
        if (SLICE_THREADS % STEP_WORDS == 0) return staged + first_place + spread(i * SLICE_THREADS);
        return staged + place_of(at(i));
    }

    static constexpr bool ALWAYS_THERE = SLICE_WORDS % SLICE_THREADS == 0 && WHOLE && LAYERS == 1;

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

  private:
    DEVICE static int place_of(int at) { return staged_at(at / ROWS, at % ROWS); }
};

/* Each slice gathers a step's words into shared memory. */
struct StagedGather
{
    using Place = Slice;
    static constexpr int COUNT = CHUNK_LOADS < IN_FLIGHT ? CHUNK_LOADS : IN_FLIGHT;

    Source source;
    uint4 *staged;
    u32 tag;
    const Slice &slice;
    const uint4 *from; /* found once: polls follow each other fast */
    uint4 words[COUNT];

    DEVICE StagedGather(const Slice &slice_, const Source &source_, uint4 *staged_, u32 tag_)
        : source(source_), staged(staged_), tag(tag_), slice(slice_), from(slice.words(source_.first))
    {
    }

    DEVICE void request()
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) request(words[i], i);
    }

    DEVICE void receive(Sums &sums, Weights &weights, bool &late)
    {
#pragma unroll
        for (int first = 0; first < CHUNK_LOADS; first += COUNT) {
            if (first > 0) {
#pragma unroll
                for (int i = 0; i < COUNT; i++) request(words[i], first + i);
            }
            wait_for_each<COUNT>(words, tag, late, [&](uint4 &word, int i) { request(word, first + i); });
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                if (is_there(first + i)) *slice.place(staged, first + i) = received<true>(words[i], late);
        }
        slice.sync();
        multiply_staged(sums, weights, staged);
    }

  private:
    DEVICE bool is_there(int i) const { return i < CHUNK_LOADS && slice.has(0, i); }

    DEVICE void request(uint4 &word, int i) const
    {
        constexpr bool ALWAYS = Slice::ALWAYS_THERE && CHUNK_LOADS % COUNT == 0;
        request_word<ALWAYS>(word, slice.word(from, i), is_there(i) && source.has(slice.at(i)), tag);
    }
};

/* The same in CHUNKS, with at most IN_FLIGHT words of a thread in flight.

   One barrier of a slice a chunk and two places suffice: a thread writes chunk c + 2 into the place of
   chunk c when it has passed the barrier of chunk c + 1, which each thread of the slice reaches after its
   products of chunk c. Behind the last barrier, that of the block, partial sums may replace the words. */
struct ChunkedGather
{
    using Place = Slice;
    static constexpr int FITTING = IN_FLIGHT / CHUNK_LOADS < 1 ? 1 : IN_FLIGHT / CHUNK_LOADS;
    static constexpr int AHEAD = FITTING < CHUNKS ? FITTING : CHUNKS;

    uint4 *staged;
    u32 tag;
    const Slice &slice;
    const uint4 *from;
    uint4 words[AHEAD][CHUNK_LOADS];

    DEVICE ChunkedGather(const Slice &slice_, const Source &source, uint4 *staged_, u32 tag_)
        : staged(staged_), tag(tag_), slice(slice_), from(slice.words(source.first))
    {
    }

    DEVICE void request()
    {
#pragma unroll
        for (int chunk = 0; chunk < AHEAD; chunk++)
#pragma unroll
            for (int i = 0; i < CHUNK_LOADS; i++) request(words[chunk][i], chunk, i);
    }

    DEVICE void receive(Sums &sums, Weights &weights, bool &late)
    {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            uint4 *mine = words[chunk % AHEAD], *place = staged + chunk % 2 * CHUNK_WORDS;
            wait_for_each<CHUNK_LOADS>(mine, tag, late, [&](uint4 &word, int i) { request(word, chunk, i); });
            /* With a STREAM_RING, `received` was measured to be slower than the copies that it avoids. */
#pragma unroll
            for (int i = 0; i < CHUNK_LOADS; i++)
                if (slice.has(chunk, i))
                    *slice.place(place, i) =
                        STREAM_RING > 0 ? untagged(mine[i]) : received<true>(mine[i], late);
            /* The next chunk's words may not have been there yet when they were requested. */
            if (AHEAD > 1 && chunk + 1 < CHUNKS) {
                uint4 *next = words[(chunk + 1) % AHEAD];
#pragma unroll
                for (int i = 0; i < CHUNK_LOADS; i++)
                    if (!has_tag(next[i], tag)) request(next[i], chunk + 1, i);
            }
            if (chunk + AHEAD < CHUNKS) {
#pragma unroll
                for (int i = 0; i < CHUNK_LOADS; i++) request(mine[i], chunk + AHEAD, i);
            }
            slice.sync();
            multiply_staged(sums, weights, place, chunk);
        }
        __syncthreads();
    }

  private:
    DEVICE void request(uint4 &word, int chunk, int i) const
    {
        const uint4 *at = slice.word(from + chunk * CHUNK_WORDS, i);
        request_word<Slice::ALWAYS_THERE>(word, at, slice.has(chunk, i), tag);
    }
};

/* The first word of k that a lane multiplies, and where it is for the lane's first row. */
struct LanePlace
{
    int begin, first;

    DEVICE LanePlace()
        : begin(retained(threadIdx.x / 32 / TILE_WARPS * NEXT_WARP * 4 + threadIdx.x % 32 % 4)),
          first(retained(begin * ROWS + threadIdx.x % 32 / 4))
    {
    }
};

/* Each warp gathers the words of its part of k into registers, a few steps ahead of the product. */
struct RegisterGather
{
    using Place = LanePlace;
    static constexpr int FITTING = IN_FLIGHT / COLUMNS < 1 ? 1 : IN_FLIGHT / COLUMNS;
    static constexpr int STEPS = FITTING < WARP_K ? FITTING : WARP_K;
    static constexpr int COUNT = STEPS * COLUMNS, ROUNDS = (WARP_K + STEPS - 1) / STEPS;

    Source source;
    u32 tag;
    const LanePlace &place;
    const uint4 *from;
    uint4 words[2][COUNT];

    DEVICE RegisterGather(const LanePlace &place_, const Source &source_, uint4 *, u32 tag_)
        : source(source_), tag(tag_), place(place_), from(source.first + place.first)
    {
    }

    DEVICE void request()
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) request(words[0][i], 0, i);
    }

    DEVICE void receive(Sums &sums, Weights &weights, bool &late)
    {
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            uint4 *mine = words[round & 1], *next = words[(round + 1) & 1];
            wait_for_all<COUNT>(mine, tag, late, [&](uint4 &word, int i) { request(word, round, i); });
            __syncwarp();
            if (round + 1 < ROUNDS) {
#pragma unroll
                for (int i = 0; i < COUNT; i++) request(next[i], round + 1, i);
            }
#pragma unroll
            for (int i = 0; i < STEPS; i++)
                if (round * STEPS + i < WARP_K) {
#pragma unroll
                    for (int j = 0; j < COLUMNS; j++)
                        mine[i * COLUMNS + j] = received<false>(mine[i * COLUMNS + j], late);
                    sums.add(weights, round * STEPS + i, mine + i * COLUMNS);
                }
        }
    }

  private:
    DEVICE static constexpr int word(int round, int i) { return first_word(round * STEPS + i / COLUMNS); }

    DEVICE static constexpr int at(int round, int i) { return word(round, i) * ROWS + i % COLUMNS * 8; }

    DEVICE void request(uint4 &found, int round, int i) const
    {
        constexpr bool ALWAYS = WHOLE && LAYERS == 1 && WARP_K % STEPS == 0;
        const bool there =
            round * STEPS + i / COLUMNS < WARP_K && (WHOLE || place.begin + word(round, i) < EXCHANGED);
        request_word<ALWAYS>(found, from + at(round, i), there && source.has(place.first + at(round, i)),
                             tag);
    }
};

} // namespace dnnffi
