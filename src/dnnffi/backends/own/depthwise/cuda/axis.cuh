#pragma once
/* The inputs that an output of a depthwise convolution needs, along each of two dimensions; axis.py explains it.

   Inputs of a tile of outputs are counted from its base, from LOW to HIGH. A tap is a position in the dilated
   kernel, from 0 to SPAN: a multiple of the dilation has a weight. */

#include "basics.cuh"
#include "kernel_config.cuh"

namespace dnnffi {

template <int OUTPUTS, int FIRST, int LAST, int STRIDE, int PADDING, int DILATION, int SPAN> struct Axis
{
    static constexpr int TILE = OUTPUTS; /* outputs of a thread */
    static constexpr int LOW = FIRST;    /* first input that they need, from the base */
    static constexpr int HIGH = LAST;    /* last input that they need, from the base */

    /* The inputs of a tile that begins at an output are counted from output * TIMES / OVER, its base. (As a
       function it costs the kernel for channels last up to 35 registers a thread where there is a stride:
       NVRTC 13.5.) */
    static constexpr int TIMES = Config::FORWARD ? STRIDE : 1, OVER = Config::FORWARD ? 1 : STRIDE;

    /* The tap of an input, counted from the base, for an output, counted from the tile's first one. */
    DEVICE static constexpr int tap(int input, int output)
    {
        return Config::FORWARD ? input + PADDING - output * STRIDE : output + PADDING - input * STRIDE;
    }

    DEVICE static constexpr bool has_weight(int tap)
    {
        return tap >= 0 && tap <= SPAN && tap % DILATION == 0;
    }

    DEVICE static constexpr int weight(int tap) { return tap / DILATION; }
};

using AxisY = Axis<Config::TILE_Y, Config::LOW_Y, Config::HIGH_Y, Config::STRIDE_Y, Config::PADDING_Y,
                   Config::DILATION_Y, Config::SPAN_Y>;
using AxisX = Axis<Config::TILE_X, Config::LOW_X, Config::HIGH_X, Config::STRIDE_X, Config::PADDING_X,
                   Config::DILATION_X, Config::SPAN_X>;

} // namespace dnnffi
