#pragma once
/* The recurrent product of a step: gates x rows, summed over what was exchanged:
   each warp takes the words of its part of k as they arrive. */

#include "exchange.cuh"
#include "ptx_barrier.cuh"
#include "ptx_l2.cuh"
#include "weights.cuh"

namespace dnnffi {

constexpr int AT_ONCE = 8; /* words of a thread that are in flight at once */

/* A product waits for the one before it in the same sums: a warp that has few of them splits each in
   several, which `total` adds up. */
constexpr int SPLIT = WARP_TILES * COLUMNS >= 4 ? 1 : WARP_TILES * COLUMNS >= 2 ? 2 : 4;

struct Sums
{
    float of[WARP_TILES][COLUMNS][4];
    float more[SPLIT > 1 ? SPLIT - 1 : 1][WARP_TILES][COLUMNS][4];

    DEVICE float *part(int product, int m, int j)
    {
        const int number = product % SPLIT;
        return number == 0 ? of[m][j] : more[number ? number - 1 : 0][m][j];
    }

    DEVICE void fill(float value)
    {
#pragma unroll
        for (int number = 0; number < SPLIT; number++)
#pragma unroll
            for (int m = 0; m < WARP_TILES; m++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) part(number, m, j)[e] = value;
    }

    DEVICE void total()
    {
#pragma unroll
        for (int number = SPLIT - 1; number > 0; number--)
#pragma unroll
            for (int m = 0; m < WARP_TILES; m++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) of[m][j][e] += part(number, m, j)[e];
    }

    DEVICE void add(const Weights &weights, int s, const uint4 *words)
    {
#pragma unroll
        for (int m = 0; m < WARP_TILES; m++) {
            const Fragments factors = weights.of(s, m);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                multiply_add(part(2 * s, m, j), factors.first, words[j].x, words[j].y);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                multiply_add(part(2 * s + 1, m, j), factors.second, words[j].z, words[j].w);
        }
    }

    /* The same with the words that `load` finds for each column, a few at a time. */
    template <class Load> DEVICE void add_few(const Weights &weights, int s, Load load)
    {
        constexpr int FEW = WARP_TILES >= 4 ? 1 : WARP_TILES >= 2 ? 2 : 4;
        Fragments factors[WARP_TILES];
#pragma unroll
        for (int m = 0; m < WARP_TILES; m++) factors[m] = weights.of(s, m);
#pragma unroll
        for (int first = 0; first < COLUMNS; first += FEW) {
            uint4 words[FEW];
#pragma unroll
            for (int j = 0; j < FEW; j++)
                if (first + j < COLUMNS) words[j] = load(first + j);
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int m = 0; m < WARP_TILES; m++)
#pragma unroll
                    for (int j = 0; j < FEW; j++) {
                        if (first + j >= COLUMNS) continue;
                        multiply_add(part(2 * s + half, m, first + j),
                                     half ? factors[m].second : factors[m].first,
                                     half ? words[j].z : words[j].x, half ? words[j].w : words[j].y);
                    }
        }
    }
};

/* Reads words again until they have their tag; sets `late` if they never do. */
template <int COUNT, bool SHARE = false, class Load>
DEVICE void wait_for_all(uint4 *words, u32 tag, bool &late, Load load)
{
    u32 polls = late ? MOST_POLLS : 0;
    while (true) {
        u32 other = 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) other |= words[i].w ^ tag;
        if ((other & TAG<SHARE>) == 0) return;
        if (polls++ == MOST_POLLS) break;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (!has_tag<SHARE>(words[i], tag)) words[i] = load(i);
    }
    late = true;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (!has_tag<SHARE>(words[i], tag)) words[i] = lost<SHARE>(tag);
}

/* The same, but asks for a word again before it looks at the next one: faster where all threads of a
   block wait for the same step (measured). */
template <int COUNT, class Load> DEVICE void wait_for_each(uint4 *words, u32 tag, bool &late, Load load)
{
    u32 polls = 0;
    bool all;
    do {
        all = true;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (!has_tag(words[i], tag)) {
                if (late) words[i] = lost(tag);
                else {
                    words[i] = load(i);
                    all = false;
                }
            }
        if (++polls > MOST_POLLS) late = true;
    } while (!all);
}

/* The words that a block gathers in a step, [EXCHANGED][ROWS]. Of several LAYERS, those from `begin` to
   `end` are there or will be; the others count as zeros. */
struct Source
{
    const uint4 *first;
    int begin, end;

