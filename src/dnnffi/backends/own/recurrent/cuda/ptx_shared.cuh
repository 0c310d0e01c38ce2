#pragma once
/* The address of a block's shared memory. */

#include "basics.cuh"

namespace dnnffi {

/* The same address in shared memory, which the compiler keeps. It would otherwise find it again where it is
   used, from a special register whose reading takes long. */
DEVICE uint4 *retained_shared(uint4 *at)
{
    u32 address = (u32)__cvta_generic_to_shared(at);
    asm volatile("" : "+r"(address));
    return (uint4 *)__cvta_shared_to_generic(address);
}

} // namespace dnnffi
