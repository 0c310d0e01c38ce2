#pragma once
/* Numbers that the lanes of a warp tell each other. */

#include "basics.cuh"

namespace dnnffi {

/* The value of the lane whose number differs in the bits of `distance`. It travels as a float with the
   same bits, since the emulator has no other shuffle. */
DEVICE u32 other_lane(u32 value, int distance)
{
    return float_to_bits(__shfl_xor_sync(~0u, bits_to_float(value), distance));
}

/* The sum over `lanes` neighbouring lanes, a power of two, which all of them get. */
DEVICE u32 sum_of_lanes(u32 value, int lanes)
{
    for (int distance = 1; distance < lanes; distance *= 2) value += other_lane(value, distance);
    return value;
}

} // namespace dnnffi
