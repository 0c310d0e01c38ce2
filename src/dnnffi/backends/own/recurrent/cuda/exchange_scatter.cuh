#pragma once
/* Reduce-scatter through L2 (split-K), of a backward pass: a block multiplies the words of few units, the
   gradients of their gates, by the rows of w_hh of these gates, and sends each block its share, the partial
   sums of that block's units. A TEAM has blocks that exchange their words first, and then send shares to the
   blocks of their own place in all teams; in a team of one block words do not leave it. `exchange_flags.cuh`
   has the protocol and its proof. */

#include "block.cuh"
#include "gather.cuh"

namespace dnnffi {

/* A thread's part of the sum of the shares that all teams sent. */
struct AddedShares
{
    float4 of[ADDED];

    DEVICE void fill(float value)
    {
#pragma unroll
        for (int r = 0; r < ADDED; r++) of[r] = make_float4(value, value, value, value);
    }
};

/* Loads the shares that all teams sent to this block; each thread adds up some of them. */
struct ShareGather
{
    static constexpr int EACH = (TEAMS + ADDERS - 1) / ADDERS, LOADS = ADDED * EACH;
    static constexpr int COUNT = LOADS < IN_FLIGHT ? LOADS : IN_FLIGHT;

    int adder, place;
    const uint4 *from;
    u32 tag;
    uint4 words[COUNT];

    /* `first` is the first share of the block. */
    DEVICE ShareGather(const uint4 *first, u32 tag_)
        : adder(ADDERS > 1 ? threadIdx.x / SHARE_WORDS : 0),
          place(ADDERS > 1 ? threadIdx.x % SHARE_WORDS : threadIdx.x),
          from(retained(first + (adder * SHARE_WORDS + place))), tag(tag_)
    {
    }

    DEVICE void request()
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) request(words[i], i);
    }

    DEVICE void receive(AddedShares &added, Weights &, bool &late)
    {
#pragma unroll
        for (int begin = 0; begin < LOADS; begin += COUNT) {
            if (begin > 0) {
#pragma unroll
                for (int i = 0; i < COUNT; i++) request(words[i], begin + i);
            }
            wait_for_all<COUNT, true>(words, tag, late,
                                      [&](uint4 &word, int i) { request(word, begin + i); });
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                if (begin + i >= LOADS) continue;
                float4 &sum = added.of[(begin + i) / EACH];
                const uint4 word = untagged<true>(words[i]);
                sum.x += bits_to_float(word.x), sum.y += bits_to_float(word.y);
                sum.z += bits_to_float(word.z), sum.w += bits_to_float(word.w);
            }
        }
    }

  private:
    DEVICE const uint4 *address(int i) const
    {
        return from + (i % EACH * ADDERS * SHARE_WORDS + i / EACH * THREADS);
    }

    DEVICE void request(uint4 &word, int i) const
    {
        const int r = i / EACH, team = adder + i % EACH * ADDERS;
        const bool there = i < LOADS && (TEAMS % ADDERS == 0 || team < TEAMS) &&
                           (ADDERS * SHARE_WORDS == ADDED * THREADS ||
                            (ADDERS > 1 ? adder < ADDERS : place + r * THREADS < SHARE_WORDS));
        request_word<false>(word, address(i), there, tag);
    }
};

/* Sums of all shares in shared memory, which the threads of the cells read after a barrier. */
struct SharedSums
{
    float4 *at;

    DEVICE SharedSums(float *first, int) : at((float4 *)first) {}

    DEVICE void write(const AddedShares &added, int, int) const
    {
#pragma unroll
        for (int r = 0; r < ADDED; r++) at[threadIdx.x + r * THREADS] = added.of[r];
    }

    /* The sum of a cell: of row e, 0 or 1, of the thread's pair of rows. */
    DEVICE void add_up(float *sum, const Task &task, int e) const
    {
        const int octet = task.octet, column = task.column;
        const int pair = ROW_PAIRS ? octet * (COLUMNS / 2) + column / 2 : octet / 2 * COLUMNS + column;
        const int second = ROW_PAIRS ? column % 2 : octet % 2;
        *sum = 0;
#pragma unroll
        for (int adder = 0; adder < ADDERS; adder++) {
            const float4 *of_lane = at + (pair * 32 + task.lane) + adder * SHARE_WORDS;
            *sum += ((const float *)of_lane)[second * 2 + task.odd + e];
        }
    }
};

