#pragma once
/* The backward pass of a layer: the steps of the forward pass from the last to the first, in one launch.

   A step's gradients of the gates follow from dy and from the gradient of h that the step after it
   left, which is the product of that step's gradients with the matrices' columns: what a group
   exchanges here are the gradients of all gates. They also replace the gates: the products
   that give dx and the gradients of the weights read them there. One more turn gives those of the
   initial state.

   Each backward*.cu is a kernel with one way to multiply (`Product`) and one to exchange (`Exchange`). */

#include "block.cuh"
#include "cells.cuh"
#include "params.cuh"
#include "pass.cuh"
#include "ptx_shared.cuh"
#include "resets.cuh"
#include "ring.cuh"
#include "tasks.cuh"
#include "timeline.cuh"

namespace dnnffi {

/* The arrays of a block's layer and direction. Layers begin with the last one. */
struct BackwardArrays
{
    Element *gates;
    const Element *c_before, *h_before, *y, *dy; /* dy: null where the layer above has it */
    int directions;
    bool padded; /* y, which a PLAIN cell reads, and dy: the caller's, of the network's last layer */
    static constexpr bool HAS_SECOND = false, REPLACES_SECOND = false;

    DEVICE BackwardArrays(const BackwardParams &params, const Block &block, const RowLayout &layout)
        : directions(params.directions)
    {
        const long long layer_offset = (LAYERS - 1 - block.order) * params.layer_stride;
        const long long direction_offset = block.direction * params.positions * PADDED;
        gates = params.gates + layer_offset + direction_offset * SAVED;
        c_before = params.c_before + layer_offset + direction_offset;
        h_before = params.h_before + layer_offset + direction_offset;
        const bool is_last = block.order == 0;
        y = (is_last ? params.y : params.layer_y + layer_offset) + block.direction * HIDDEN;
        dy = is_last ? params.dy + block.direction * HIDDEN : nullptr;
        padded = is_last && layout.has_padded();
    }

    /* The arrays that the ring reads, and those that it writes; see `Ring`. */
    DEVICE Array source(int array) const
    {
        if (array == INPUT_ARRAYS - 1) return dy ? caller_array(dy, directions, padded) : no_array();
        if (PLAIN) return caller_array(y, directions, padded);
        if (array < SAVED) return gate(array);
        return own_array(const_cast<Element *>(CELL == LSTM ? c_before : h_before), 1);
    }

    DEVICE Array target(int array) const { return array < SAVED ? gate(array) : no_array(); }

    DEVICE Array second(int) const { return no_array(); }

    DEVICE Array gate(int number) const { return own_array(gates + number * PADDED, SAVED); }
};

/* Inputs of a thread's cells: gates, state and dy; read while gradients are in flight, unless CROWDED. */
struct BackwardInputs
{
    float of[WARP_TASKS][INPUT_ARRAYS][CELLS];

    DEVICE static float read(uint4 *slot, const Task &task, int array, int e)
    {
        return real(element(slot, array, task, e));
    }

    DEVICE void read_all(uint4 *slot, int warp, int lane)
    {
#pragma unroll
        for (int i = 0; i < WARP_TASKS; i++) {
            const Task task(i, warp, lane);
            if (!task.there) continue;
#pragma unroll
            for (int array = 0; array < INPUT_ARRAYS; array++)
#pragma unroll
                for (int e = 0; e < CELLS; e++)
                    if (!CROWDED) of[i][array][e] = read(slot, task, array, e);
        }
    }
};

/* A thread's cells: gradients of their states without the part through the product, sums over steps of
   those of the gates, and steps of the rows. */
struct BackwardCells
{
    float dh[SUBTILES][WARP_TASKS][CELLS], dc[SUBTILES][WARP_TASKS][CELLS];
    float bias[SUBTILES][WARP_TASKS][SAVED];
    float reset_dh[SUBTILES][WARP_TASKS][CELLS], reset_dc[SUBTILES][WARP_TASKS][CELLS]; /* RESETS: sums */
    int length[SUBTILES][WARP_TASKS][CELLS];

    DEVICE void begin(const Block &block, const RowLayout &layout)
    {
#pragma unroll
        for (int sub = 0; sub < SUBTILES; sub++)
#pragma unroll
            for (int i = 0; i < WARP_TASKS; i++) {
#pragma unroll
                for (int gate = 0; gate < SAVED; gate++) bias[sub][i][gate] = 0;
#pragma unroll
                for (int e = 0; e < CELLS; e++) {
                    dh[sub][i][e] = dc[sub][i][e] = 0;
                    reset_dh[sub][i][e] = reset_dc[sub][i][e] = 0;
                    const Task task(i, block.warp, block.lane);
                    const int row = block.first_row + sub * ROWS + task.row + e;
                    length[sub][i][e] = layout.length(row < layout.batch ? row : layout.batch - 1);
                }
            }
    }

