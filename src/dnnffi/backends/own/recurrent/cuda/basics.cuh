#pragma once
/* Words of all kernels: how a function is compiled, and the enumerators that a `Config` names. No header
   of CUDA is included anywhere, so that NVRTC needs no toolkit. */

/* A function of a kernel. */
#define DEVICE __device__ __forceinline__

namespace dnnffi {

using u32 = unsigned int;
using u64 = unsigned long long;

enum Dtype { FLOAT16, BFLOAT16, FLOAT32 };
enum CellMode { LSTM, GRU, TANH, RELU };

/* What becomes of a cell state outside the bounds: nothing, or it is clipped; then NaN stays NaN, or it
   becomes the lower bound. */
enum Clip { UNCLIPPED, CLIP_KEEPS_NAN, CLIP_REPLACES_NAN };

DEVICE float bits_to_float(u32 bits)
{
    union {
        u32 bits;
        float value;
    } both;
    both.bits = bits;
    return both.value;
}

DEVICE u32 float_to_bits(float value)
{
    union {
        float value;
        u32 bits;
    } both = {value};
    return both.bits;
}

} // namespace dnnffi
