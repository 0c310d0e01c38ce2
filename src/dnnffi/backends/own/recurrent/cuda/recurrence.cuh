#pragma once
/* Functions of a step with which the blocks of a group work together in both kernels: send, gather,
   multiply, exchange shares. */

#include "cluster.cuh"
#include "product.cuh"
#include "tasks.cuh"

namespace dnnffi {

/* A word of what is multiplied, from what a task has written into a stream of the ring. A NARROW kernel
   multiplies it by a `scale`. */
DEVICE uint4 factors_of(const uint4 *ring, int stream, int word, int row, float scale = 1)
{
    const uint4 *from = ring + (stream * ARRAY_WORDS + K_WORD / WORD * word) * ROWS + row;
    if constexpr (!NARROW) return as_factors(*from);
    const float4 low = *(const float4 *)from, high = *(const float4 *)(from + ROWS);
    return make_uint4(
        two_of_float16(scale * low.x, scale * low.y), two_of_float16(scale * low.z, scale * low.w),
        two_of_float16(scale * high.x, scale * high.y), two_of_float16(scale * high.z, scale * high.w));
}

/* A group of blocks, as one of them sees it. */
struct Group
{
    int rank, rows;    /* of this block; of the first sub-tile, those that exist */
    int layer, steps;  /* the former in the order in which LAYERS begin; of the longest group */
    int last;          /* steps of this group */
    uint4 *exchanged;  /* slots of each sub-tile in device memory: two, or all of all LAYERS, */
    uint4 *staged;     /* or, of a CLUSTER, in shared memory */
    Arrivals arrivals; /* of a CLUSTER */
    Tags tags, shares; /* of other groups: of words, and with SCATTER of shares */
    bool late;

    /* Group `number` of a launch, with `last_` of `steps_` steps. */
    DEVICE Group(int number, int rank_, int rows_, int layer_, int last_, int steps_, uint4 *first,
                 uint4 *staged_)
        : rank(rank_), rows(rows_), layer(layer_), steps(steps_), last(last_),
          exchanged(first + (long long)number * SUBTILES * slots() * SLOT_WORDS), staged(staged_), arrivals{},
          tags{}, shares{}, late(false)
    {
        if constexpr (CLUSTER) {
            const int words = PART_WORDS * rows * 16;
            arrivals = {shared_address(staged + STAGED_BYTES / 16), words, layer > 0 ? words : 0,
                        layer < LAYERS - 1 ? BLOCKS * 16 : 0, last};
            arrivals.begin();
        } else if constexpr (LAYERS == 1) { /* else all tags are 0 */
            /* Those that the previous launch left in this block's own words. */
            const uint4 *share = exchanged + (rank % TEAM * TEAMS + rank / TEAM) * SHARE_WORDS;
            const uint4 *word = gathered(0, 0) + rank % (SCATTER ? TEAM : BLOCKS) * BLOCK_WORDS * ROWS;
            for (int slot = 0; slot < 2; slot++) {
                if (SCATTER) shares.found[slot] = load_word(share + slot * SLOT_WORDS).w & TAG<true> ? 1 : 0;
                if (!SCATTER || TEAM > 1)
                    tags.found[slot] = load_word(word + slot * SLOT_WORDS).w & TAG<> ? 1 : 0;
            }
        }
    }

    /* Slots of a sub-tile. */
    DEVICE int slots() const { return LAYERS > 1 ? (steps + LAYERS) * LAYERS : 2; }

    /* The slot of an exchange of a sub-tile. Those of LAYERS lie by diagonals, so that one layer's
       next exchange is just before what the layer that reads it exchanges. */
    DEVICE uint4 *slot(int exchange, int sub) const
    {
        if constexpr (LAYERS > 1) {
            const long long number = sub * slots() + (exchange + layer) * LAYERS + layer;
            return exchanged + number * SLOT_WORDS;
        }
        return exchanged + (sub * 2 + (exchange & 1)) * SLOT_WORDS;
    }

