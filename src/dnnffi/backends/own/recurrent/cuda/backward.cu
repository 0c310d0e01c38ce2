/* The backward pass of a layer: the steps of the forward pass from the last to the first, in one launch.

   A step's gradients of the gates follow from dy and from the gradient of h that the step after it
   left, which is the product of that step's gradients with the matrices' columns: what a group
   exchanges here are the gradients of all gates. They also replace the gates: the products
   that give dx and the gradients of the weights read them there. One more turn gives those of the
   initial state. */

#include "cells.cuh"
#include "params.cuh"
#include "product_policy.cuh"
#include "ring.cuh"
#include "tasks.cuh"

namespace dnnffi {

struct BackwardArrays
{
    Element *gates;
    const Element *c_before, *h_before, *y, *dy; /* dy: null where the layer above has it */
    int directions;
    bool padded; /* y, which a PLAIN cell reads, and dy: the caller's, of the network's last layer */

    DEVICE Array source(int stream) const
    {
        if (stream == INPUTS - 1) return dy ? users_array(dy, directions, padded) : no_array();
        if (PLAIN) return users_array(y, directions, padded);
        if (stream < SAVED) return gate(stream);
        return own_array(const_cast<Element *>(CELL == LSTM ? c_before : h_before), 1);
    }

    DEVICE Array target(int stream) const { return stream < SAVED ? gate(stream) : no_array(); }

    DEVICE Array second(int) const { return no_array(); }

