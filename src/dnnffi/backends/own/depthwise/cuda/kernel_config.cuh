#pragma once
/* An example of the constants of a kernel: a 3 x 3 layer of 96 channels with stride 2, on 32 images of 56 x 56 in
   float16, with everything that may follow it. The kernels for all sizes lack those of PlaneSizes and PixelSizes.
   source.py makes a file of this name for each kernel. */

#include "basics.cuh"

namespace dnnffi {

struct Config
{
    static constexpr Dtype DTYPE = FLOAT16;
    static constexpr bool BIAS = true;
    static constexpr bool RESIDUAL = true;
    static constexpr bool RELU = true;
    static constexpr int CHANNELS = 96;
    static constexpr int PLANES = 2;
    static constexpr int MAX_BLOCK = 128;
    static constexpr int MAX_CELLS = 6840;
    static constexpr int AT_ONCE = 7;
    static constexpr int TAPS = 9;
    static constexpr int WIDTH = 3;
    static constexpr int WEIGHTS = 9;
    static constexpr int FLOATS = 4;
    static constexpr int WIDE = 4;
    static constexpr int BEGIN = -4;
    static constexpr int SEGMENTS = 2;
    static constexpr int READ = 8;
    static constexpr int WRITE = 2;
    static constexpr bool FORWARD = true;
    static constexpr int TILE_Y = 7;
    static constexpr int LOW_Y = -1;
    static constexpr int HIGH_Y = 13;
    static constexpr int STRIDE_Y = 2;
    static constexpr int PADDING_Y = 1;
    static constexpr int DILATION_Y = 1;
    static constexpr int SPAN_Y = 2;
    static constexpr int TILE_X = 2;
    static constexpr int LOW_X = -1;
    static constexpr int HIGH_X = 3;
    static constexpr int STRIDE_X = 2;
    static constexpr int PADDING_X = 1;
    static constexpr int DILATION_X = 1;
    static constexpr int SPAN_X = 2;
    static constexpr int COUNT = 3072;
    static constexpr int BAND = 4;
    static constexpr int BLOCK = 128;
    static constexpr int READS = 7;
    static constexpr int ACROSS = 7;
    static constexpr int ROWS = 56;
    static constexpr int FROM = 0;
    static constexpr int LEAD = 1;
    static constexpr int STEP = 57;
    static constexpr int LEFT = 4;
    static constexpr int PITCH = 60;
    static constexpr int CELLS = 6840;
    static constexpr int INPUTS_Y = 56;
    static constexpr int OUTPUTS_Y = 28;
    static constexpr int TILES_Y = 4;
    static constexpr int INPUTS_X = 56;
    static constexpr int OUTPUTS_X = 28;
    static constexpr int TILES_X = 14;
    /* pixels.cuh has these, too. */
    static constexpr int LANES = 24;
    static constexpr int PLACES = 10;
    static constexpr int PARTS = 2;
    static constexpr int TURNS = 1;
    /* weights.cu */
    static constexpr int HIGH = 3;
    static constexpr int THREADS = 128;
};

} // namespace dnnffi
