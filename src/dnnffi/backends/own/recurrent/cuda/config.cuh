#pragma once
/* Division of a step among blocks, warps and threads: the constants of a `Config`, which Python chooses
   (`config.py`), and those that follow from them. The assertions at the end say what has to hold between
   them. */

#include "cells.cuh"
#include "dtype.cuh"
#include "kernel_config.cuh"

namespace dnnffi {

/* The problem. */
constexpr int HIDDEN = Config::HIDDEN;      /* units of a layer */
constexpr bool TRAINING = Config::TRAINING; /* whether a forward pass saves state for the backward pass */
constexpr bool BACKWARD = Config::BACKWARD;
constexpr bool RAGGED = Config::RAGGED; /* whether rows have unequal lengths */
constexpr bool PACKED = Config::PACKED; /* RAGGED: whether the caller's arrays are packed */
/* Number of layers that one launch runs; more than one only in networks of one direction. Each layer is one
   step later than the layer that it reads; a group has BLOCKS blocks for each. */
constexpr int LAYERS = Config::LAYERS;

/* Hidden units of a block, a multiple of 8. */
constexpr int UNITS = Config::UNITS;
/* Rows of a sub-tile, a multiple of 8, or with FMA 1, 2 or 4; SUBTILES of them belong to a group of blocks,
   which works on them in turn, so that one is exchanged while the other is computed. */
constexpr int ROWS = Config::ROWS, SUBTILES = Config::SUBTILES;
/* The warps of a block share the tiles of its gates and the sum over k. */
constexpr int TILE_WARPS = Config::TILE_WARPS, K_WARPS = Config::K_WARPS;
/* Numbers of a warp's steps of k that have their weights in registers, and in shared memory; those of the
   rest are read from L2 in every step. */
constexpr int K_REGISTERS = Config::K_REGISTERS, K_SHARED = Config::K_SHARED;
/* Whether the warps that multiply the same words gather them into shared memory together, or each into
   registers. What is gathered together is requested before the step's inputs are read: faster, while warps
   that gather for themselves lose by it as often as they gain. */
constexpr bool STAGED = Config::STAGED;
/* Slots of the ring: inputs of RING - 1 steps are in flight. */
constexpr int RING = Config::RING;
/* Whether the blocks of a group are a cluster, which exchanges in shared memory. With tensor
   cores and words in L2 a second barrier ends a step, so that no thread polls while others compute cells; a
   cluster has none, and its partial sums alternate between two places. */
constexpr bool CLUSTER = Config::CLUSTER;
/* Whether blocks exchange their shares of a step's products, in a backward pass. TEAM blocks of consecutive
   ranks exchange their words among them first, and send shares to the blocks of their own place in all teams.
   In a team of one block the words stay in it. */
constexpr bool SCATTER = Config::SCATTER;
constexpr int TEAM = Config::TEAM;
/* Number of chunks into which the k of a step is divided. The words of one chunk are multiplied while those
   of the next are in flight. 1: all words are multiplied after the last has arrived. */
constexpr int CHUNKS = Config::CHUNKS;
/* Number of threads that share the sums of a unit in a kernel without tensor cores (FMA), whose groups are
   one block or a CLUSTER. ROWS is then 1, 2 or 4, at most PARTS. 0: tensor cores. */
constexpr int PARTS = Config::PARTS;
constexpr bool FMA = PARTS > 0;
/* Number of a warp's steps of k whose streamed weights are asked for ahead, and have a place in shared
   memory. 0: they are read when they are multiplied. */
constexpr int STREAM_RING = Config::STREAM_RING;
/* Whether L2 has no room for the weights that are read from there in every step; how many sixteenths of them
   it is asked to keep then. */
constexpr bool FAR = Config::FAR;
constexpr int KEPT_SIXTEENTHS = Config::KEPT_SIXTEENTHS;

/* In the kernels' own arrays gates are padded to PADDED units: whole words, whole octets. */
constexpr int PADDED = Config::PADDED;
constexpr int TEAMS = Config::TEAMS, BLOCKS = Config::BLOCKS; /* of a group, for each of its LAYERS */
constexpr int WORDS = PADDED / K_WORD;                        /* of a row of one gate, or of h */
constexpr int BLOCK_WORDS = UNITS / K_WORD;                   /* those of a block */
constexpr int ARRAY_WORDS = UNITS / WORD;                     /* the same in an array */

/* The words of a row that a block multiplies in a step, its k: h, or backward the gradients of all
   gates; with SCATTER those of its team's units. Of several LAYERS also, before its own, the PART_WORDS
   of the layer that it reads: y of the one below, or backward the gradients of the one above. */
constexpr int EXCHANGED = Config::EXCHANGED;
constexpr int PART_WORDS = EXCHANGED / (LAYERS > 1 ? 2 : 1);

/* A GRU multiplies the product of h in its n by r, not that of x. A kernel that has both products has sums
   of n for each in the forward pass, and sends both gradients of n in the backward pass. */
constexpr bool TWO_N = CELL == GRU && LAYERS > 1;
constexpr int SENT = BACKWARD ? GATES + TWO_N : 1; /* words of a unit's word in a row */

/* A step of k takes 4 words: two products of 16 x 8. Their halves are 8 rows of one gate. A warp has
   CHUNK_K steps of k of a chunk, and WARP_K of all. */
constexpr int CHUNK_K = Config::CHUNK_K;
constexpr int WARP_K = CHUNKS * CHUNK_K;
constexpr int K_STREAMED = Config::K_STREAMED;
constexpr bool WHOLE = K_WARPS * WARP_K * 4 == EXCHANGED; /* no warp reaches beyond the last word */

/* Whether the steps of k of a chunk are dealt to warps in turn, or each warp has consecutive ones. In turn,
   the words that warps request at the same time are adjacent: faster for groups of eight rows, and not for
   groups of more. */
constexpr bool IN_TURN = ROWS == 8;
constexpr int NEXT_K = IN_TURN ? K_WARPS : 1, NEXT_WARP = IN_TURN ? 1 : CHUNK_K; /* steps of k */

/* The first word of a warp's step of k, counted from the warp's first of all. Step s is of chunk
   s % CHUNKS: so all chunks have about as many weights in registers, in shared memory and in L2, and
   reading the latter overlaps with products. */
DEVICE constexpr int first_word(int s)
{
    return 4 * (s % CHUNKS * (K_WARPS * CHUNK_K) + s / CHUNKS * NEXT_K);
}

constexpr int OCTET_GATES = Config::OCTET_GATES; /* half tiles of 8 units */
constexpr int BLOCK_HALVES = UNITS / 8 * OCTET_GATES;
constexpr int HALVES = (SCATTER ? TEAMS : 1) * BLOCK_HALVES;
constexpr int TILES = Config::TILES, WARP_TILES = Config::WARP_TILES; /* of a block, of a warp */
constexpr int COLUMNS = FMA ? 1 : ROWS / 8;                           /* tiles of rows */
/* Sums of many rows and words in flight leave few registers: what cells read from the ring, and the
   words of a column, are then read when they are needed. */
constexpr bool CROWDED = ROWS > 16 || CHUNKS > 1;
constexpr bool FOURFOLD = OCTET_GATES == 4 && WARP_TILES % 2 == 0; /* partial sums as float4 */

constexpr int WARPS = TILE_WARPS * K_WARPS;
constexpr int THREADS = Config::THREADS;

/* Cells: a task of a warp is 8 units of 8 rows, or of every second row if that uses more warps. */
constexpr int CELLS = Config::CELLS; /* of a thread in a task */
constexpr int TASKS = UNITS / 8 * COLUMNS * (3 - CELLS);
constexpr int WARP_TASKS = FMA ? 1 : (TASKS + WARPS - 1) / WARPS;
constexpr int TASK_WORDS = 32 * CELLS / K_WORD; /* that a task sends, of one gate */
constexpr int TASK_SENT = TASK_WORDS * SENT;    /* of all gates */

/* The arrays that a step reads and writes, whose words pass through the ring. */
constexpr bool PLAIN = CELL == TANH || CELL == RELU;
constexpr int RING_ARRAYS = Config::RING_ARRAYS;
constexpr int INPUT_ARRAYS = BACKWARD ? RING_ARRAYS : GATES; /* those that are read */
constexpr int RING_WORDS = Config::RING_WORDS;               /* of a slot */

/* With FMA and without a CLUSTER the last warps of a block fill and empty the ring, while the others
   compute. */
constexpr int CELL_THREADS = FMA ? (UNITS * PARTS + 31) / 32 * 32 : THREADS;
constexpr int ALIKE = FMA ? PARTS / ROWS : 1; /* threads that have the same sums */
constexpr int RING_FIRST = FMA && !CLUSTER ? CELL_THREADS : 0;
constexpr int RING_THREADS = THREADS - RING_FIRST;
constexpr int THREAD_WORDS = (RING_WORDS + RING_THREADS - 1) / RING_THREADS;
constexpr int RING_ARRAY_WORDS = RING_WORDS / RING_ARRAYS;
constexpr bool FINDS_PLACES =
    Config::FINDS_PLACES;                    /* whether a step finds the places of a thread's words anew */
constexpr int OUTPUT = BACKWARD ? 0 : GATES; /* the first array that is sent; y */
constexpr bool RESETS = Config::RESETS;      /* whether states are replaced between steps: `resets.cuh` */

/* A share is the partial sums that a block sends to another one, in words. Several threads add up some
   blocks' words each, or a thread several words of all blocks. */
constexpr int SHARE_WORDS = Config::SHARE_WORDS;
constexpr int ADDERS = !FMA && SHARE_WORDS < THREADS ? THREADS / SHARE_WORDS : 1; /* threads of a word */
constexpr int ADDED = (SHARE_WORDS + THREADS - 1) / THREADS;                      /* words of a thread */
constexpr bool ROW_PAIRS =
    COLUMNS % 2 == 0; /* whether a word of a share has two columns, or else two half tiles */

constexpr int CHUNK_WORDS = Config::CHUNK_WORDS;
constexpr int CHUNK_LOADS = Config::CHUNK_LOADS; /* of a thread */
constexpr int GATHERED_WORDS = EXCHANGED * ROWS;
constexpr int SHARES = SCATTER ? BLOCKS * TEAMS * SHARE_WORDS : 0; /* words of all of them */
constexpr int SLOT_WORDS = Config::SLOT_WORDS;                     /* that are exchanged in a step */

/* Shared memory: partial sums, the ring, what is staged, the barriers of a CLUSTER, flags and states of RESETS,
   weights. Where words come in chunks, the partial sums of a step take the place of its words. */
constexpr int PARTIAL_FLOATS = Config::PARTIAL_FLOATS;
constexpr int RING_AT = Config::RING_AT, STAGED_AT = Config::STAGED_AT; /* bytes */
constexpr int STAGED_BYTES = Config::STAGED_BYTES;
constexpr int WEIGHTS_AT = Config::WEIGHTS_AT;
constexpr int RESET_FLAGS = Config::RESET_FLAGS; /* of a window of `ResetWindow` */
constexpr int RESET_WINDOWS =
    TRAINING && !BACKWARD ? 2 : 1; /* results of a step may be stored after its window */
/* With RESETS a forward kernel sends states that may differ from y; they are written after the flags. */
constexpr int STATE = RESETS && !BACKWARD ? 0 : OUTPUT;
constexpr int STATE_BYTES = BACKWARD || FMA ? 0 : ARRAY_WORDS * ROWS * 16;
constexpr int STATES_AT = WEIGHTS_AT - (RESETS ? STATE_BYTES : 0);
constexpr int RESETS_AT = STATES_AT - (RESETS ? RESET_WINDOWS * RESET_FLAGS : 0);

constexpr int VALUES = BACKWARD ? GATES : 1;   /* that a unit has for the next product of a row */
constexpr int STAGED_FLOATS = VALUES * PADDED; /* of a row, with FMA */
constexpr int STAGED_ROW = HIDDEN | 1;         /* floats of a row of a matrix: in different banks */

/* At the start weights pass through the same memory, but for what other blocks of a CLUSTER write: at
   least two tiles of each warp at a time. */
constexpr int OF_COLUMNS = 8 * (4 * K_WORD + 4); /* factors of half a tile, with gaps */
constexpr int PASSAGE_BYTES = 2 * OF_COLUMNS * (16 / K_WORD);
constexpr int PASSAGES = FMA ? 0 : (CLUSTER ? STAGED_AT : WEIGHTS_AT) / (WARPS * PASSAGE_BYTES);
constexpr int KEPT_PASSAGES = /* where no weights are yet */
    FMA || CLUSTER ? PASSAGES : (WEIGHTS_AT / WARPS + K_SHARED * WARP_TILES * 1024) / PASSAGE_BYTES;

/* All of a layer, of a block's work and of shared memory is divided, and nothing twice. */
static_assert(PADDED % 8 == 0 && PADDED >= HIDDEN && PADDED < HIDDEN + 8, "units in arrays");
static_assert(BLOCKS == TEAMS * TEAM && BLOCKS * UNITS >= PADDED, "units of blocks");
static_assert((BLOCKS - TEAM) * UNITS < PADDED, "no team without units");
static_assert(THREADS == 32 * WARPS, "warps of a block");
static_assert(PART_WORDS == VALUES * (SCATTER ? TEAM * BLOCK_WORDS : WORDS), "words of k");
static_assert(EXCHANGED == PART_WORDS * (LAYERS > 1 ? 2 : 1), "words of k of both layers");
static_assert(OCTET_GATES == (BACKWARD ? 1 : GATES + TWO_N), "sums of a unit");
static_assert(2 * TILES == HALVES + HALVES % 2, "half tiles");
static_assert(TILE_WARPS * WARP_TILES >= TILES && TILE_WARPS * (WARP_TILES - 1) < TILES, "tiles");
static_assert(K_WARPS * WARP_K * 4 >= EXCHANGED, "all of k");
static_assert(FMA || K_REGISTERS + K_SHARED + K_STREAMED == WARP_K, "all weights");
static_assert(CHUNK_WORDS == 4 * K_WARPS * CHUNK_K * ROWS, "words of a chunk");
static_assert(CHUNK_LOADS * THREADS >= CHUNK_WORDS, "loads of a chunk");
static_assert(RING_ARRAYS == (BACKWARD ? (PLAIN ? 2 : SAVED + 2) : GATES + 1 + (TRAINING && !PLAIN)),
              "arrays");
static_assert(RAGGED || !PACKED, "rows of the same length are as in padded arrays");
static_assert(!RESETS || LAYERS == 1, "words are of one layer");
static_assert(RING_WORDS == RING_ARRAYS * ARRAY_WORDS * ROWS, "a slot of the ring");
static_assert(FMA || SHARE_WORDS == BLOCK_HALVES * COLUMNS * 16, "a share");
static_assert(SLOT_WORDS >= SHARES + (SCATTER ? (TEAM > 1) * TEAMS * GATHERED_WORDS : SENT * WORDS * ROWS),
              "what is exchanged");
static_assert(PARTIAL_FLOATS >= (SCATTER ? ADDED * THREADS * 4
                                 : FMA   ? 0
                                         : K_WARPS * 2 * TILES * COLUMNS * 64),
              "partial sums");
static_assert(STAGED_BYTES >= (FMA          ? 2 * ROWS * STAGED_FLOATS * 4
                               : CHUNKS > 1 ? 2 * CHUNK_WORDS * 16
                               : STAGED     ? (CLUSTER ? 2 : 1) * GATHERED_WORDS * 16
                                            : 0),
              "what is staged");
static_assert(RING_AT >= (CLUSTER ? 2 : 1) * PARTIAL_FLOATS * 4, "the ring follows the partial sums");
static_assert((CHUNKS > 1 ? RESETS_AT : STAGED_AT) >= RING_AT + RING * SUBTILES * RING_WORDS * 16,
              "staged words follow the ring");
static_assert(CHUNKS == 1 || STAGED_AT == 0 && RING_AT >= STAGED_BYTES, "chunks are before the ring");
static_assert(CHUNKS > 1 || RESETS_AT >= STAGED_AT + STAGED_BYTES +
                                             (!CLUSTER     ? 0
                                              : LAYERS > 1 ? 32
                                                           : 16),
              "flags and weights are last");
static_assert(RESET_FLAGS >= (CLUSTER || FMA ? RESET_WINDOWS : 1) * SUBTILES * ROWS,
              "flags of a window's steps");
static_assert(FMA || PASSAGES >= 2, "passages of weights");
static_assert(UNITS % 8 == 0 && (FMA || ROWS % 8 == 0 && K_STREAMED >= 0), "octets");
static_assert(!FMA || (CLUSTER || BLOCKS == 1) && LAYERS == 1 && PARTS % ROWS == 0, "whole rows");
static_assert(RING_THREADS > 0, "someone moves words");
static_assert(!FINDS_PLACES || !FMA && !CLUSTER, "all threads move words, in long steps");
static_assert(KEPT_SIXTEENTHS >= 0 && KEPT_SIXTEENTHS <= (FAR ? 16 : 0), "a part of what L2 has no room for");
static_assert(!CLUSTER || STAGED && SUBTILES == 1, "a cluster stages one sub-tile");
static_assert(!SCATTER || BACKWARD && STAGED && !CLUSTER && K_WARPS == 1 && SUBTILES == 1, "shares");
static_assert(!SCATTER || ROW_PAIRS || BLOCK_HALVES % 2 == 0, "a tile is one block's");
static_assert(LAYERS == 1 || !SCATTER && CHUNKS == 1, "layers at once");
static_assert(TEAM == 1 || SCATTER, "teams exchange shares");
static_assert(CHUNKS == 1 || STAGED && !CLUSTER && !SCATTER, "chunks");
static_assert(!NARROW || !BACKWARD && !FMA && LAYERS == 1 && CELL != RELU, "bounded states");
static_assert(STREAM_RING <= K_STREAMED || !STREAM_RING,
              "a step commits as many groups of weights as are in flight");
static_assert(!STREAM_RING || !SCATTER || RING > 2, "a kernel that scatters multiplies a step earlier");
static_assert(!STREAM_RING || !FMA && !CLUSTER && (!SCATTER || TEAM > 1),
              "weights are multiplied in the order in which they are streamed");
static_assert(RING >= (CLUSTER || FMA ? 3 : 2), "a step's inputs are awaited one step ahead");

/* A number that the compiler knows nothing about. */
DEVICE u32 opaque(u32 value)
{
    asm volatile("" : "+r"(value));
    return value;
}

/* Registers of a thread: all that it can have, and those of weights and sums. Where these leave 100, what every
   step uses is computed once. */
constexpr int MAX_REGISTERS = THREADS <= 256 ? 255 : 65536 / THREADS;
constexpr int HELD_REGISTERS = FMA ? 0 : 4 * WARP_TILES * (2 * K_REGISTERS + COLUMNS);
constexpr bool HAS_ROOM = !CROWDED && HELD_REGISTERS + 100 <= MAX_REGISTERS;

/* Blocks of a cluster's forward kernel for which a multiprocessor is to have registers, where it has the shared
   memory. With one each, 32 clusters of four blocks did not run at once on 132 multiprocessors, and the last ones
   began when others had ended. Rows of unequal length took longer with two. */
constexpr int MIN_BLOCKS = RESETS && !RAGGED && !STRICT && Config::FIT_TWO ? 2 : 1;

/* A number that the compiler would otherwise compute again in every step, for example between a cell and what
   is sent of it. */
DEVICE int retained(int value)
{
    if constexpr (HAS_ROOM) return (int)opaque(value);
    return value;
}

/* An address that is likewise computed once. */
DEVICE const uint4 *retained(const uint4 *at)
{
    if constexpr (HAS_ROOM) asm volatile("" : "+l"(at));
    return at;
}

} // namespace dnnffi
