#pragma once
/* Elements that are read or written by one access: `get` and `set` convert them one by one. */

#include "element.cuh"

namespace dnnffi {

/* COUNT elements. Pairs of 16 bits are words, which compilers leave whole. */
template <int COUNT, bool PAIRS = sizeof(Element) == 2 && COUNT % 2 == 0> struct Pack;

template <int COUNT> struct alignas(COUNT * sizeof(Element)) Pack<COUNT, false>
{
    Element e[COUNT];
};

template <int COUNT> struct alignas(COUNT * 2) Pack<COUNT, true>
{
    u32 e[COUNT / 2];
};

template <int COUNT> DEVICE float get(Pack<COUNT, false> pack, int at) { return real(pack.e[at]); }

template <int COUNT> DEVICE float get(Pack<COUNT, true> pack, int at)
{
    return real((Element)(pack.e[at / 2] >> at % 2 * 16));
}

template <int COUNT> DEVICE void set(Pack<COUNT, false> *pack, int at, float value)
{
    pack->e[at] = rounded(value);
}

/* The first element of a pair is set first. */
template <int COUNT> DEVICE void set(Pack<COUNT, true> *pack, int at, float value)
{
    const u32 bits = rounded(value);
    pack->e[at / 2] = at % 2 ? pack->e[at / 2] | bits << 16 : bits;
}

/* N floats that are read or written by one access. */
template <int N> struct alignas(N * 4) Floats
{
    float e[N];
};

} // namespace dnnffi
