#pragma once
/* Addresses of steps, on the host. */

#include "basics.cuh"

namespace dnnffi {

template <class T> DEVICE T *address_after(T *from, int count, int bytes)
{
    return (T *)((char *)from + (long long)count * bytes);
}

} // namespace dnnffi
