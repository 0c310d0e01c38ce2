#pragma once
/* The recurrent weights, read once from the flat buffer, as cuDNN lays it out: a matrix
   [HIDDEN, HIDDEN] per gate, one after the other. They become fragments of `mma`, which stay in
   registers, in shared memory, or, for what does not fit, in device memory in the order in which a
   warp reads them. A forward pass multiplies by rows of the matrices, a backward pass by their
   columns.
   Those of a NARROW kernel are in an array of the executor's, in the same order, with padded rows. */

#include "config.cuh"
#include "ptx_async_copy.cuh"
#include "ptx_l2.cuh"
#include "tiles.cuh"

namespace dnnffi {

constexpr int MATRIX_ROW = NARROW ? PADDED : HIDDEN; /* elements from one row to the next */

/* The recurrent matrices of a block's layer. Of several LAYERS those of its x, or backward those of
   the layer above, lie just before them, or just after. `layer` is its number in the order in which layers
   begin; the first has no other to read. */
struct Matrices
{
    const Factor *recurrent;
    int rank, layer;
    bool aligned;

    DEVICE Matrices(const Factor *first, int rank_, int layer_)
        : recurrent(first), rank(rank_), layer(layer_), aligned(((unsigned long long)first & 15) == 0)
    {
    }
};

/* The place of the values of a word of k, for row `row` of half tile `half` of this block. */
struct Origin
{
    int unit, first;  /* row of a matrix of cuDNN's, and column, or backward the other way round */
    long long matrix; /* from the first recurrent one */
    bool there;       /* else zeros */

    DEVICE Origin(const Matrices &matrices, int half, int row, int k)
    {
        const int rank = matrices.rank, number = half % OCTET_GATES;
        there = half < HALVES && k < EXCHANGED;
        int gate;
        if constexpr (SCATTER) {
            constexpr int WORDS_OF_TEAM = TEAM * BLOCK_WORDS;
            const int block = half / BLOCK_HALVES * TEAM + rank % TEAM;
            unit = block * UNITS + half % BLOCK_HALVES * 8 + row;
            first = rank / TEAM * TEAM * UNITS + k % WORDS_OF_TEAM * K_WORD;
            gate = k / WORDS_OF_TEAM;
            there = there && first < HIDDEN;
        } else {
            const bool own = LAYERS == 1 || k >= PART_WORDS;
            const int place = own && LAYERS > 1 ? k - PART_WORDS : k;
            unit = rank * UNITS + half / OCTET_GATES * 8 + row;
            first = place % WORDS * K_WORD;
            gate = BACKWARD ? place / WORDS : number;
            there = there && (own || matrices.layer > 0);
            if (TWO_N && BACKWARD && own) gate = (gate + 2) % 3; /* n comes first */
            if (TWO_N && !BACKWARD && number >= 2) {
                gate = 2;
                there = there && own == (number == 2);
            }
            if (!own) gate += BACKWARD ? GATES : -GATES;
        }
        there = there && unit < HIDDEN;
        matrix = (long long)gate * HIDDEN * MATRIX_ROW;
    }
};

/* A tile of a step of k on its way, in shared memory. In a forward pass, a lane copies the two words that it
   keeps. In a backward pass, a word that is copied has K_WORD units of one k, and the warp transposes it.
   Words of different k then lie in different banks. Where rows of matrices are whole words, these are copied
   past L1: shared memory leaves little of it, and loads would wait for room there. */
struct Passage
{
    uint4 *words; /* of the warp */

    static constexpr int LANES_OF_K = 2 * 8 / K_WORD; /* that copy one k of both half tiles, backward */

    DEVICE Factor *place(int half, int k, int unit) const
    {
        return (Factor *)words + half * OF_COLUMNS + (k + k / K_WORD) * 8 + unit;
    }

    /* Begins to copy; `first` is the first of the four words of k. */
    DEVICE void copy(const Matrices &matrices, int tile, int first, int lane) const
    {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            if (!BACKWARD) {
                const Origin of(matrices, 2 * tile + n, lane / 4, first + lane % 4);
                copy(words + 32 * n + lane, matrices, of, of.unit, of.first);
                continue;
            }
            const int number = 32 * n + lane, k = number / LANES_OF_K, part = number % LANES_OF_K;
            const int half = part / (8 / K_WORD), unit = part % (8 / K_WORD) * K_WORD;
            const Origin of(matrices, 2 * tile + half, unit, first + k / K_WORD);
            copy((uint4 *)place(half, k, unit), matrices, of, of.first + k % K_WORD, of.unit);
        }
    }

