#pragma once
/* Barriers of a block and of a cluster, on the host. */

#include "basics.cuh"
#include "kernel_config.cuh"

namespace dnnffi {

template <int COUNT> DEVICE void sync_threads(int) { device_part_barrier(COUNT); }

/* An address in shared memory is an offset; the upper bits have the number of a block in the cluster. */
DEVICE u32 shared_address(const void *at)
{
    return (u32)((const unsigned char *)at - (const unsigned char *)device_shared());
}

DEVICE u32 in_block(u32 address, int rank) { return address | (u32)(rank + 1) << 24; }

DEVICE void begin_barrier(u32 barrier) { device_begin_barrier(barrier); }

DEVICE void expect_bytes(u32 barrier, int bytes) { device_expect(barrier, bytes); }

DEVICE bool phase_ended(u32 barrier, u32 parity) { return device_phase_ended(barrier, parity); }

/* Blocks of a cluster. */
constexpr int OF_CLUSTER =
    ((Config::HIDDEN + 7) / 8 * 8 + Config::UNITS - 1) / Config::UNITS * Config::LAYERS;

DEVICE void store_in_block(u32 at, uint4 word, u32 barrier)
{
    const int block = blockIdx.x / OF_CLUSTER * OF_CLUSTER + (int)(at >> 24) - 1;
    device_send(block, at & 0xffffff, &word, 16, barrier & 0xffffff);
}

DEVICE void store_float_in_block(u32 at, float value, u32 barrier)
{
    const int block = blockIdx.x / OF_CLUSTER * OF_CLUSTER + (int)(at >> 24) - 1;
    device_send(block, at & 0xffffff, &value, 4, barrier & 0xffffff);
}

DEVICE void sync_cluster() { device_meet(OF_CLUSTER); }

} // namespace dnnffi