    DEVICE Array gate(int number) const { return own_array(gates + number * PADDED, SAVED); }
};

extern "C" __global__ void CLUSTER_BLOCKS __launch_bounds__(THREADS, 1)
    recurrent_backward(const __grid_constant__ BackwardParams params)
{
    extern __shared__ __align__(16) unsigned char memory[];
    uint4 *slots = (uint4 *)(memory + RING_AT), *staged = (uint4 *)(memory + STAGED_AT);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int rank = blockIdx.x % BLOCKS, above = LAYERS > 1 ? blockIdx.x / BLOCKS % LAYERS : 0;
    const int layer = LAYERS - 1 - above; /* the last one begins */
    const int of_launch = blockIdx.x / (BLOCKS * LAYERS), number = (int)params.first_group + of_launch;
    const int direction = number / (int)params.groups, of_states = LAYERS > 1 ? layer : direction;
    const int first_row = number % (int)params.groups * SUBTILES * ROWS;

    const Element *matrices = params.matrices + of_states * params.matrix_stride;
    const long long state = of_states * params.batch * HIDDEN;
    const long long saved = direction * params.positions * PADDED;
    const long long of_layer = layer * params.layer_stride;
    const Places places{params.step_offsets,    params.lengths,    params.caller_rows,
                        (int)params.steps,      (int)params.batch, (int)params.step_stride,
                        (int)params.row_stride, direction == 1};
    const BackwardArrays arrays{params.gates + of_layer + saved * SAVED,
                                params.c_before + of_layer + saved,
                                params.h_before + of_layer + saved,
                                (above > 0 ? params.layer_y + of_layer : params.y) + direction * HIDDEN,
                                above > 0 ? nullptr : params.dy + direction * HIDDEN,
                                (int)params.directions,
                                above == 0 && places.has_padded()};
    const int last = places.length(first_row);

    const int rows = (int)params.batch - first_row < ROWS ? (int)params.batch - first_row : ROWS;
    Group group(of_launch, rank, rows, above, last, (int)params.steps, params.exchange, staged);

    const Ring<BackwardArrays> ring(slots, arrays, places, rank, first_row);
    if (FMA) ring.begin(last);
    Weights weights;
    weights.read(Matrices(matrices, rank, above), (uint4 *)memory, params.streamed, warp, lane);
    if (!FMA) ring.begin(last); /* where weights came through */
    ring.wait_for_first();

    float dh[SUBTILES][WARP_TASKS][CELLS], dc[SUBTILES][WARP_TASKS][CELLS];
    float bias[SUBTILES][WARP_TASKS][SAVED];
#pragma unroll
    for (int sub = 0; sub < SUBTILES; sub++)
#pragma unroll
        for (int i = 0; i < WARP_TASKS; i++) {
#pragma unroll
            for (int gate = 0; gate < SAVED; gate++) bias[sub][i][gate] = 0;
#pragma unroll
            for (int e = 0; e < CELLS; e++) dh[sub][i][e] = dc[sub][i][e] = 0;
        }

#pragma unroll 1
    for (int turn = 0; turn <= last; turn++) {
        const int step = last - 1 - turn;
        if (FAR && turn == last - SCATTER) weights.release();
#pragma unroll
        for (int sub = 0; sub < SUBTILES; sub++) {
            uint4 *slot = ring.slot(turn, sub);
            const auto pass_on = [&] {
                if (RING_FIRST && thread < RING_FIRST) return;
                if (turn > 0) {
                    ring.store(step + 1, turn - 1, sub);
                    if (turn - 1 + RING < last) ring.load(step + 1 - RING, turn - 1, sub);
                }
                commit_copies();
            };
            const auto read = [&](const Task &task, int stream, int e) {
                return real(element(slot, stream, task.unit, task.row + e));
            };
            float input[WARP_TASKS][INPUTS][CELLS];
            const auto prepare = [&] {
                if (!CLUSTER && !FMA) pass_on();
#pragma unroll
                for (int i = 0; i < WARP_TASKS; i++) {
                    const Task task(i, warp, lane);
                    if (!task.there) continue;
#pragma unroll
                    for (int stream = 0; stream < INPUTS; stream++)
#pragma unroll
                        for (int e = 0; e < CELLS; e++)
                            if (!CROWDED) input[i][stream][e] = read(task, stream, e);
                }
            };
            if (!POLL_FIRST) prepare();
            Sums sums;
            sums.fill(0);
            uint4 *shares = (uint4 *)memory;
            const auto meanwhile = [&] {
                if (POLL_FIRST) prepare();
            };
            /* Nothing comes to the first turn; a CLUSTER of LAYERS counts its phase all the same. */
            if (turn == 0 && above == 0 && !(CLUSTER && LAYERS > 1)) {
                meanwhile();
                if (SCATTER)
                    for (int r = 0; r < ADDED; r++) shares[thread + r * THREADS] = make_uint4(0, 0, 0, 0);
            } else if constexpr (SCATTER) group.receive(shares, turn - 1, sub, meanwhile);
            else group.product(sums, weights, turn - 1, sub, meanwhile, above > 0 && turn < last, turn > 0);
            Partials partials((float *)memory, turn * SUBTILES + sub);
            if constexpr (!SCATTER) {
                sums.total();
                partials.write(sums, warp, lane);
            }
            const auto sync = [&] {
                wait_for_copies<(RING - 2) * SUBTILES - (CLUSTER || FMA)>();
                __syncthreads();
                group.confirm(turn - 1);
            };
            if (!FMA) sync();
#pragma unroll
            for (int i = 0; i < WARP_TASKS; i++) {
                const Task task(i, warp, lane);
                if (!task.there) continue;
                Element stored[SAVED];
#pragma unroll
                for (int e = 0; e < CELLS; e++) {
                    const int row = first_row + sub * ROWS + task.row + e;
                    const int unit = rank * UNITS + task.unit;
                    const bool there = row < params.batch && unit < HIDDEN;
                    const long long users = there ? places.users_row(row) : 0;
                    const long long at = state + users * HIDDEN + unit;
                    const int length = there ? places.length(row) : last;
                    float of_h;
                    if constexpr (SCATTER) of_h = group.received(shares, task, 0, task.odd + e, lane);
                    else partials.add_up(&of_h, task.octet, task.column, task.odd + e, lane);
                    float d = of_h + dh[sub][i][e];
                    if (there && step == length - 1) {
                        if (params.dh_n) d += real(params.dh_n[at]);
                        if (CELL == LSTM && params.dc_n) dc[sub][i][e] = real(params.dc_n[at]);
                    }
                    if (turn == last) {
                        const bool writes = there && task.owns();
                        if (writes && params.dh_0) params.dh_0[at] = rounded(d);
                        if (writes && CELL == LSTM && params.dc_0) params.dc_0[at] = rounded(dc[sub][i][e]);
                        continue;
                    }
                    const auto input_of = [&](int stream) {
                        return CROWDED ? read(task, stream, e) : input[i][stream][e];
                    };
                    const float of_y = above > 0 ? 0.0f : input_of(INPUTS - 1);
                    float of_gates[SAVED];
#pragma unroll
                    for (int gate = 0; gate < SAVED; gate++) of_gates[gate] = input_of(gate);
                    /* A row that is not there gets zeros: a factor of 0 would not remove NaN. */
                    const bool live = there && (!PACKED || step < length);
                    const CellGradients before =
                        step_backward(of_gates, input_of(PLAIN ? 0 : SAVED), d + of_y, dc[sub][i][e],
                                      params.clip_low, params.clip_high);
                    dh[sub][i][e] = live ? before.h : 0;
                    dc[sub][i][e] = live ? before.c : 0;
#pragma unroll
                    for (int gate = 0; gate < SAVED; gate++) {
                        const float gradient = live ? before.gates[gate] : 0;
                        stored[gate] = rounded(gradient);
                        if (task.owns()) element(slot, gate, task.unit, task.row + e) = stored[gate];
                        bias[sub][i][gate] += gradient;
                    }
                }
                if (turn == last) continue;
                if constexpr (FMA) {
                    if (CELL == GRU) stored[GATES - 1] = stored[SAVED - 1]; /* n's product of h */
                    group.put(turn, task, stored);
                    continue;
                }
                __syncwarp();
#pragma unroll
                for (int gate = 0; gate < SENT; gate++) {
                    int stream = gate == 2 && CELL == GRU ? 3 : gate;
                    if (TWO_N) stream = (gate + 3) % 4; /* first n's of h, last n's of x */
                    if constexpr (SCATTER && TEAM == 1) group.stage(slot, stream, gate, task);
                    else group.send(turn, sub, slot, stream, gate, task);
                }
            }
            if (FMA) sync();
            if (CLUSTER || FMA) pass_on();
            else __syncthreads();
            if constexpr (SCATTER && TEAM == 1)
                if (turn < last) group.scatter(turn, sub, weights);
        }
        if constexpr (TEAM > 1)
            if (turn != last) group.scatter(turn, 0, weights);
    }

    /* The sums over a group's steps: of eight rows, added up by the kernel that reads them. */
    float *const its_sums = (float *)((Element *)params.bias_sums + of_layer);
#pragma unroll
    for (int sub = 0; sub < SUBTILES; sub++)
#pragma unroll
        for (int i = 0; i < WARP_TASKS; i++) {
            const Task task(i, warp, lane);
            const int unit = rank * UNITS + task.unit;
            if (!task.owns() || !params.bias_sums) continue;
            if constexpr (FMA) { /* of one row */
#pragma unroll
                for (int gate = 0; gate < SAVED; gate++)
                    if (unit < PADDED)
                        its_sums[((number * ROWS + task.row) * SAVED + gate) * PADDED + unit] =
                            bias[sub][i][gate];
                continue;
            }
            const long long part =
                (((long long)number * SUBTILES + sub) * COLUMNS + task.column) * (3 - CELLS) + task.odd;
#pragma unroll
            for (int gate = 0; gate < SAVED; gate++) {
                float sum = bias[sub][i][gate];
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                if (lane % 4 == 0 && unit < PADDED) its_sums[(part * SAVED + gate) * PADDED + unit] = sum;
            }
        }
}

} // namespace dnnffi