    /* The word at a row and a column of the matrix, or what exists of it, and zeros. */
    DEVICE static void copy(uint4 *to, const Matrices &matrices, const Origin &of, int row, int column)
    {
        const Factor *from = matrices.recurrent + of.matrix + (long long)row * MATRIX_ROW + column;
        const int there = of.there && row < HIDDEN ? MATRIX_ROW - column : 0;
        if (MATRIX_ROW == PADDED && matrices.aligned) {
            if (there) copy_word(to, from);
            else *to = make_uint4(0, 0, 0, 0);
            return;
        }
        /* No branches, so that several loads are in flight. */
        constexpr int EACH = MATRIX_ROW == PADDED ? 1 : K_WORD; /* rare: a buffer that is not aligned */
#pragma unroll EACH
        for (int e = 0; e < K_WORD; e++) {
            const Factor value = __ldg(e < there ? from + e : matrices.recurrent);
            ((Factor *)to)[e] = e < there ? value : Factor(0);
        }
    }

    /* Behind the copies of the warp: the lane's fragments take the place. */
    DEVICE void transpose(int lane) const
    {
        union {
            Factor values[K_WORD];
            uint4 word;
        } both[2];
        if (!BACKWARD) both[0].word = words[lane], both[1].word = words[32 + lane];
        else {
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int e = 0; e < K_WORD; e++)
                    both[half].values[e] = *place(half, lane % 4 * K_WORD + e, lane / 4);
            __syncwarp();
        }
        put(fragments(as_factors(both[0].word), as_factors(both[1].word)), lane);
    }

    DEVICE void put(const Fragments &found, int lane) const
    {
        words[lane] = found.first;
        words[32 + lane] = found.second;
    }

    DEVICE Fragments get(int lane) const { return {words[lane], words[32 + lane]}; }
};

/* The place in shared memory of a word of a row. Rows are permuted, so that the four words of a step of k lie in
   different banks. */
DEVICE int staged_at(int word, int row) { return word * ROWS + (row ^ (word % 4 * 2)); }

/* The first step of k of a chunk whose weights are streamed, and how many such steps are in the chunks before
   it: a warp multiplies chunk by chunk, and finds its streamed weights in this order. */
DEVICE constexpr int first_streamed(int chunk)
{
    constexpr int FIRST = K_REGISTERS + K_SHARED;
    return FIRST + (chunk - FIRST % CHUNKS + CHUNKS) % CHUNKS;
}

DEVICE constexpr int streamed_before(int chunk)
{
    int count = 0;
    for (int other = 0; other < chunk; other++)
        count += (WARP_K - first_streamed(other) + CHUNKS - 1) / CHUNKS;
    return count;
}

/* The weights that a warp reads in every step, on their way from L2 through a ring in shared memory. A lane
   asks for a step of k STREAM_RING steps of k before it multiplies it, and so for the first of a step of time
   while it waits for words: weights do not depend on h. It copies what it reads itself, so that no barrier is
   needed; and since a multiprocessor reads and writes shared memory in the order of a thread's instructions,
   a copy does not overtake the loads of what it replaces (`Ring::advance` relies on this, too). */
struct WeightStream
{
    static constexpr int STEP = WARP_TILES * 64; /* words of a warp in a step of k */

    uint4 *slots;      /* this lane's */
    const uint4 *from; /* the same in device memory */
    int oldest, next;  /* slot of what is multiplied next; what is asked for next */

    DEVICE void begin(Policy policy)
    {
        oldest = next = 0;
#pragma unroll 1
        for (int i = 0; i < STREAM_RING; i++) ask(policy);
    }

    /* Asks for the next step of k, which takes the slot of the one whose products are done. */
    DEVICE void ask(Policy policy)
    {
#pragma unroll
        for (int i = 0; i < STEP; i += 32) {
            if (FAR) copy_word_by(policy, slots + oldest + i, from + next + i);
            else copy_word(slots + oldest + i, from + next + i);
        }
        commit_copies();
        next = next == (K_STREAMED - 1) * STEP ? 0 : next + STEP;
        oldest = oldest == (STREAM_RING - 1) * STEP ? 0 : oldest + STEP;
    }
};

struct Weights
{
    Fragments kept[K_REGISTERS ? K_REGISTERS : 1][WARP_TILES];
    uint4 *shared, *streamed; /* this lane's, 32 lanes side by side */
    int word, staged;         /* the first word that this lane multiplies, and where that is staged */
    WeightStream stream;      /* of those in device memory, with a STREAM_RING */
    Policy policy;            /* of the same, if they are FAR */

