#pragma once
/* The enumerators that a `Config` of a recurrent kernel names. */

#include "basics.cuh"

namespace dnnffi {

enum CellMode { LSTM, GRU, TANH, RELU };

/* Treatment of a cell state outside the bounds: nothing, or it is clipped; then NaN stays NaN, or it
   becomes the lower bound. */
enum Clip { UNCLIPPED, CLIP_KEEPS_NAN, CLIP_REPLACES_NAN };

} // namespace dnnffi
