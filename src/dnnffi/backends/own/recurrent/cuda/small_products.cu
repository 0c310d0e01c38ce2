/* Several small matrix products in one launch: C = A B, or C += A B, of matrices of one dtype, whose sums are
   computed in float32 by tensor cores.

   A library's call costs the host more than a launch, and its algorithms pay off for large matrices. A batch
   of a small network waits for the host: there one launch for all products of a pass is faster.

   A block computes one tile of one C. If there are few tiles, a tile is small and the warps form SPLIT_GROUPS
   groups, each of which sums up a part of k; the groups' sums are added in a fixed order, so that equal calls
   give equal bits. */

#include "ptx_mma.cuh"
#include "tiles.cuh"

namespace dnnffi {

/* The matrices of one product. Strides are in elements; those of n of C are 1, and of a and b at
   least one is 1. A batch is several products of the same sizes. The sum over k has `segments` parts of k
   terms each, which lie `a_segment` and `b_segment` apart. */
struct ProductShape
{
    long long a_m, a_k; /* A [m, k] */
    long long b_k, b_n; /* B [k, n] */
    long long c_m;      /* C [m, n] */
    long long a_batch, b_batch, c_batch;
    long long a_segment, b_segment;
    int m, n, k; /* 0: the positions of the launch */
    int batch, segments;
    int is_split; /* small tiles, and k divided between groups of warps */
};

struct ProductAddresses
{
    const Element *a, *b;
    Element *c;
};

struct SmallProducts
{
    int positions, accumulate;
    ProductAddresses at[Config::MAX_PRODUCTS];
    ProductShape shapes[Config::MAX_PRODUCTS];
};

constexpr int THREADS = Config::THREADS;
constexpr int ROW_WORDS = Config::ROW_WORDS;   /* 32-bit words of k that a tile of A or B has at a time */
constexpr int ROW_STRIDE = Config::ROW_STRIDE; /* of a tile's rows in shared memory, in words */
constexpr int IN_WORD = 4 / (int)sizeof(Element);
constexpr int K_TILE = ROW_WORDS * IN_WORD; /* elements */
constexpr int STEP = 8 * IN_WORD;           /* elements of k that one instruction multiplies */
constexpr int WARP_M = 32, WARP_N = 16;     /* of C, by one warp */

/* One division of a block's threads into groups: the block has a SIZE x SIZE tile of C. */
template <int Groups, int Size> struct Division
{
    static constexpr int GROUPS = Groups;
    static constexpr int SIZE = Size;
    static constexpr int GROUP_THREADS = THREADS / Groups;
    static constexpr int WARPS_M = SIZE / WARP_M;
    static constexpr int VECTORS = SIZE * ROW_WORDS / 4 / GROUP_THREADS; /* of 16 bytes, for each thread */
    static constexpr int SHARED_WORDS = Groups * 2 * SIZE * ROW_STRIDE;
};

using Whole = Division<1, Config::WHOLE_TILE>;
using Split = Division<Config::SPLIT_GROUPS, Config::SPLIT_TILE>;

static_assert(4 * Whole::SHARED_WORDS <= Config::SHARED_BYTES &&
              4 * Split::SHARED_WORDS <= Config::SHARED_BYTES);

/* The part of one operand that a thread copies from global to shared memory: VECTORS times 16 bytes of each tile
   of K_TILE elements of k. Neighbours of the stride 1 are next to each other in a vector. */
template <class Division> struct Carrier
{
    union Vector {
        uint4 whole;
        Element elements[WORD];
    };

    const Element *at; /* the first element of the thread's first vector of a tile, for k 0 */
    long long k_stride, segment_stride;
    long long vector_stride; /* elements from a vector to the next, ROW_STEP rows on */
    int rows, row, row_step; /* of the operand, of the first vector, and to the next one */
    int k;                   /* of the thread's vectors in a tile */
    bool along_k, has_vectors;
    Vector vectors[Division::VECTORS];

    /* `base` is the first of the operand's `rows` rows (of m or n), and `depth` the length of k. */
    DEVICE Carrier(const Element *base, long long row_stride, long long k_stride, long long segment_stride,
                   int rows, int depth, int thread)
        : k_stride(k_stride), segment_stride(segment_stride), rows(rows), along_k(k_stride == 1)
    {
        /* Across k, two threads read 32 bytes that follow each other, a sector, if there are enough. */
        constexpr int GROUP = Division::GROUP_THREADS, PAIR = GROUP / 2 < K_TILE ? 1 : 2;
        row = along_k ? thread / 8 : (thread / PAIR / K_TILE * PAIR + thread % PAIR) * WORD;
        row_step = along_k ? GROUP / 8 : GROUP / K_TILE * WORD;
        k = along_k ? thread % 8 * WORD : thread / PAIR % K_TILE;
        at = base + row * row_stride + k * k_stride;
        vector_stride = row_step * row_stride;
        /* 16 bytes can be read at once if all of them are in the operand, and aligned. Rows may be read up
           to a whole vector where a line is that long. */
        const long long line = along_k ? row_stride : k_stride;
        const bool is_whole = along_k ? depth % WORD == 0 : (rows + WORD - 1) / WORD * WORD <= line;
        has_vectors =
            is_whole && line % WORD == 0 && segment_stride % WORD == 0 && (unsigned long long)base % 16 == 0;
    }

    /* Read the tile whose k begins with `first`; what is outside of the operand is 0. */
    DEVICE void load(int segment, int first, int depth)
    {
        const Element *from = at + segment * segment_stride + first * k_stride;
        const int left = depth - first - k;
#pragma unroll
        for (int v = 0; v < Division::VECTORS; v++) vectors[v].whole = make_uint4(0, 0, 0, 0);
        if (left <= 0) return;
        if (has_vectors) {
#pragma unroll
            for (int v = 0; v < Division::VECTORS; v++)
                if (row + v * row_step < rows)
                    vectors[v].whole = __ldg((const uint4 *)(from + v * vector_stride));
            return;
        }
#pragma unroll
        for (int v = 0; v < Division::VECTORS; v++)
#pragma unroll
            for (int e = 0; e < WORD; e++) {
                const int of_row = row + v * row_step + (along_k ? 0 : e);
                if (of_row < rows && (!along_k || e < left))
                    vectors[v].elements[e] = from[v * vector_stride + e];
            }
    }

    /* Write them to `tile`, rows of ROW_STRIDE words. */
    DEVICE void store(u32 *tile) const
    {
#pragma unroll
        for (int v = 0; v < Division::VECTORS; v++) {
            Vector factors;
            factors.whole = as_factors(vectors[v].whole);
            u32 *to = tile + (row + v * row_step) * ROW_STRIDE;
            if (along_k) {
                *(uint4 *)(to + k / IN_WORD) = factors.whole;
                continue;
            }
#pragma unroll
            for (int e = 0; e < WORD; e++) ((Element *)(to + e * ROW_STRIDE))[k] = factors.elements[e];
        }
    }
};

/* Multiply one tile of A [32, K_TILE] by one of B [K_TILE, 16]: the sums of a warp, of which a thread has
   four of each of 2 x 2 products of 16 x 8. `length` is how much of k is not 0. */
DEVICE void multiply(float (*sums)[4], const u32 *a, const u32 *b, int lane, int length)
{
    const int row = lane / 4, word = lane % 4;
#pragma unroll
    for (int step = 0; step < ROW_WORDS / 8; step++) {
        if (step * STEP >= length) break;
        const u32 *of_a = a + row * ROW_STRIDE + step * 8 + word;
        const u32 *of_b = b + row * ROW_STRIDE + step * 8 + word;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 *upper = of_a + i * 16 * ROW_STRIDE, *lower = upper + 8 * ROW_STRIDE;
            const uint4 factors = make_uint4(upper[0], lower[0], upper[4], lower[4]);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const u32 *column = of_b + j * 8 * ROW_STRIDE;
                multiply_add(sums[2 * i + j], factors, column[0], column[4]);
            }
        }
    }
}