    /* The sums over a group's steps: of eight rows, added up by the kernel that reads them. */
    DEVICE void end(const BackwardParams &params, const Block &block) const
    {
        if (!params.bias_sums) return;
        const long long layer_offset = (LAYERS - 1 - block.order) * params.layer_stride;
        float *const sums = (float *)((Element *)params.bias_sums + layer_offset);
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int sub = 0; sub < SUBTILES; sub++)
#pragma unroll
            for (int i = 0; i < WARP_TASKS; i++) {
                const Task task(i, threadIdx.x / 32, lane);
                const int unit = block.rank * UNITS + task.unit;
                if (!task.owns()) continue;
                if constexpr (FMA) { /* of one row */
                    const int part = block.number * ROWS + task.row;
#pragma unroll
                    for (int gate = 0; gate < SAVED; gate++)
                        if (unit < PADDED) sums[(part * SAVED + gate) * PADDED + unit] = bias[sub][i][gate];
                    continue;
                }
                const long long part =
                    (((long long)block.number * SUBTILES + sub) * COLUMNS + task.column) * (3 - CELLS) +
                    task.odd;
#pragma unroll
                for (int gate = 0; gate < SAVED; gate++) {
                    float sum = bias[sub][i][gate];
                    sum += __shfl_xor_sync(~0u, sum, 1);
                    sum += __shfl_xor_sync(~0u, sum, 2);
                    if (lane % 4 == 0 && unit < PADDED) sums[(part * SAVED + gate) * PADDED + unit] = sum;
                }
            }
    }
};

/* Sends a task's gradients of gates: from `slot` if words are sent, else from `stored`. */
template <class Exchange>
DEVICE void send_gradients(const Exchange &exchange, int number, int sub, uint4 *slot, const Task &task,
                           Element *stored)
{
    if constexpr (Exchange::SENDS_WORDS) {
        __syncwarp(); /* a warp sends what its threads have written */
        exchange.send(number, sub, slot, task);
    } else {
        if (CELL == GRU) stored[GATES - 1] = stored[SAVED - 1]; /* n's product of h */
        exchange.put(number, task, stored);
    }
}