    DEVICE void read(const Matrices &matrices, uint4 *memory, uint4 *in_memory, int warp, int lane)
    {
        const int tile = warp % TILE_WARPS * WARP_TILES, first = warp / TILE_WARPS * NEXT_WARP * 4;
        policy = KEPT_SIXTEENTHS > 0 ? keep_part(KEPT_SIXTEENTHS / 16.0f) : keep_none();
        word = retained(first + lane % 4);
        staged = retained(staged_at(first + lane % 4, lane / 4));
        shared = memory + WEIGHTS_AT / 16 + warp * (K_SHARED * WARP_TILES * 64) + lane;
        streamed = in_memory + lane + ((long long)blockIdx.x * WARPS + warp) * (K_STREAMED * WARP_TILES * 64);
        stream.slots =
            memory + WEIGHTS_AT / 16 + lane + (WARPS * K_SHARED + warp * STREAM_RING) * (WARP_TILES * 64);
        stream.from = streamed;
        const auto passage = [&](int n) {
            return Passage{memory + (n * WARPS + warp) * (PASSAGE_BYTES / 16)};
        };

        /* In loops: their instructions, which are executed once in a launch, have to be fetched. */
        const auto pass = [&](int begin, int end) {
            constexpr int EACH = MATRIX_ROW == PADDED ? 1 : 2;
#pragma unroll EACH
            for (int i = begin; i < end; i++)
                passage(i - begin).copy(matrices, tile + i % WARP_TILES, first + first_word(i / WARP_TILES),
                                        lane);
            commit_copies();
            wait_for_copies<0>();
            __syncwarp();
#pragma unroll 1
            for (int i = begin; i < end; i++) passage(i - begin).transpose(lane);
        };

        constexpr int KEPT = K_REGISTERS * WARP_TILES, ALL = WARP_K * WARP_TILES;
#pragma unroll
        for (int begin = 0; begin < KEPT; begin += KEPT_PASSAGES) {
            const int end = begin + KEPT_PASSAGES < KEPT ? begin + KEPT_PASSAGES : KEPT;
            pass(begin, end);
#pragma unroll
            for (int i = begin; i < end; i++)
                kept[i / WARP_TILES][i % WARP_TILES] = passage(i - begin).get(lane);
            __syncwarp(); /* the next ones take the place */
        }
        __syncthreads(); /* and then weights that stay in shared memory do */
#pragma unroll 1
        for (int begin = KEPT; begin < ALL; begin += PASSAGES) {
            const int end = begin + PASSAGES < ALL ? begin + PASSAGES : ALL;
            pass(begin, end);
#pragma unroll 1
            for (int i = begin; i < end; i++) {
                const Fragments found = passage(i - begin).get(lane);
                uint4 *at = place(i / WARP_TILES, i % WARP_TILES);
                at[0] = found.first;
                at[32] = found.second;
            }
            __syncwarp();
        }
        __syncthreads(); /* and the ring does */
    }

    /* Behind `read`, and once the input ring has asked for its first turns. */
    DEVICE void begin_stream()
    {
        if (STREAM_RING) stream.begin(policy);
    }

    /* At the end: what was asked for the step that does not follow. */
    DEVICE void end_stream() const
    {
        if (STREAM_RING) wait_for_copies<0>();
    }

    /* In the last step: L2 need not keep them for the kernels that follow. */
    DEVICE void release() { policy = keep_none(); }

    /* The place of a fragment that is not in registers. */
    DEVICE uint4 *place(int s, int m) const
    {
        if (s < K_REGISTERS + K_SHARED) return shared + 64 * ((s - K_REGISTERS) * WARP_TILES + m);
        const int number = streamed_before(s % CHUNKS) + (s - first_streamed(s % CHUNKS)) / CHUNKS;
        return streamed + 64 * (number * WARP_TILES + m);
    }

    /* Before and after a step of k is multiplied: its weights are there; their place is free. */
    DEVICE void await(int s) const
    {
        if (STREAM_RING && s >= K_REGISTERS + K_SHARED)
            wait_for_copies<(STREAM_RING ? STREAM_RING - 1 : 0)>();
    }

    DEVICE void leave(int s)
    {
        if (STREAM_RING && s >= K_REGISTERS + K_SHARED) stream.ask(policy);
    }

    DEVICE Fragments of(int s, int m) const
    {
        if (s < K_REGISTERS) return kept[s < K_REGISTERS ? s : 0][m];
        const bool is_streamed = s >= K_REGISTERS + K_SHARED;
        const uint4 *at = STREAM_RING && is_streamed ? stream.slots + stream.oldest + 64 * m : place(s, m);
        if (FAR && !STREAM_RING && is_streamed) return {load_by(policy, at), load_by(policy, at + 32)};
        return {at[0], at[32]};
    }
};

} // namespace dnnffi
