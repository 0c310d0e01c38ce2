#pragma once
/* The clock of a multiprocessor. */

#include "basics.cuh"

namespace dnnffi {

DEVICE u64 clock_now()
{
    u64 cycles;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
    return cycles;
}

} // namespace dnnffi