/* The kernel's body, with the shared memory of the block. */
template <class Product, class Exchange> DEVICE void run_backward(const BackwardParams &params, uint4 *shared)
{
    uint4 *const memory = retained_shared(shared);
    const Block block(params.groups, params.first_group);
    const RowLayout layout(params, block.direction);
    const Extent extent = extent_of(params, block, layout);
    const int num_steps = extent.num_steps;
    const BackwardArrays arrays(params, block, layout);
    Exchange exchange(block, extent, params.exchange, memory + STAGED_AT / 16);
    Ring<BackwardArrays> ring(memory + RING_AT / 16, arrays, layout, block, num_steps);
    const ResetLayout resets(params);
    ResetWindow window(memory);
    window.request(resets, layout, block, num_steps, 0);
    typename Product::Weights weights = read_weights<Product>(params, block, ring, memory);
    ring.wait_for_first();
    BackwardCells cells;
    cells.begin(block, layout);
    const long long state = block.state_number * params.batch * HIDDEN; /* of the first row and unit */

    /* Without RESETS there is one window, of all turns. */
    for (int first = 0; first < (RESETS ? num_steps + 1 : 1); first += ResetWindow::WINDOW) {
        const int end = window.end(first, num_steps + 1);
        window.begin(first);
        window.request(resets, layout, block, num_steps, first + ResetWindow::WINDOW);
#pragma unroll 1
        for (int turn = first; turn < end; turn++) {
            const int step = num_steps - 1 - turn;
            if (FAR && turn == num_steps - SCATTER) weights.release();
#pragma unroll
            for (int sub = 0; sub < SUBTILES; sub++) {
                uint4 *const slot = ring.slot(turn, sub);
                begin_phase(block, turn, sub, LOAD_INPUTS);

                /* Load inputs: of this step from the ring, of later ones into it; where words take longer than
                   that, while they are on their way. Nothing comes to the first turn; a CLUSTER of LAYERS counts
                   its phase all the same. */
                const bool receives = turn > 0 || block.order > 0 || (CLUSTER && LAYERS > 1);
                BackwardInputs inputs;
                Borders borders;
                const auto load_inputs = [&] {
                    if (Exchange::HAS_SECOND_BARRIER) ring.advance(turn, sub);
                    inputs.read_all(slot, block.warp, block.lane);
                    window.read(borders, block, turn, sub);
                };
                if (!STAGED) load_inputs();
                auto gather = exchange.gather(turn - 1, sub, block.order > 0 && turn < num_steps, turn > 0);

                /* Receive and multiply: all words, a chunk or a round of them at a time. */
                typename Exchange::Sums sums;
                sums.fill(0);
                if (receives) {
                    gather.request();
                    if (STAGED) load_inputs();
                    begin_phase(block, turn, sub, RECEIVE_AND_MULTIPLY);
                    gather.receive(sums, weights, exchange.late);
                } else if (STAGED) load_inputs();

                /* Reduce: the sums over k of all warps. */
                begin_phase(block, turn, sub, REDUCE);
                typename Exchange::PartialSums partials((float *)memory, turn * SUBTILES + sub);
                partials.write(sums, block.warp, block.lane);
                if (Product::REDUCES_THROUGH_SHARED) sync_step(exchange, turn - 1);
                begin_phase(block, turn, sub, CELLS_AND_SEND);

#pragma unroll
                for (int i = 0; i < WARP_TASKS; i++) {
                    const Task task(i, block.warp, block.lane);
                    if (!task.there) continue;
                    const int unit = block.rank * UNITS + task.unit;
                    const auto row_of = [&](int e) { return block.first_row + sub * ROWS + task.row + e; };
                    const auto is_there = [&](int e) { return row_of(e) < layout.batch && unit < HIDDEN; };
                    /* The place of a cell's state, found in the two turns that read it. */
                    const auto at = [&](int e) {
                        return state + (long long)layout.caller_row((int)opaque(row_of(e))) * HIDDEN + unit;
                    };

                    /* Gradients of the states after the step. */
                    float d[CELLS];
#pragma unroll
                    for (int e = 0; e < CELLS; e++) {
                        float of_h;
                        partials.add_up(&of_h, task, e);
                        float &dh = cells.dh[sub][i][e], &dc = cells.dc[sub][i][e];
                        if constexpr (RESETS) {
                            const bool is_border = borders.of[i][e] != 0;
                            cells.reset_dh[sub][i][e] += is_border ? of_h + dh : 0;
                            cells.reset_dc[sub][i][e] += is_border ? dc : 0;
                            of_h = is_border ? 0 : of_h;
                            dh = is_border ? 0 : dh;
                            dc = is_border ? 0 : dc;
                        }
                        d[e] = of_h + dh;
                    }
                    if (RAGGED || turn == 0) {
#pragma unroll
                        for (int e = 0; e < CELLS; e++) {
                            if (!is_there(e) || step != cells.length[sub][i][e] - 1) continue;
                            if (params.dh_n) d[e] += real(params.dh_n[at(e)]);
                            if (CELL == LSTM && params.dc_n) cells.dc[sub][i][e] = real(params.dc_n[at(e)]);
                        }
                    }
                    if (turn == num_steps) {
#pragma unroll
                        for (int e = 0; e < CELLS; e++) {
                            if (!is_there(e) || !task.owns()) continue;
                            if constexpr (RESETS) {
                                if (params.dreset_h)
                                    params.dreset_h[at(e)] = rounded(cells.reset_dh[sub][i][e]);
                                if (CELL == LSTM && params.dreset_c)
                                    params.dreset_c[at(e)] = rounded(cells.reset_dc[sub][i][e]);
                            }
                            if (params.dh_0) params.dh_0[at(e)] = rounded(d[e]);
                            if (CELL == LSTM && params.dc_0)
                                params.dc_0[at(e)] = rounded(cells.dc[sub][i][e]);
                        }
                        continue;
                    }

                    /* All cells are read before one is written, or the compiler computes them one after the
                       other. */
                    CellGradients before[CELLS];
#pragma unroll
                    for (int e = 0; e < CELLS; e++) {
                        const auto input_of = [&](int array) {
                            return CROWDED ? BackwardInputs::read(slot, task, array, e)
                                           : inputs.of[i][array][e];
                        };
                        const float of_y = block.order > 0 ? 0.0f : input_of(INPUT_ARRAYS - 1);
                        float of_gates[SAVED];
#pragma unroll
                        for (int gate = 0; gate < SAVED; gate++) of_gates[gate] = input_of(gate);
                        before[e] = step_backward(of_gates, input_of(PLAIN ? 0 : SAVED), d[e] + of_y,
                                                  cells.dc[sub][i][e], params.clip_low, params.clip_high);
                    }
                    Element stored[SAVED];
#pragma unroll
                    for (int e = 0; e < CELLS; e++) {
                        /* A row that is not there gets zeros: a factor of 0 would not remove NaN. */
                        const bool live = is_there(e) && (!RAGGED || step < cells.length[sub][i][e]);
                        cells.dh[sub][i][e] = live ? before[e].h : 0;
                        cells.dc[sub][i][e] = live ? before[e].c : 0;
#pragma unroll
                        for (int gate = 0; gate < SAVED; gate++) {
                            const float gradient = live ? before[e].gates[gate] : 0;
                            stored[gate] = rounded(gradient);
                            if (task.owns()) element(slot, gate, task, e) = stored[gate];
                            cells.bias[sub][i][gate] += gradient;
                        }
                    }
                    send_gradients(exchange, turn, sub, slot, task, stored);
                }
                begin_phase(block, turn, sub, STORE);
                if (!Product::REDUCES_THROUGH_SHARED) sync_step(exchange, turn - 1);

                /* Store: with a second barrier, `load_inputs` of the next turn stores this one; else the results
                   of the turn before are stored here. */
                if (Exchange::HAS_SECOND_BARRIER) __syncthreads();
                else ring.advance(turn, sub);
                ring.look_ahead(turn, sub);
                if (turn < num_steps) exchange.scatter(turn, sub, weights);
            }
        }
    }
    weights.end_stream();
    cells.end(params, block);
}

} // namespace dnnffi
