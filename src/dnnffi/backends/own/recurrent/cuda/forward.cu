/* The forward pass of a layer: all steps in one launch. A group of blocks owns some rows of a direction;
   a block has UNITS hidden units of them, with the weights of their gates on the chip.

   At the start, `gates` hold the products of x. A step reads them, adds the products of h that the
   group exchanged, and computes its cells; it writes y, and in training what the backward needs.
   Of several LAYERS only the first has products of x there; the others' x is exchanged as well.
   y of the network's last layer is the caller's array. If its rows are padded, each row of a PACKED step
   is stored where the caller has it. Past the ends of rows nothing is stored here. */

#include "cells.cuh"
#include "params.cuh"
#include "product_policy.cuh"
#include "ring.cuh"
#include "tasks.cuh"

namespace dnnffi {

struct ForwardArrays
{
    Element *gates, *c_before, *h_before, *y; /* y: null where only the layer above reads it */
    int directions, layer;
    bool padded_y;

    DEVICE Array source(int stream) const { return stream < GATES && layer == 0 ? gate(stream) : no_array(); }

    DEVICE Array target(int stream) const
    {
        if (stream == GATES) return y ? users_array(y, directions, padded_y) : no_array();
        if (!TRAINING || PLAIN) return no_array();
        if (stream < GATES) return gate(stream);
        return CELL == LSTM ? own_array(c_before, 1, true) : gate(GATES);
    }

    DEVICE Array second(int stream) const
    {
        return TRAINING && stream == GATES ? own_array(h_before, 1, true) : no_array();
    }

    DEVICE Array gate(int number) const
    {
        return own_array(gates + number * PADDED, TRAINING ? SAVED : GATES);
    }
};

extern "C" __global__ void CLUSTER_BLOCKS __launch_bounds__(THREADS, 1)
    recurrent_forward(const __grid_constant__ ForwardParams params)
{
    extern __shared__ __align__(16) unsigned char memory[];
    uint4 *slots = (uint4 *)(memory + RING_AT), *staged = (uint4 *)(memory + STAGED_AT);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int rank = blockIdx.x % BLOCKS, layer = LAYERS > 1 ? blockIdx.x / BLOCKS % LAYERS : 0;
    const int of_launch = blockIdx.x / (BLOCKS * LAYERS), number = (int)params.first_group + of_launch;
    const int direction = number / (int)params.groups, of_states = LAYERS > 1 ? layer : direction;
    const int first_row = number % (int)params.groups * SUBTILES * ROWS, most = (int)params.batch - 1;

    const Factor *factors = (const Factor *)params.matrices + of_states * params.matrix_stride;
    const long long of_bias = params.input_bias ? of_states * params.bias_stride : 0;
    const Element *input_bias = params.input_bias + of_bias,
                  *recurrent_bias = params.recurrent_bias + of_bias;
    const long long state = of_states * params.batch * HIDDEN;
    const long long saved = direction * params.positions * PADDED;
    const long long of_layer = layer * params.layer_stride;
    Element *const its_y = layer == LAYERS - 1 ? params.y
                           : params.layer_y    ? params.layer_y + of_layer
                                               : nullptr;
    const Places places{params.step_offsets,    params.lengths,    params.caller_rows,
                        (int)params.steps,      (int)params.batch, (int)params.step_stride,
                        (int)params.row_stride, direction == 1};
    const ForwardArrays arrays{params.gates + of_layer + saved * (TRAINING ? SAVED : GATES),
                               params.c_before + of_layer + saved,
                               params.h_before + of_layer + saved,
                               its_y ? its_y + direction * HIDDEN : nullptr,
                               (int)params.directions,
                               layer,
                               layer == LAYERS - 1 && places.has_padded()};
    const int last = places.length(first_row); /* the group's steps: its first row is the longest */

    const int rows = (int)params.batch - first_row < ROWS ? (int)params.batch - first_row : ROWS;
    Group group(of_launch, rank, rows, layer, last, (int)params.steps, params.exchange, staged);

    const Ring<ForwardArrays> ring(slots, arrays, places, rank, first_row);
    if (FMA) ring.begin(last);
    Weights weights;
    weights.read(Matrices(factors, rank, layer), (uint4 *)memory, params.streamed, warp, lane);
    if (!FMA) ring.begin(last); /* where weights came through */

    float h[SUBTILES][WARP_TASKS][CELLS], c[SUBTILES][WARP_TASKS][CELLS];
    float bias[WARP_TASKS][GATES], bias_n[WARP_TASKS]; /* the latter of a GRU's n, in its product */
    float scale[WARP_TASKS][GATES];                    /* of products */
    /* By what power of two the states of a row exceed 1: of a GRU in all steps, else of h_0 alone. */
    float excess[SUBTILES][WARP_TASKS][CELLS], sent_scale[SUBTILES][WARP_TASKS];
    const auto excess_of = [&](int sub, int row) {
        const int of_batch = first_row + sub * ROWS + row;
        if (!NARROW || !params.state_scales || of_batch >= params.batch) return 1.0f;
        const float of_row =
            STATE_SCALE * params.state_scales[direction * params.batch + places.users_row(of_batch)];
        return of_row > 1 ? of_row : 1.0f;
    };
    int length[SUBTILES][WARP_TASKS][CELLS];
#pragma unroll
    for (int i = 0; i < WARP_TASKS; i++) {
        const Task task(i, warp, lane);
        const int unit = rank * UNITS + task.unit;
        const bool has = task.there && unit < HIDDEN;
        bias_n[i] = 0;
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) {
            bias[i][gate] = 0;
            if (NARROW)
                scale[i][gate] =
                    has ? params.matrix_scales[(direction * GATES + gate) * HIDDEN + unit] / STATE_SCALE
                        : 0.0f;
            if (!has || !input_bias) continue;
            bias[i][gate] = real(input_bias[gate * HIDDEN + unit]);
            const float other = real(recurrent_bias[gate * HIDDEN + unit]);
            if (CELL == GRU && gate == 2) bias_n[i] = other;
            else bias[i][gate] += other;
        }
#pragma unroll
        for (int sub = 0; sub < SUBTILES; sub++) {
            sent_scale[sub][i] = STATE_SCALE / excess_of(sub, Place(lane % TASK_WORDS, task).row);
#pragma unroll
            for (int e = 0; e < CELLS; e++) {
                excess[sub][i][e] = excess_of(sub, task.row + e);
                const int row = first_row + sub * ROWS + task.row + e;
                const bool there = has && row < params.batch;
                const long long users = there ? places.users_row(row) : 0;
                const long long at = state + users * HIDDEN + unit;
                h[sub][i][e] = there && params.h_0 ? real(params.h_0[at]) : 0.0f;
                c[sub][i][e] = there && params.c_0 ? real(params.c_0[at]) : 0.0f;
                length[sub][i][e] = places.length(row < params.batch ? row : most);
                if (TRAINING && there && task.owns()) {
                    const long long first = places.of(0, row) * PADDED + unit;
                    arrays.h_before[first] = rounded(h[sub][i][e]);
                    if (CELL == LSTM) arrays.c_before[first] = rounded(c[sub][i][e]);
                }
            }
        }
    }

