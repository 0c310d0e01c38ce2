/* Where are the recurrent weights? Read once from the flat buffer, as cuDNN lays it out: a matrix
   [HIDDEN, HIDDEN] per gate, one after the other. They become fragments of `mma`, which stay in
   registers, in shared memory, or, for what does not fit, in device memory in the order in which a
   warp reads them. A forward multiplies by rows of the matrices, a backward by their columns. */

/* The recurrent matrices of a block's layer. Of several LAYERS those of its x, or backward those of
   the layer above, lie just before them, or behind. `layer` is its number in the order in which layers
   begin; the first has no other to read. */
struct Matrices
{
    const Element *recurrent;
    int rank, layer;
    bool aligned;

    DEVICE Matrices(const Element *first, int rank_, int layer_)
        : recurrent(first), rank(rank_), layer(layer_),
          aligned(((unsigned long long)first & 15) == 0)
    {
    }
};

/* Where a word of k has its weights: the first value in a row of a matrix, and that matrix. */
struct OfK
{
    int first;
    long long matrix; /* from the first recurrent one; */
    bool there;       /* else zeros */

    DEVICE OfK(const Matrices &matrices, int half, int k)
    {
        const bool own = LAYERS == 1 || k >= PART_WORDS;
        const int place = own && LAYERS > 1 ? k - PART_WORDS : k, number = half % OCTET_GATES;
        int gate = BACKWARD ? place / WORDS : number;
        first = place % WORDS * WORD;
        there = own || matrices.layer > 0;
        if (TWO_N && BACKWARD && own) gate = (gate + 2) % 3; /* n comes first */
        if (TWO_N && !BACKWARD && number >= 2) {
            gate = 2;
            there = there && own == (number == 2);
        }
        matrix = (long long)(gate + (own ? 0 : BACKWARD ? GATES : -GATES)) * HIDDEN * HIDDEN;
    }
};

/* A word of 8 (4 in float32) values of k, for row `row` of half tile `half` of this block. */
DEVICE uint4 weight_word(const Matrices &matrices, int half, int row, int k)
{
    const int rank = matrices.rank;
    union { Element values[WORD]; uint4 word; } found;
    found.word = make_uint4(0, 0, 0, 0);
    if (half < HALVES && k < EXCHANGED) {
        if (SCATTER) {
            constexpr int WORDS_OF_TEAM = TEAM * BLOCK_WORDS;
            const int block = half / BLOCK_HALVES * TEAM + rank % TEAM;
            const int unit = block * UNITS + half % BLOCK_HALVES / OCTET_GATES * 8 + row;
            const int own = rank / TEAM * TEAM * UNITS + k % WORDS_OF_TEAM * WORD;
            const int gate = BACKWARD ? k / WORDS_OF_TEAM : half % OCTET_GATES;
            const Element *from = matrices.recurrent + (long long)gate * HIDDEN * HIDDEN;
            for (int e = 0; e < WORD; e++)
                if (unit < HIDDEN && own + e < HIDDEN)
                    found.values[e] = BACKWARD ? from[(long long)(own + e) * HIDDEN + unit]
                                               : from[(long long)unit * HIDDEN + own + e];
            return as_factors(found.word);
        }
        const int unit = rank * UNITS + half / OCTET_GATES * 8 + row;
        const OfK of(matrices, half, k);
        const bool there = of.there && unit < HIDDEN;
        if (there && !BACKWARD) {
            const Element *from = matrices.recurrent + of.matrix + (long long)unit * HIDDEN + of.first;
            if (HIDDEN == PADDED && matrices.aligned) return as_factors(*(const uint4 *)from);
            for (int e = 0; e < WORD; e++)
                if (of.first + e < HIDDEN) found.values[e] = from[e];
        } else if (there) {
            const Element *from = matrices.recurrent + of.matrix + (long long)of.first * HIDDEN + unit;
            for (int e = 0; e < WORD; e++)
                if (of.first + e < HIDDEN) found.values[e] = from[(long long)e * HIDDEN];
        }
    }
    return as_factors(found.word);
}

/* The two fragments of a tile in a step of k. The k of a fragment may come in any order, as long as
   the other factor's come in the same: here each thread holds one word of two rows. */
struct Fragments
{
    uint4 first, second;
};

DEVICE Fragments fragments(const Matrices &matrices, int tile, int row, int k)
{
    const uint4 low = weight_word(matrices, 2 * tile, row, k);
    const uint4 high = weight_word(matrices, 2 * tile + 1, row, k);
    return {make_uint4(low.x, high.x, low.y, high.y), make_uint4(low.z, high.z, low.w, high.w)};
}

/* Where a word of a row is staged. Rows are permuted, so that the four words of a step of k lie in
   different banks. */
DEVICE int staged_at(int word, int row) { return word * ROWS + (row ^ (word % 4 * 2)); }

struct Weights
{
    Fragments kept[K_REGISTERS ? K_REGISTERS : 1][WARP_TILES];
    uint4 *shared, *streamed; /* this lane's, 32 lanes side by side */
    int word, staged; /* the first word that this lane multiplies, and where that is staged */

    DEVICE void read(
        const Matrices &matrices, uint4 *in_shared, uint4 *in_memory, int warp, int lane)
    {
        const int tile = warp % TILE_WARPS * WARP_TILES, row = lane / 4;
        const int k = warp / TILE_WARPS * CHUNK_K * 4 + lane % 4;
        word = held(k);
        staged = held(staged_at(k, row));
        shared = in_shared + warp * (K_SHARED * WARP_TILES * 64) + lane;
        streamed = in_memory + lane +
                   ((long long)blockIdx.x * WARPS + warp) * (K_STREAMED * WARP_TILES * 64);
#pragma unroll
        for (int s = 0; s < K_REGISTERS; s++)
#pragma unroll
            for (int m = 0; m < WARP_TILES; m++)
                kept[s][m] = fragments(matrices, tile + m, row, k + first_word(s));
#pragma unroll 4
        for (int i = 0; i < (WARP_K - K_REGISTERS) * WARP_TILES; i++) {
            const int at_k = k + first_word(K_REGISTERS + i / WARP_TILES), m = i % WARP_TILES;
            const Fragments found = fragments(matrices, tile + m, row, at_k);
            uint4 *at = i < K_SHARED * WARP_TILES ? shared + 64 * i
                                                  : streamed + 64 * (i - K_SHARED * WARP_TILES);
            at[0] = found.first;
            at[32] = found.second;
        }
    }

    DEVICE Fragments of(int s, int m) const
    {
        if (s < K_REGISTERS) return kept[s < K_REGISTERS ? s : 0][m];
        const int i = (s - K_REGISTERS) * WARP_TILES + m;
        const uint4 *at = i < K_SHARED * WARP_TILES ? shared + 64 * i
                                                    : streamed + 64 * (i - K_SHARED * WARP_TILES);
        return {at[0], at[32]};
    }
};