/* The tile of a block: its product, its matrix of the batch, and its first row and column of C. */
struct Tile
{
    int product, matrix, m, n;
};

DEVICE int size_of(int size, const SmallProducts &products) { return size ? size : products.positions; }

DEVICE int tiles_of(int size, int tile) { return (size + tile - 1) / tile; }

DEVICE Tile find_tile(const SmallProducts &products, int block)
{
    int product = 0;
    for (;; product++) {
        const ProductShape &shape = products.shapes[product];
        const int size = shape.is_split ? Split::SIZE : Whole::SIZE;
        const int in_n = tiles_of(size_of(shape.n, products), size);
        const int in_matrix = in_n * tiles_of(size_of(shape.m, products), size);
        if (block < in_matrix * shape.batch) {
            const int of_matrix = block % in_matrix;
            return Tile{product, block / in_matrix, of_matrix / in_n * size, of_matrix % in_n * size};
        }
        block -= in_matrix * shape.batch;
    }
}

template <class Division> DEVICE void compute(const SmallProducts &products, const Tile &tile, u32 *shared)
{
    const ProductShape &shape = products.shapes[tile.product];
    const ProductAddresses &at = products.at[tile.product];
    const int m = size_of(shape.m, products) - tile.m, n = size_of(shape.n, products) - tile.n;
    const int depth = size_of(shape.k, products);
    const int group = threadIdx.x / Division::GROUP_THREADS, thread = threadIdx.x % Division::GROUP_THREADS;
    const int warp = thread / 32, lane = thread % 32;
    Carrier<Division> next_a(at.a + tile.matrix * shape.a_batch + tile.m * shape.a_m, shape.a_m, shape.a_k,
                             shape.a_segment, m, depth, thread);
    Carrier<Division> next_b(at.b + tile.matrix * shape.b_batch + tile.n * shape.b_n, shape.b_n, shape.b_k,
                             shape.b_segment, n, depth, thread);
    u32 *tile_a = shared + group * 2 * Division::SIZE * ROW_STRIDE;
    u32 *tile_b = tile_a + Division::SIZE * ROW_STRIDE;
    const int row = warp % Division::WARPS_M * WARP_M, column = warp / Division::WARPS_M * WARP_N;

    /* The steps of all segments one after the other; groups take turns. A group without a step multiplies
       zeros. */
    int segment = 0, first = group * K_TILE;
    const auto load = [&] {
        while (first >= depth && segment < shape.segments) {
            first -= tiles_of(depth, K_TILE) * K_TILE;
            segment++;
        }
        const int end = segment < shape.segments ? depth : 0;
        next_a.load(segment, first, end);
        next_b.load(segment, first, end);
    };

    float sums[4][4] = {};
    load();
    const int steps = tiles_of(depth, K_TILE) * shape.segments;
    for (int done = 0; done < steps; done += Division::GROUPS) {
        next_a.store(tile_a);
        next_b.store(tile_b);
        __syncthreads();
        const int left = depth - first;
        first += Division::GROUPS * K_TILE;
        if (done + Division::GROUPS < steps) load();
        multiply(sums, tile_a + row * ROW_STRIDE, tile_b + column * ROW_STRIDE, lane,
                 left < K_TILE ? left : K_TILE);
        __syncthreads();
    }

    /* The sums of all groups, and then one thread for each element of C, so that rows are written whole. */
    float *all = (float *)shared;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int in_m = row + i / 8 * 16 + i % 4 / 2 * 8 + lane / 4;
        const int in_n = column + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2;
        all[(group * Division::SIZE + in_m) * Division::SIZE + in_n] = sums[i / 4][i % 4];
    }
    __syncthreads();
    Element *c = at.c + tile.matrix * shape.c_batch + tile.m * shape.c_m + tile.n;
    for (int i = threadIdx.x; i < Division::SIZE * Division::SIZE; i += THREADS) {
        const int in_m = i / Division::SIZE, in_n = i % Division::SIZE;
        if (in_m >= m || in_n >= n) continue;
        float sum = 0;
#pragma unroll
        for (int one = 0; one < Division::GROUPS; one++)
            sum += all[one * Division::SIZE * Division::SIZE + i];
        Element *to = c + in_m * shape.c_m + in_n;
        *to = rounded(products.accumulate ? real(*to) + sum : sum);
    }
}

/* Grid: the tiles of all products, in their order. `memory` has SHARED_BYTES bytes. */
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    small_products(const __grid_constant__ SmallProducts products)
{
    extern __shared__ __align__(16) unsigned char memory[];
    u32 *shared = (u32 *)memory;
    const Tile tile = find_tile(products, blockIdx.x);
    if (products.shapes[tile.product].is_split) compute<Split>(products, tile, shared);
    else compute<Whole>(products, tile, shared);
}

} // namespace dnnffi