    /* In it, the words that this block gathers: those of its group, or of its team; of LAYERS from those
       of the layer that it reads. */
    DEVICE uint4 *gathered(int exchange, int sub) const
    {
        if constexpr (LAYERS > 1) return slot(exchange, sub) - PART_WORDS * ROWS;
        return slot(exchange, sub) + (SCATTER ? SHARES + rank / TEAM * GATHERED_WORDS : 0);
    }

    DEVICE void put(int, const Task &, const Element *) const {} /* `send` sends it */

    /* Sends what a task has written into the stream `stream` of the ring: the words of a gate. */
    DEVICE void send(int exchange, int sub, const uint4 *ring, int stream, int gate, const Task &task,
                     float scale = 1) const
    {
        const int lane = threadIdx.x % 32;
        if constexpr (CLUSTER && LAYERS > 1) {
            send_to_layers(exchange, ring, stream, gate, task);
            return;
        }
#pragma unroll
        for (int i = lane; i < TASK_WORDS * (CLUSTER ? BLOCKS : 1); i += 32) {
            const auto [word, row] = Place(i % TASK_WORDS, task);
            const int unit_word = rank * BLOCK_WORDS + word;
            const int at =
                SCATTER ? (gate * TEAM + rank % TEAM) * BLOCK_WORDS + word : gate * WORDS + unit_word;
            if ((!SCATTER && unit_word >= WORDS) || (CLUSTER && row >= rows)) continue;
            const uint4 factors = factors_of(ring, stream, word, row, scale);
            if constexpr (CLUSTER) {
                const uint4 *to = staged + (exchange & 1) * GATHERED_WORDS + staged_at(at, row);
                const int block = i / TASK_WORDS;
                store_in_block(in_block(shared_address(to), block), factors,
                               in_block(arrivals.of(exchange), block));
            } else {
                uint4 *to = LAYERS > 1 ? slot(exchange, sub) : gathered(exchange, sub);
                store_word(to + at * ROWS + row, tagged(factors, tags.of(exchange)));
            }
        }
    }

    /* The phase of a CLUSTER in which words of an exchange come to their own layer. To the one that
       reads them they come a phase earlier. */
    DEVICE static int phase_of(int exchange) { return exchange + (BACKWARD && LAYERS > 1); }

    /* `send` of a CLUSTER with several LAYERS: to its own, and to the one that reads it. */
    DEVICE void send_to_layers(int exchange, const uint4 *ring, int stream, int gate, const Task &task) const
    {
        const int own = phase_of(exchange), other = own - 1;
#pragma unroll
        for (int i = threadIdx.x % 32; i < TASK_WORDS * 2 * BLOCKS; i += 32) {
            const auto [word, row] = Place(i % TASK_WORDS, task);
            const int to_layer = i / (TASK_WORDS * BLOCKS);
            const int unit_word = rank * BLOCK_WORDS + word;
            const bool taken = to_layer == 0 ? (BACKWARD ? gate < GATES : own < last)
                                             : layer < LAYERS - 1 && (BACKWARD ? gate >= TWO_N : other >= 0);
            if (unit_word >= WORDS || row >= rows || !taken) continue;
            const int place =
                to_layer == 0 ? PART_WORDS + gate * WORDS : (BACKWARD ? gate - TWO_N : 0) * WORDS;
            const int phase = to_layer == 0 ? own : other;
            const int block = (layer + to_layer) * BLOCKS + i / TASK_WORDS % BLOCKS;
            const uint4 *to = staged + (phase & 1) * GATHERED_WORDS + staged_at(place + unit_word, row);
            store_in_block(in_block(shared_address(to), block), factors_of(ring, stream, word, row),
                           in_block(arrivals.of(phase), block));
        }
    }

    /* Behind the barrier that follows a product: tells the layer that was read that it was. */
    DEVICE void confirm(int exchange) const
    {
        if constexpr (CLUSTER && LAYERS > 1) {
            const int phase = phase_of(exchange), thread = threadIdx.x;
            if (layer == 0 || thread >= BLOCKS || phase + 2 > (BACKWARD ? last : last - 1)) return;
            const int block = (layer - 1) * BLOCKS + thread;
            const uint4 *to = staged + STAGED_BYTES / 16 + 1;
            store_in_block(in_block(shared_address(to), block), make_uint4(0, 0, 0, 0),
                           in_block(arrivals.of(phase), block));
        }
    }

