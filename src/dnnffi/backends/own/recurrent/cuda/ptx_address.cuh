#pragma once
/* Addresses of steps, by one instruction each. */

#include "basics.cuh"

namespace dnnffi {

/* The address that is `count` times `bytes` after another one. From a product in C++ the compiler takes the
   conversion of `bytes` to 64 bits out of the loop of steps, and multiplies 64 bits in it: six instructions. */
template <class T> DEVICE T *address_after(T *from, int count, int bytes)
{
    T *to;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(to) : "r"(count), "r"(bytes), "l"(from));
    return to;
}

} // namespace dnnffi
