#pragma once
/* Accesses of words that other blocks read or write, on the host. */

#include "basics.cuh"

namespace dnnffi {

DEVICE uint4 load_word(const uint4 *at)
{
    uint4 word;
    device_load(&word, at);
    return word;
}

DEVICE void load_word_if(bool wanted, uint4 &word, const uint4 *at)
{
    if (wanted) device_load(&word, at);
}

DEVICE void store_word(uint4 *at, uint4 word) { device_store(at, &word); }

DEVICE void load_flag_if(bool wanted, u32 &flag, const unsigned char *at)
{
    if (wanted) flag = *at;
}

DEVICE void load_offset_if(bool wanted, int &offset, const int *at)
{
    if (wanted) offset = *at;
}

DEVICE void prefetch(const void *) {}

using Policy = int;
DEVICE Policy keep_part(float) { return 0; }
DEVICE Policy keep_none() { return 0; }
DEVICE uint4 load_by(Policy, const uint4 *at) { return *at; }

} // namespace dnnffi