struct ReduceScatter : ExchangeDefaults
{
    using Gather = ShareGather;
    using Sums = AddedShares;
    using PartialSums = SharedSums;
    static constexpr bool SENDS_WORDS = true;
    static constexpr bool HAS_SECOND_BARRIER = true;

    int rank;
    uint4 *slots; /* two */
    uint4 *staged;
    Tags tags, shares; /* of the previous launch, found in this block's own words, and in its shares */
    bool late;

    DEVICE ReduceScatter(const Block &block, const Extent &, uint4 *exchange, uint4 *staged_)
        : rank(block.rank), slots(exchange + (long long)block.group * 2 * SLOT_WORDS), staged(staged_),
          tags{}, shares{}, late(false)
    {
        shares.read<true>(slots + (rank % TEAM * TEAMS + rank / TEAM) * SHARE_WORDS);
        if (TEAM > 1) tags.read(gathered(0) + rank % TEAM * BLOCK_WORDS * ROWS);
    }

    DEVICE uint4 *slot(int exchange) const { return slots + (exchange & 1) * SLOT_WORDS; }

    /* In a slot, the words of the block's team. */
    DEVICE uint4 *gathered(int exchange) const
    {
        return slot(exchange) + SHARES + rank / TEAM * GATHERED_WORDS;
    }

    /* The shares of this block's units, one from each team. */
    DEVICE ShareGather gather(int exchange, int, bool, bool) const
    {
        return ShareGather(slot(exchange) + rank * TEAMS * SHARE_WORDS, shares.of<true>(exchange));
    }

    /* Sends what a task has written into a slot of the ring to its team. Words of a team of one block are
       staged. */
    DEVICE void send(int exchange, int, const uint4 *ring, const Task &task) const
    {
        send_words<1>(ring, task, 1, [&](int, const SendableWord &sent) {
            if constexpr (TEAM == 1) {
                staged[staged_at(sent.gate * BLOCK_WORDS + sent.word, sent.row)] = sent.factors();
            } else {
                const int at = (sent.gate * TEAM + rank % TEAM) * BLOCK_WORDS + sent.word;
                store_word(gathered(exchange) + at * ROWS + sent.row,
                           tagged(sent.factors(), tags.of(exchange)));
            }
        });
    }

    /* Multiplies the words of its team by the part of the matrices that belongs to them, and sends each
       block of its place in a team its share. */
    DEVICE void scatter(int exchange, int, Weights &weights)
    {
        const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * WARP_TILES;
        if constexpr (TEAM > 1) {
            dnnffi::Sums sums;
            sums.fill(0);
            const Slice slice;
            StagedGather gather(slice, Source{gathered(exchange), 0, 0}, staged, tags.of(exchange));
            gather.request();
            gather.receive(sums, weights, late);
            sums.total();
#pragma unroll
            for (int m = 0; m < WARP_TILES; m++) send_share(exchange, first + m, sums.of[m]);
            return;
        }
        uint4 words[WARP_K][COLUMNS];
        const uint4 *const from = staged + staged_at(lane % 4, lane / 4);
#pragma unroll
        for (int s = 0; s < WARP_K; s++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                words[s][j] = make_uint4(0, 0, 0, 0);
                if (WHOLE || lane % 4 + 4 * s < EXCHANGED) words[s][j] = from[s * STEP_WORDS + j * 8];
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
            send_share(exchange, first + m, sums);
        }
    }

    /* Sends what a lane has of a tile. A word is of two tiles of rows, or else of both half tiles. */
    DEVICE void send_share(int exchange, int tile, const float (&sums)[COLUMNS][4]) const
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
            store_word(slot(exchange) + (block * TEAMS + rank / TEAM) * SHARE_WORDS + place * 32 + lane,
                       tagged<true>(share.word, shares.of<true>(exchange)));
        }
    }
};

} // namespace dnnffi
