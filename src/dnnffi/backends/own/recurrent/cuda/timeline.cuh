#pragma once
/* Times at which the warps of a kernel begin the phases of a step. `benchmarks/own_timeline.py` compiles
   kernels that record them; in all others TIMELINE is 0, and `begin_phase` is empty. */

#include "block.cuh"
#include "ptx_clock.cuh"

namespace dnnffi {

/* Address of [TIMELINE_STEPS, blocks of the grid, WARPS, PHASES] counts of cycles, or 0. */
constexpr u64 TIMELINE = Config::TIMELINE;
constexpr int TIMELINE_STEPS = 16;

enum Phase { LOAD_INPUTS, RECEIVE_AND_MULTIPLY, REDUCE, CELLS_AND_SEND, STORE, PHASES };

/* Records that the warp begins a phase of a step of the first sub-tile. */
DEVICE void begin_phase(const Block &block, int step, int sub, Phase phase)
{
    if constexpr (TIMELINE != 0) {
        if (step >= TIMELINE_STEPS || sub > 0 || block.lane > 0) return;
        const u64 warp = ((u64)step * gridDim.x + blockIdx.x) * WARPS + block.warp;
        ((u64 *)TIMELINE)[warp * PHASES + phase] = clock_now();
    }
}

} // namespace dnnffi
