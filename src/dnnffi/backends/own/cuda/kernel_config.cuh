#pragma once
/* An example of the constants of a kernel: those of all kernels in this folder, for float16. source.py makes a
   file of this name for each kernel, with the constants that it needs. */

#include "basics.cuh"

namespace dnnffi {

struct Config
{
    static constexpr Dtype DTYPE = FLOAT16;
    static constexpr int THREADS = 256;
    /* bias_gradient.cu */
    static constexpr int LANES = 32;
    static constexpr int AT_ONCE = 8;
    /* relayout.cu, copy_image.cu */
    using Bits = unsigned short;
    using Index = unsigned int;
};

} // namespace dnnffi
