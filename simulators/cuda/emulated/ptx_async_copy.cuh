#pragma once
/* Copies to shared memory that a thread does not wait for, on the host. */

#include "basics.cuh"
#include "ptx_l2.cuh"

namespace dnnffi {

DEVICE void copy_word(uint4 *to, const void *from) { device_copy(to, from); }

DEVICE void copy_word_by(Policy, uint4 *to, const void *from) { device_copy(to, from); }

DEVICE void commit_copies() { device_commit(); }

template <int PENDING> DEVICE void wait_for_copies() { device_wait(PENDING); }

} // namespace dnnffi
