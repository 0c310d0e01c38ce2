#pragma once
/* Words of all kernels: how a function is compiled, and the dtypes that a `Config` names. No header of CUDA
   is included anywhere, so that NVRTC needs no toolkit. */

/* A function of a kernel. */
#define DEVICE __device__ __forceinline__

namespace dnnffi {

using u32 = unsigned int;
using u64 = unsigned long long;

enum Dtype { FLOAT16, BFLOAT16, FLOAT32, FLOAT64 };

/* The type in which a number is stored: those of 16 bits as their bits. */
template <Dtype> struct Storage
{
    using Type = unsigned short;
};
template <> struct Storage<FLOAT32>
{
    using Type = float;
};
template <> struct Storage<FLOAT64>
{
    using Type = double;
};

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
