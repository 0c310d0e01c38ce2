#pragma once
/* The recurrent product of a step by tensor cores: gates x rows, summed over k. Each warp has some tiles of
   gates and a part of k; the partial sums of the parts are added up through shared memory. */

#include "tasks.cuh"
#include "weights.cuh"

namespace dnnffi {

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

    DEVICE void add(Weights &weights, int s, const uint4 *words)
    {
        weights.await(s);
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
        weights.leave(s);
    }

    /* The same with the words that `load` finds for each column, a few at a time. */
    template <class Load> DEVICE void add_few(Weights &weights, int s, Load load)
    {
        weights.await(s);
        constexpr int FEW = WARP_TILES >= 4 ? 1 : WARP_TILES >= 2 ? 2 : 4;
        Fragments factors[WARP_TILES];
#pragma unroll
        for (int m = 0; m < WARP_TILES; m++) factors[m] = weights.of(s, m);
        weights.leave(s);
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

/* The products of what is staged of a chunk. */
DEVICE void multiply_staged(Sums &sums, Weights &weights, const uint4 *staged, int chunk = 0, int begin = 0,
                            int end = EXCHANGED)
{
    const uint4 *const from = staged + weights.staged;
#pragma unroll
    for (int i = 0; i < CHUNK_K; i++) {
        const int s = i * CHUNKS + chunk;
        const int word = weights.word + first_word(s);
        const bool there = CLUSTER && LAYERS > 1 ? word >= begin && word < end : WHOLE || word < EXCHANGED;
        const auto load = [&](int j) {
            return there ? from[first_word(i * CHUNKS) * ROWS + 8 * j] : make_uint4(0, 0, 0, 0);
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

/* The partial sums of the warps, in shared memory: one warp writes them, and after a barrier another one adds
   them up. In a CLUSTER no barrier ends a step, and steps use two places in turn: a warp writes into one only
   after the barrier of the step that follows, which every warp reaches after its additions. */
struct PartialSums
{
    float *at;

    DEVICE PartialSums(float *first, int number) : at(first + (CLUSTER ? (number & 1) * PARTIAL_FLOATS : 0))
    {
    }

    DEVICE void write(Sums &sums, int warp, int lane) const
    {
        sums.total();
        const int first = warp % TILE_WARPS * WARP_TILES, k = warp / TILE_WARPS;
        float *const singles = at + single(k, 2 * first, 0, 0) + lane;
        float4 *const fours = (float4 *)at + fourfold(k, first / 2, 0, 0) + lane;
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
                            fours[fourfold(0, m / 2, j, e)] =
                                make_float4(low[e], low[2 + e], high[e], high[2 + e]);
                        }
                    } else {
                        singles[single(0, 2 * m, j, e)] = sums.of[m][j][e];
                        if (2 * TILES == HALVES || 2 * tile + 1 < HALVES)
                            singles[single(0, 2 * m + 1, j, e)] = sums.of[m][j][2 + e];
                    }
                }
        }
    }

    /* The sums over k of all gates of a cell: of row e, 0 or 1, of the thread's pair of rows. */
    DEVICE void add_up(float *sums, const Task &task, int e) const
    {
        const float *const singles =
            at + single(0, task.octet * OCTET_GATES, task.column, task.odd) + task.lane;
        const float4 *const fours =
            (const float4 *)at + fourfold(0, task.octet, task.column, task.odd) + task.lane;
#pragma unroll
        for (int gate = 0; gate < OCTET_GATES; gate++) sums[gate] = 0;
#pragma unroll
        for (int k = 0; k < K_WARPS; k++) {
            if constexpr (FOURFOLD) {
                const float4 four = fours[fourfold(k, 0, 0, e)];
                sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
            } else {
#pragma unroll
                for (int gate = 0; gate < OCTET_GATES; gate++) sums[gate] += singles[single(k, gate, 0, e)];
            }
        }
    }

  private:
    /* Places of the sums of a half tile, and of four gates of an octet: linear in all arguments, so that those
       that are known at compile time can be added to a pointer last, as offsets within instructions. */
    DEVICE static constexpr int single(int k, int half, int j, int e)
    {
        return (((k * 2 * TILES + half) * COLUMNS + j) * 2 + e) * 32;
    }

    DEVICE static constexpr int fourfold(int k, int octet, int j, int e)
    {
        return (((k * (TILES / 2) + octet) * COLUMNS + j) * 2 + e) * 32;
    }
};

struct TensorCores
{
    using Weights = dnnffi::Weights;
    using Factor = dnnffi::Factor; /* of the matrices */
    /* Weights pass through the memory of the ring at the start. */
    static constexpr bool WEIGHTS_PASS_THROUGH_RING = true;
    /* Partial sums go through shared memory; else the threads of a cell exchange them by shuffles. */
    static constexpr bool REDUCES_THROUGH_SHARED = true;
};

} // namespace dnnffi