    DEVICE bool has(int at) const { return LAYERS == 1 || (at >= begin && at < end); }
};

/* The products of what is staged of a chunk. */
DEVICE void multiply_staged(Sums &sums, const Weights &weights, const uint4 *staged, int chunk = 0,
                            int begin = 0, int end = EXCHANGED)
{
#pragma unroll
    for (int i = 0; i < CHUNK_K; i++) {
        const int s = i * CHUNKS + chunk;
        const int word = weights.word + first_word(s);
        const bool there = CLUSTER && LAYERS > 1 ? word >= begin && word < end : WHOLE || word < EXCHANGED;
        const auto load = [&](int j) {
            return there ? staged[weights.staged + first_word(i * CHUNKS) * ROWS + 8 * j]
                         : make_uint4(0, 0, 0, 0);
        };
        if constexpr (CROWDED) {
            sums.add_few(weights, s, load);
        } else {
            uint4 words[COLUMNS];
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) words[j] = load(j);
            sums.add(weights, s, words);
        }
    }
}

/* Warps that multiply the same words gather them, a slice of k, and meet: those of other slices wait for
   other words, and multiply at another time. There are K_WARPS slices. */
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

/* Each slice gathers a step's words into shared memory; `meanwhile` runs while the first arrive. */
template <class Meanwhile>
DEVICE void gather_staged(Sums &sums, const Weights &weights, const Source &source, uint4 *staged, u32 tag,
                          bool &late, Meanwhile meanwhile)
{
    constexpr int LOADS = CHUNK_LOADS, COUNT = LOADS < AT_ONCE ? LOADS : AT_ONCE;
    const Slice slice;
    const uint4 *from = source.first + slice.first; /* found once: polls follow each other fast */
    const auto is_there = [&](int i) { return i < LOADS && slice.has(0, i); };
#pragma unroll
    for (int first = 0; first < LOADS; first += COUNT) {
        uint4 words[COUNT];
        const auto load = [&](int i) {
            return is_there(first + i) && source.has(slice.at(first + i))
                       ? load_word(from + (slice.at(first + i) - slice.first))
                       : make_uint4(0, 0, 0, tag);
        };
#pragma unroll
        for (int i = 0; i < COUNT; i++) words[i] = load(i);
        if (first == 0) meanwhile();
        wait_for_each<COUNT>(words, tag, late, load);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int at = slice.at(first + i);
            if (is_there(first + i)) staged[staged_at(at / ROWS, at % ROWS)] = untagged(words[i]);
        }
    }
    slice.sync();
    multiply_staged(sums, weights, staged);
}

/* The same in CHUNKS, with as many of them in flight as a thread has room for.

   One barrier of a slice a chunk and two places suffice: a thread writes chunk c + 2 into the place of
   chunk c when it has passed the barrier of chunk c + 1, which each thread of the slice reaches after its
   products of chunk c. Behind the last barrier, that of the block, partial sums may replace the words. */
template <class Meanwhile>
DEVICE void gather_chunks(Sums &sums, const Weights &weights, const uint4 *slot, uint4 *staged, u32 tag,
                          bool &late, Meanwhile meanwhile)
{
    constexpr int FITTING = AT_ONCE / CHUNK_LOADS < 1 ? 1 : AT_ONCE / CHUNK_LOADS;
    constexpr int AHEAD = FITTING < CHUNKS ? FITTING : CHUNKS;
    const Slice slice;
    uint4 words[AHEAD][CHUNK_LOADS];
    const auto load_of = [&](int chunk) {
        return [&, chunk](int i) {
            const uint4 *from = slot + chunk * CHUNK_WORDS + slice.at(i);
            return slice.has(chunk, i) ? load_word(from) : make_uint4(0, 0, 0, tag);
        };
    };
#pragma unroll
    for (int chunk = 0; chunk < AHEAD; chunk++)
#pragma unroll
        for (int i = 0; i < CHUNK_LOADS; i++) words[chunk][i] = load_of(chunk)(i);
    meanwhile();
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        uint4 *mine = words[chunk % AHEAD], *place = staged + chunk % 2 * CHUNK_WORDS;
        wait_for_each<CHUNK_LOADS>(mine, tag, late, load_of(chunk));
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
                if (!has_tag(next[i], tag)) next[i] = load_of(chunk + 1)(i);
        }
        if (chunk + AHEAD < CHUNKS) {
#pragma unroll
            for (int i = 0; i < CHUNK_LOADS; i++) mine[i] = load_of(chunk + AHEAD)(i);
        }
        slice.sync();
        multiply_staged(sums, weights, place, chunk);
    }
    __syncthreads();
}