    /* The product of a step, from what the group exchanged; `meanwhile` runs while words arrive. Of
       several LAYERS, `other` and `own` say whether the layer that it reads and its own have words. */
    template <class Meanwhile>
    DEVICE void product(Sums &sums, const Weights &weights, int exchange, int sub, Meanwhile meanwhile,
                        bool other = false, bool own = true)
    {
        if constexpr (CLUSTER) {
            const int phase = phase_of(exchange);
            meanwhile();
            arrivals.wait(phase, late);
            multiply_staged(sums, weights, staged + (phase & 1) * GATHERED_WORDS, 0, other ? 0 : PART_WORDS,
                            own ? EXCHANGED : PART_WORDS);
            if (late) {
                asm volatile(""); /* so that it is a branch: selecting each sum takes longer */
                sums.fill(bits_to_float(0x7fc00000u));
            } else arrivals.expect(phase);
        } else {
            const u32 tag = tags.of(exchange);
            const Source from{gathered(exchange, sub), other ? 0 : PART_WORDS * ROWS,
                              (own ? EXCHANGED : PART_WORDS) * ROWS};
            if constexpr (CHUNKS > 1) gather_chunks(sums, weights, from.first, staged, tag, late, meanwhile);
            else if constexpr (STAGED) gather_staged(sums, weights, from, staged, tag, late, meanwhile);
            else gather(sums, weights, from, tag, late, meanwhile);
        }
    }