    /* The first params.exchange is that of the initial state. Its words are made in the first slot, in the
       stream that the first step will write. */
#pragma unroll
    for (int sub = 0; sub < SUBTILES; sub++)
#pragma unroll
        for (int i = 0; i < WARP_TASKS; i++) {
            const Task task(i, warp, lane);
            if (!task.there) continue;
            if constexpr (FMA) {
                const Element first = rounded(h[sub][i][0]);
                group.put(0, task, &first);
                continue;
            }
            uint4 *slot = ring.slot(0, sub);
#pragma unroll
            for (int e = 0; e < CELLS; e++)
                element(slot, OUTPUT, task.unit, task.row + e) = rounded(h[sub][i][e]);
            __syncwarp();
            group.send(0, sub, slot, OUTPUT, 0, task, sent_scale[sub][i]);
            __syncwarp();
        }
    ring.wait_for_first();

#pragma unroll 1
    for (int step = 0; step <= last; step++) {
        if (FAR && step == last - 1) weights.release();
#pragma unroll
        for (int sub = 0; sub < SUBTILES; sub++) {
            uint4 *slot = ring.slot(step, sub);
            const auto pass_on = [&] {
                if (RING_FIRST && thread < RING_FIRST) return;
                if (step > 0) {
                    ring.store(step - 1, step - 1, sub);
                    if (step - 1 + RING < last) ring.load(step - 1 + RING, step - 1, sub);
                }
                commit_copies();
            };
            const auto read = [&](const Task &task, int gate, int e) {
                if (LAYERS > 1 && layer > 0) return 0.0f;
                return real(element(slot, gate, task.unit, task.row + e));
            };
            float input[WARP_TASKS][GATES][CELLS]; /* read while h is in flight, unless CROWDED */
            const auto prepare = [&] {
                if (!CLUSTER && !FMA) pass_on();
#pragma unroll
                for (int i = 0; i < WARP_TASKS; i++) {
                    const Task task(i, warp, lane);
                    if (!task.there) continue;
#pragma unroll
                    for (int gate = 0; gate < GATES; gate++)
#pragma unroll
                        for (int e = 0; e < CELLS; e++)
                            if (!CROWDED) input[i][gate][e] = read(task, gate, e);
                }
            };
            if (!POLL_FIRST) prepare();
            uint4 *shares = (uint4 *)memory;
            const auto meanwhile = [&] {
                if (POLL_FIRST) prepare();
            };
            Partials partials((float *)memory, step * SUBTILES + sub);
            if constexpr (SCATTER) {
                if (step < last) {
                    group.scatter(step, sub, weights);
                    group.receive(shares, step, sub, meanwhile);
                } else meanwhile();
            } else {
                Sums sums;
                sums.fill(0);
                if (step < last) group.product(sums, weights, step, sub, meanwhile, layer > 0);
                else meanwhile();
                sums.total();
                partials.write(sums, warp, lane);
            }
            const auto sync = [&] {
                /* The next step's inputs are here; the barrier shows them to all threads. */
                wait_for_copies<(RING - 2) * SUBTILES - (CLUSTER || FMA)>();
                __syncthreads();
                if (step < last) group.confirm(step);
            };
            if (!FMA) sync();
#pragma unroll
            for (int i = 0; i < WARP_TASKS; i++) {
                const Task task(i, warp, lane);
                if (!task.there || step >= last) continue;
                Cell after[CELLS];
#pragma unroll
                for (int e = 0; e < CELLS; e++) {
                    float of_h[OCTET_GATES], of_x[GATES];
                    if constexpr (SCATTER) {
#pragma unroll
                        for (int gate = 0; gate < GATES; gate++)
                            of_h[gate] = group.received(shares, task, gate, task.odd + e, lane);
                    } else partials.add_up(of_h, task.octet, task.column, task.odd + e, lane);
#pragma unroll
                    for (int gate = 0; gate < GATES; gate++)
                        of_x[gate] = (CROWDED ? read(task, gate, e) : input[i][gate][e]) + bias[i][gate];
                    if (NARROW) {
                        const float more = CELL == GRU || step == 0 ? excess[sub][i][e] : 1.0f;
#pragma unroll
                        for (int gate = 0; gate < GATES; gate++) of_h[gate] *= scale[i][gate] * more;
                    }
                    if (CELL == GRU) of_h[GATES - 1] += bias_n[i];
                    if (TWO_N) of_x[GATES - 1] += of_h[OCTET_GATES - 1];
                    after[e] = step_forward(of_x, of_h, h[sub][i][e], c[sub][i][e], params.clip_low,
                                            params.clip_high);
                    const bool live = !PACKED || step < length[sub][i][e];
                    if (live) h[sub][i][e] = after[e].h, c[sub][i][e] = after[e].c;
                    const bool padding = HIDDEN % 8 != 0 && rank * UNITS + task.unit >= HIDDEN;
                    const Element stored = rounded(live && !padding ? after[e].h : 0.0f);
                    if (task.owns()) element(slot, OUTPUT, task.unit, task.row + e) = stored;
                    if (FMA && step + 1 < last) group.put(step + 1, task, &stored);
                }
                if constexpr (!FMA) {
                    __syncwarp();
                    if (step + 1 < last || layer < LAYERS - 1)
                        group.send(step + 1, sub, slot, OUTPUT, 0, task,
                                   CELL == GRU ? sent_scale[sub][i] : STATE_SCALE);
                }
                if (TRAINING && !PLAIN && task.owns()) {
#pragma unroll
                    for (int e = 0; e < CELLS; e++) {
#pragma unroll
                        for (int gate = 0; gate < GATES; gate++)
                            element(slot, gate, task.unit, task.row + e) = rounded(after[e].saved[gate]);
                        element(slot, GATES + 1, task.unit, task.row + e) =
                            rounded(CELL == LSTM ? after[e].c : after[e].saved[SAVED - 1]);
                    }
                }
            }
            if (FMA) sync();
            if (CLUSTER || FMA) pass_on();
            else __syncthreads();
        }
    }

#pragma unroll
    for (int sub = 0; sub < SUBTILES; sub++)
#pragma unroll
        for (int i = 0; i < WARP_TASKS; i++) {
            const Task task(i, warp, lane);
            const int unit = rank * UNITS + task.unit;
#pragma unroll
            for (int e = 0; e < CELLS; e++) {
                const int row = first_row + sub * ROWS + task.row + e;
                if (!task.owns() || unit >= HIDDEN || row >= params.batch) continue;
                const long long at = state + (long long)places.users_row(row) * HIDDEN + unit;
                if (params.h_n) params.h_n[at] = rounded(h[sub][i][e]);
                if (CELL == LSTM && params.c_n) params.c_n[at] = rounded(c[sub][i][e]);
            }
        }
}

} // namespace dnnffi