/* Each warp gathers the words of its part of k into registers, a few steps ahead of the product. */
template <class Meanwhile>
DEVICE void gather(Sums &sums, const Weights &weights, const Source &source, u32 tag, bool &late,
                   Meanwhile meanwhile)
{
    constexpr int FITTING = AT_ONCE / COLUMNS < 1 ? 1 : AT_ONCE / COLUMNS;
    constexpr int STEPS = FITTING < WARP_K ? FITTING : WARP_K;
    constexpr int COUNT = STEPS * COLUMNS, ROUNDS = (WARP_K + STEPS - 1) / STEPS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int begin = warp / TILE_WARPS * NEXT_WARP * 4 + lane % 4;
    uint4 words[2][COUNT];
    const auto load_of = [&](int round) {
        return [&, round](int i) {
            const int s = round * STEPS + i / COLUMNS, word = begin + first_word(s);
            const bool there = s < WARP_K && (WHOLE || word < EXCHANGED);
            const int at = word * ROWS + i % COLUMNS * 8 + lane / 4;
            return there && source.has(at) ? load_word(source.first + at) : make_uint4(0, 0, 0, tag);
        };
    };
#pragma unroll
    for (int i = 0; i < COUNT; i++) words[0][i] = load_of(0)(i);
    meanwhile();
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        wait_for_all<COUNT>(words[round & 1], tag, late, load_of(round));
        __syncwarp();
        if (round + 1 < ROUNDS) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) words[(round + 1) & 1][i] = load_of(round + 1)(i);
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            if (round * STEPS + i < WARP_K) {
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    words[round & 1][i * COLUMNS + j] = untagged(words[round & 1][i * COLUMNS + j]);
                sums.add(weights, round * STEPS + i, words[round & 1] + i * COLUMNS);
            }
    }
}

/* The partial sums of the warps, in shared memory: what one warp writes, another one adds up. In a
   CLUSTER no barrier ends a step, and steps use two places in turn: no warp writes into one before all
   have met in the step after it, where each has added up what is there. */
struct Partials
{
    float *at;

    DEVICE Partials(float *first, int number) : at(first + (CLUSTER ? (number & 1) * PARTIAL_FLOATS : 0)) {}

    DEVICE void write(const Sums &sums, int warp, int lane) const
    {
        const int first = warp % TILE_WARPS * WARP_TILES, k = warp / TILE_WARPS;
#pragma unroll
        for (int m = 0; m < WARP_TILES; m++) {
            const int tile = first + m;
            if (TILES % TILE_WARPS != 0 && tile >= TILES) continue;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    if constexpr (FOURFOLD) {
                        if (m % 2 == 0) {
                            const float *low = sums.of[m][j], *high = sums.of[m + 1][j];
                            fourfold(k, tile / 2, j, e, lane) =
                                make_float4(low[e], low[2 + e], high[e], high[2 + e]);
                        }
                    } else {
                        single(k, 2 * tile, j, e, lane) = sums.of[m][j][e];
                        if (2 * TILES == HALVES || 2 * tile + 1 < HALVES)
                            single(k, 2 * tile + 1, j, e, lane) = sums.of[m][j][2 + e];
                    }
                }
        }
    }

    /* The sums over k of an octet's gates, for row e of two of the lane's in column tile j. */
    DEVICE void add_up(float *sums, int octet, int j, int e, int lane) const
    {
#pragma unroll
        for (int gate = 0; gate < OCTET_GATES; gate++) sums[gate] = 0;
#pragma unroll
        for (int k = 0; k < K_WARPS; k++) {
            if constexpr (FOURFOLD) {
                const float4 four = fourfold(k, octet, j, e, lane);
                sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
            } else {
#pragma unroll
                for (int gate = 0; gate < OCTET_GATES; gate++)
                    sums[gate] += single(k, octet * OCTET_GATES + gate, j, e, lane);
            }
        }
    }

    DEVICE float &single(int k, int half, int j, int e, int lane) const
    {
        return at[(((k * 2 * TILES + half) * COLUMNS + j) * 2 + e) * 32 + lane];
    }

    DEVICE float4 &fourfold(int k, int octet, int j, int e, int lane) const
    {
        return ((float4 *)at)[(((k * (TILES / 2) + octet) * COLUMNS + j) * 2 + e) * 32 + lane];
    }
};

} // namespace dnnffi