    /* With SCATTER: adds up the shares that all teams sent of this block's products. */
    template <class Meanwhile> DEVICE void receive(uint4 *sums, int exchange, int sub, Meanwhile meanwhile)
    {
        constexpr int EACH = (TEAMS + ADDERS - 1) / ADDERS, LOADS = ADDED * EACH;
        constexpr int COUNT = LOADS < AT_ONCE ? LOADS : AT_ONCE;
        const int thread = threadIdx.x, adder = ADDERS > 1 ? thread / SHARE_WORDS : 0;
        const int place = ADDERS > 1 ? thread % SHARE_WORDS : thread;
        const uint4 *from = slot(exchange, sub) + rank * TEAMS * SHARE_WORDS + place;
        const u32 tag = shares.of<true>(exchange);
        float4 added[ADDED];
#pragma unroll
        for (int r = 0; r < ADDED; r++) added[r] = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int begin = 0; begin < LOADS; begin += COUNT) {
            uint4 words[COUNT];
            const auto load = [&](int i) {
                const int r = (begin + i) / EACH, team = adder + (begin + i) % EACH * ADDERS;
                const bool there = begin + i < LOADS && (TEAMS % ADDERS == 0 || team < TEAMS) &&
                                   (ADDERS * SHARE_WORDS == ADDED * THREADS ||
                                    (ADDERS > 1 ? adder < ADDERS : place + r * THREADS < SHARE_WORDS));
                return there ? load_word(from + team * SHARE_WORDS + r * THREADS) : make_uint4(0, 0, 0, tag);
            };
#pragma unroll
            for (int i = 0; i < COUNT; i++) words[i] = load(i);
            if (begin == 0) meanwhile();
            wait_for_all<COUNT, true>(words, tag, late, load);
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                if (begin + i >= LOADS) continue;
                float4 &sum = added[(begin + i) / EACH];
                const uint4 word = untagged<true>(words[i]);
                sum.x += bits_to_float(word.x), sum.y += bits_to_float(word.y);
                sum.z += bits_to_float(word.z), sum.w += bits_to_float(word.w);
            }
        }
#pragma unroll
        for (int r = 0; r < ADDED; r++) ((float4 *)sums)[thread + r * THREADS] = added[r];
    }

    /* What was received for a thread's cell, of a gate and of row e of two. */
    DEVICE float received(const uint4 *sums, const Task &task, int gate, int e, int lane) const
    {
        const int half = task.octet * OCTET_GATES + gate;
        const int pair =
            ROW_PAIRS ? half * (COLUMNS / 2) + task.column / 2 : half / 2 * COLUMNS + task.column;
        const int second = ROW_PAIRS ? task.column % 2 : half % 2;
        float sum = 0;
#pragma unroll
        for (int adder = 0; adder < ADDERS; adder++)
            sum += ((const float *)(sums + adder * SHARE_WORDS + pair * 32 + lane))[second * 2 + e];
        return sum;
    }

    /* Stages what a task has written into the stream `stream` of the ring: the words of a gate. */
    DEVICE void stage(const uint4 *ring, int stream, int gate, const Task &task) const
    {
#pragma unroll
        for (int i = threadIdx.x % 32; i < TASK_WORDS; i += 32) {
            const auto [word, row] = Place(i, task);
            staged[staged_at(gate * BLOCK_WORDS + word, row)] = factors_of(ring, stream, word, row);
        }
    }

    /* Multiplies the words of its team by the part of the matrices that belongs to them, and sends each
       block of its place in a team its share. */
    DEVICE void scatter(int exchange, int sub, const Weights &weights)
    {
        const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * WARP_TILES;
        if constexpr (TEAM > 1) {
            Sums sums;
            sums.fill(0);
            gather_staged(sums, weights, Source{gathered(exchange, sub), 0, 0}, staged, tags.of(exchange),
                          late, [] {});
            sums.total();
#pragma unroll
            for (int m = 0; m < WARP_TILES; m++) send_share(exchange, sub, first + m, sums.of[m]);
            return;
        }
        uint4 words[WARP_K][COLUMNS];
#pragma unroll
        for (int s = 0; s < WARP_K; s++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                words[s][j] = make_uint4(0, 0, 0, 0);
                if (WHOLE || lane % 4 + 4 * s < EXCHANGED)
                    words[s][j] = staged[staged_at(lane % 4 + 4 * s, j * 8 + lane / 4)];
            }
#pragma unroll
        for (int m = 0; m < WARP_TILES; m++) {
            float sums[COLUMNS][4];
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
#pragma unroll
            for (int s = 0; s < WARP_K; s++) {
                const Fragments factors = weights.of(s, m);
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    multiply_add(sums[j], factors.first, words[s][j].x, words[s][j].y);
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    multiply_add(sums[j], factors.second, words[s][j].z, words[s][j].w);
            }
            send_share(exchange, sub, first + m, sums);
        }
    }

    /* Sends what a lane has of a tile. A word is of two tiles of rows, or else of both half tiles. */
    DEVICE void send_share(int exchange, int sub, int tile, const float (&sums)[COLUMNS][4]) const
    {
        constexpr int WORDS_OF_HALF = ROW_PAIRS ? COLUMNS / 2 : COLUMNS;
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < (ROW_PAIRS ? 2 : 1) * WORDS_OF_HALF; i++) {
            const int half = 2 * tile + i / WORDS_OF_HALF, j = i % WORDS_OF_HALF;
            if (2 * WARP_TILES * TILE_WARPS != HALVES && half >= HALVES) continue;
            const int block = half / BLOCK_HALVES * TEAM + rank % TEAM, of_block = half % BLOCK_HALVES;
            const int place = (ROW_PAIRS ? of_block : of_block / 2) * WORDS_OF_HALF + j;
            union {
                float values[4];
                uint4 word;
            } share;
            for (int e = 0; e < 4; e++)
                share.values[e] = ROW_PAIRS ? sums[2 * j + e / 2][i / WORDS_OF_HALF * 2 + e % 2] : sums[j][e];
            store_word(slot(exchange, sub) + (block * TEAMS + rank / TEAM) * SHARE_WORDS + place * 32 + lane,
                       tagged<true>(share.word, shares.of<true>(exchange)));
        }
    }
};

} // namespace dnnffi
