#pragma once
/* An example of the constants of a kernel: the forward pass of an LSTM in float16 with 1024 units, for a
   batch of 64 rows. `source.py` makes a file of this name for each kernel; README.md explains the example. */

#include "modes.cuh"

namespace dnnffi {

struct Config
{
    static constexpr int HIDDEN = 1024;
    static constexpr CellMode CELL = LSTM;
    static constexpr Dtype DTYPE = FLOAT16;
    static constexpr Dtype FACTORS = FLOAT16;
    static constexpr bool STRICT = false;
    static constexpr Clip CLIP = UNCLIPPED;
    static constexpr bool TRAINING = true;
    static constexpr bool BACKWARD = false;
    static constexpr bool RAGGED = false;
    static constexpr bool PACKED = false;
    static constexpr bool RESETS = false;
    static constexpr int UNITS = 32;
    static constexpr int ROWS = 16;
    static constexpr int SUBTILES = 1;
    static constexpr int TILE_WARPS = 4;
    static constexpr int K_WARPS = 2;
    static constexpr int K_REGISTERS = 8;
    static constexpr int K_SHARED = 8;
    static constexpr bool STAGED = true;
    static constexpr int RING = 4;
    static constexpr bool CLUSTER = false;
    static constexpr bool SCATTER = false;
    static constexpr int TEAM = 1;
    static constexpr int CHUNKS = 1;
    static constexpr int PARTS = 0;
    static constexpr bool FAR = false;
    static constexpr int KEPT_SIXTEENTHS = 0;
    static constexpr int STREAM_RING = 0;
    static constexpr int LAYERS = 1;
    static constexpr int PADDED = 1024;
    static constexpr int TEAMS = 32;
    static constexpr int BLOCKS = 32;
    static constexpr int THREADS = 256;
    static constexpr int EXCHANGED = 128;
    static constexpr int OCTET_GATES = 4;
    static constexpr int TILES = 8;
    static constexpr int WARP_TILES = 2;
    static constexpr int CHUNK_K = 16;
    static constexpr int CHUNK_WORDS = 2048;
    static constexpr int CHUNK_LOADS = 8;
    static constexpr int K_STREAMED = 0;
    static constexpr int CELLS = 2;
    static constexpr int RING_ARRAYS = 6;
    static constexpr int RING_WORDS = 384;
    static constexpr bool FINDS_PLACES = false;
    static constexpr int SHARE_WORDS = 512;
    static constexpr int SLOT_WORDS = 2048;
    static constexpr int PARTIAL_FLOATS = 4096;
    static constexpr int RING_AT = 16384;
    static constexpr int STAGED_AT = 40960;
    static constexpr int STAGED_BYTES = 32768;
    static constexpr int WEIGHTS_AT = 73728;
    static constexpr int RESET_FLAGS = 512;
    static constexpr bool FIT_TWO = false;
    static constexpr int TIMELINE = 0;
    /* Constants of the kernels of single steps, of kernels that copy rows, and of small products. */
    static constexpr int INPUTS = 1024;
    static constexpr int OCTETS = 1;
    static constexpr int X_WARPS = 4;
    static constexpr int H_WARPS = 4;
    static constexpr int WARPS = 8;
    using Piece = uint4;
    static constexpr int MAX_ROWS = 960;
    static constexpr int MAX_ARRAYS = 64;
    static constexpr int ROWS_PER_BLOCK = 8;
    static constexpr int STEPS_PER_BLOCK = 4;
    static constexpr int MAX_PRODUCTS = 16;
    static constexpr int WHOLE_TILE = 64;
    static constexpr int SPLIT_TILE = 32;
    static constexpr int SPLIT_GROUPS = 4;
    static constexpr int ROW_WORDS = 32;
    static constexpr int ROW_STRIDE = 36;
    static constexpr int SHARED_BYTES = 36864;
};

} // namespace dnnffi
