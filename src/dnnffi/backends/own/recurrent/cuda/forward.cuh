#pragma once
/* The forward pass of a layer: all steps in one launch. A group of blocks owns some rows of a direction;
   a block has UNITS hidden units of them, with the weights of their gates on the chip.

   At the start, `gates` hold the products of x. A step reads them, adds the products of h that the
   group exchanged, and computes its cells; it writes y, and in training what the backward pass needs.
   Of several LAYERS only the first has products of x there; the others' x is exchanged as well.
   y of the network's last layer is the caller's array. If its rows are padded, each row of a RAGGED batch
   is stored where the caller has it. Past the ends of rows nothing is stored here.

   Each forward*.cu is a kernel with one way to multiply (`Product`) and one to exchange (`Exchange`). */

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

/* The place of the state that replaces that of a caller's row, by its first unit. */
DEVICE long long reset_place(const ForwardParams &params, long long state_number, long long caller_row)
{
    const long long rows = params.reset_state_rows;
    return (state_number * rows + (rows == 1 ? 0 : caller_row)) * HIDDEN;
}

/* The arrays of a block's layer and direction. */
struct ForwardArrays
{
    Element *gates, *c_before, *h_before, *y; /* y: null where only the layer above reads it */
    int directions, order;
    bool padded_y;
    static constexpr bool HAS_SECOND = TRAINING, REPLACES_SECOND = TRAINING && RESETS;
    const ForwardParams
        &params; /* of which only those of RESETS are read here: the others would take registers */
    const ResetWindow &window;
    long long state_number;

    DEVICE ForwardArrays(const ForwardParams &params_, const Block &block, const RowLayout &layout,
                         const ResetWindow &window_)
        : directions(params_.directions), order(block.order), params(params_), window(window_),
          state_number(block.state_number)
    {
        const long long layer_offset = block.order * params.layer_stride;
        const long long direction_offset = block.direction * params.positions * PADDED;
        gates = params.gates + layer_offset + direction_offset * (TRAINING ? SAVED : GATES);
        c_before = params.c_before + layer_offset + direction_offset;
        h_before = params.h_before + layer_offset + direction_offset;
        const bool is_last = block.order == LAYERS - 1;
        y = is_last ? params.y : params.layer_y ? params.layer_y + layer_offset : nullptr;
        if (y) y += block.direction * HIDDEN;
        padded_y = is_last && layout.has_padded();
    }

    /* The arrays that the ring reads, and those that it writes; see `Ring`. */
    DEVICE Array source(int array) const { return array < GATES && order == 0 ? gate(array) : no_array(); }

    DEVICE Array target(int array) const
    {
        if (array == GATES) return y ? caller_array(y, directions, padded_y) : no_array();
        if (!TRAINING || PLAIN) return no_array();
        if (array < GATES) return gate(array);
        return CELL == LSTM ? own_array(c_before, 1, true) : gate(GATES);
    }

    DEVICE Array second(int array) const
    {
        return TRAINING && array == GATES ? own_array(h_before, 1, true) : no_array();
    }

    /* The word that goes to the second array after a turn, for a row of the group: of y, or of the state that replaced
       the row's. Zeros are selected without a branch: the threads of a warp have words of several rows. */
    DEVICE uint4 second_word(const RowLayout &layout, uint4 word, int turn, int first_row, int group_row,
                             int unit) const
    {
        const bool replaced = window.flags[ResetWindow::place_of(turn) + group_row] != 0;
        word = make_uint4(replaced ? 0 : word.x, replaced ? 0 : word.y, replaced ? 0 : word.z,
                          replaced ? 0 : word.w);
        if (replaced && params.reset_h) {
            const int row = layout.caller_row(first_row + group_row);
            const Element *const from = params.reset_h + (reset_place(params, state_number, row) + unit);
#pragma unroll
            for (int e = 0; e < WORD; e++)
                if (unit + e < HIDDEN) ((Element *)&word)[e] = from[e];
        }
        return word;
    }

    DEVICE Array gate(int number) const
    {
        return own_array(gates + number * PADDED, TRAINING ? SAVED : GATES);
    }
};

/* Products of x of a thread's cells: read while h is in flight, unless CROWDED. */
struct ForwardInputs
{
    float of[WARP_TASKS][GATES][CELLS];

    DEVICE static float read(uint4 *slot, int order, const Task &task, int gate, int e)
    {
        if (LAYERS > 1 && order > 0) return 0.0f;
        return real(element(slot, gate, task, e));
    }

    DEVICE void read_all(uint4 *slot, int order, int warp, int lane)
    {
#pragma unroll
        for (int i = 0; i < WARP_TASKS; i++) {
            const Task task(i, warp, lane);
            if (!task.there) continue;
#pragma unroll
            for (int gate = 0; gate < GATES; gate++)
#pragma unroll
                for (int e = 0; e < CELLS; e++)
                    if (!CROWDED) of[i][gate][e] = read(slot, order, task, gate, e);
        }
    }
};

/* Whether states can exceed 1 in all steps, and not in the first alone: those of a GRU, between h_0 and what
   tanh gives, and those that replace others. */
constexpr bool STAY_LARGE = CELL == GRU || RESETS;

/* A thread's cells: states, and what is added to their products in every step. */
struct ForwardCells
{
    float h[SUBTILES][WARP_TASKS][CELLS], c[SUBTILES][WARP_TASKS][CELLS];
    int length[SUBTILES][WARP_TASKS][CELLS];
    float bias[WARP_TASKS][GATES], bias_n[WARP_TASKS]; /* the latter of a GRU's n, in its product */
    /* NARROW: of products; by what power of two the states of a row exceed 1, in all steps if they `STAY_LARGE`,
       else of h_0 alone; of what is sent. */
    float scale[WARP_TASKS][GATES];
    float excess[SUBTILES][WARP_TASKS][CELLS], sent_scale[SUBTILES][WARP_TASKS];
    float reset_h[SUBTILES][WARP_TASKS][CELLS], reset_c[SUBTILES][WARP_TASKS][CELLS]; /* RESETS */

    DEVICE void begin(const ForwardParams &params, const Block &block, const RowLayout &layout,
                      const ForwardArrays &arrays, const ResetLayout &resets)
    {
        const int lane = threadIdx.x % 32;
        const long long state = block.state_number * params.batch * HIDDEN;
#pragma unroll
        for (int i = 0; i < WARP_TASKS; i++) {
            const Task task(i, threadIdx.x / 32, lane);
            const int unit = block.rank * UNITS + task.unit;
            const bool has = task.there && unit < HIDDEN;
            read_biases(params, block, i, unit, has);
#pragma unroll
            for (int sub = 0; sub < SUBTILES; sub++) {
                const int first_row = block.first_row + sub * ROWS;
                sent_scale[sub][i] =
                    STATE_SCALE /
                    excess_of(params, block, layout, first_row + SentWord(lane % TASK_WORDS, task).row);
#pragma unroll
                for (int e = 0; e < CELLS; e++) {
                    const int row = first_row + task.row + e;
                    excess[sub][i][e] = excess_of(params, block, layout, row);
                    const bool there = has && row < params.batch;
                    const long long users = there ? layout.caller_row(row) : 0;
                    const long long at = state + users * HIDDEN + unit;
                    h[sub][i][e] = there && params.h_0 ? real(params.h_0[at]) : 0.0f;
                    c[sub][i][e] = there && params.c_0 ? real(params.c_0[at]) : 0.0f;
                    length[sub][i][e] = layout.length(row < params.batch ? row : (int)params.batch - 1);
                    if constexpr (RESETS) {
                        read_reset(params, block, sub, i, e, there, users, unit);
                        reset_if(resets.flag_after(layout, -1, row) != 0, sub, i, e);
                    }
                    const bool has_step = !RAGGED || length[sub][i][e] > 0;
                    if (TRAINING && there && has_step && task.owns()) {
                        const long long first = layout.of(0, row) * PADDED + unit;
                        arrays.h_before[first] = rounded(h[sub][i][e]);
                        if (CELL == LSTM) arrays.c_before[first] = rounded(c[sub][i][e]);
                    }
                }
            }
        }
    }

    DEVICE void read_biases(const ForwardParams &params, const Block &block, int i, int unit, bool has)
    {
        const long long of_bias = block.state_number * params.bias_stride;
        bias_n[i] = 0;
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) {
            bias[i][gate] = 0;
            if (NARROW)
                scale[i][gate] =
                    has ? params.matrix_scales[(block.direction * GATES + gate) * HIDDEN + unit] / STATE_SCALE
                        : 0.0f;
            if (!has || !params.input_bias) continue;
            bias[i][gate] = real(params.input_bias[of_bias + gate * HIDDEN + unit]);
            const float other = real(params.recurrent_bias[of_bias + gate * HIDDEN + unit]);
            if (CELL == GRU && gate == 2) bias_n[i] = other;
            else bias[i][gate] += other;
        }
    }

    /* Reads what replaces a cell's state. */
    DEVICE void read_reset(const ForwardParams &params, const Block &block, int sub, int i, int e, bool there,
                           long long users_row, int unit)
    {
        const long long at = reset_place(params, block.state_number, users_row) + unit;
        reset_h[sub][i][e] = there && params.reset_h ? real(params.reset_h[at]) : 0.0f;
        reset_c[sub][i][e] = there && params.reset_c ? real(params.reset_c[at]) : 0.0f;
    }

    /* Without a branch: the threads of a warp have cells of several rows. */
    DEVICE void reset_if(bool is_border, int sub, int i, int e)
    {
        h[sub][i][e] = is_border ? reset_h[sub][i][e] : h[sub][i][e];
        c[sub][i][e] = is_border ? reset_c[sub][i][e] : c[sub][i][e];
    }

    DEVICE static float excess_of(const ForwardParams &params, const Block &block, const RowLayout &layout,
                                  int row)
    {
        if (!NARROW || row >= params.batch) return 1.0f;
        const int users = layout.caller_row(row);
        float scale = 0;
        if (params.state_scales) scale = params.state_scales[block.direction * params.batch + users];
        if (RESETS && params.reset_scales) {
            const long long rows = params.reset_state_rows;
            const float other = params.reset_scales[block.direction * rows + (rows == 1 ? 0 : users)];
            scale = other > scale ? other : scale;
        }
        const float of_row = STATE_SCALE * scale;
        return of_row > 1 ? of_row : 1.0f;
    }

    /* A step of cell e of two of task i. `of_x` and `of_h` are the products; the state is that after the step
       if the row is `live`. */
    DEVICE Cell step(float *of_x, float *of_h, int sub, int i, int e, bool is_first, bool live, float low,
                     float high)
    {
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) of_x[gate] += bias[i][gate];
        if (NARROW) {
            const float more = STAY_LARGE || is_first ? excess[sub][i][e] : 1.0f;
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) of_h[gate] *= scale[i][gate] * more;
        }
        if (CELL == GRU) of_h[GATES - 1] += bias_n[i];
        if (TWO_N) of_x[GATES - 1] += of_h[OCTET_GATES - 1];
        const Cell after = step_forward(of_x, of_h, h[sub][i][e], c[sub][i][e], low, high);
        if (live) h[sub][i][e] = after.h, c[sub][i][e] = after.c;
        return after;
    }

    /* The states after the last step become h_n and c_n. */
    DEVICE void end(const ForwardParams &params, const Block &block, const RowLayout &layout) const
    {
        const long long state = block.state_number * params.batch * HIDDEN;
#pragma unroll
        for (int sub = 0; sub < SUBTILES; sub++)
#pragma unroll
            for (int i = 0; i < WARP_TASKS; i++) {
                const Task task(i, threadIdx.x / 32, threadIdx.x % 32);
                const int unit = block.rank * UNITS + task.unit;
#pragma unroll
                for (int e = 0; e < CELLS; e++) {
                    const int row = block.first_row + sub * ROWS + task.row + e;
                    if (!task.owns() || unit >= HIDDEN || row >= params.batch) continue;
                    const long long at = state + (long long)layout.caller_row(row) * HIDDEN + unit;
                    if (params.h_n) params.h_n[at] = rounded(h[sub][i][e]);
                    if (CELL == LSTM && params.c_n) params.c_n[at] = rounded(c[sub][i][e]);
                }
            }
    }
};

/* In training, a cell leaves what the backward pass needs in the place of its inputs. */
DEVICE void save(uint4 *slot, const Task &task, int e, const Cell &after)
{
    if (!TRAINING || PLAIN || !task.owns()) return;
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) element(slot, gate, task, e) = rounded(after.saved[gate]);
    element(slot, GATES + 1, task, e) = rounded(CELL == LSTM ? after.c : after.saved[SAVED - 1]);
}

/* Sends a task's states: from `words` if words are sent, else from `stored`. */
template <class Exchange>
DEVICE void send_states(const Exchange &exchange, int number, int sub, uint4 *words, const Task &task,
                        const Element *stored, float scale)
{
    if constexpr (Exchange::SENDS_WORDS) {
        __syncwarp(); /* a warp sends what its threads have written */
        exchange.send(number, sub, words, task, scale);
    } else exchange.put(number, task, stored);
}

/* The kernel's body, with the shared memory of the block. */
template <class Product, class Exchange> DEVICE void run_forward(const ForwardParams &params, uint4 *shared)
{
    uint4 *const memory = retained_shared(shared);
    const Block block(params.groups, params.first_group);
    const RowLayout layout(params, block.direction);
    const Extent extent = extent_of(params, block, layout);
    const int num_steps = extent.num_steps;
    const ResetLayout resets(params);
    ResetWindow window(memory);
    uint4 *const states = memory + STATES_AT / 16;
    const ForwardArrays arrays(params, block, layout, window);
    Exchange exchange(block, extent, params.exchange, memory + STAGED_AT / 16);
    Ring<ForwardArrays> ring(memory + RING_AT / 16, arrays, layout, block, num_steps);
    window.request(resets, layout, block, num_steps, 0);
    typename Product::Weights weights = read_weights<Product>(params, block, ring, memory);
    ForwardCells cells;
    cells.begin(params, block, layout, arrays, resets);

    /* The first exchange is that of the initial state. Its words are made in the first slot, in the
       array that the first step will write. */
#pragma unroll
    for (int sub = 0; sub < SUBTILES; sub++)
#pragma unroll
        for (int i = 0; i < WARP_TASKS; i++) {
            const Task task(i, block.warp, block.lane);
            if (!task.there) continue;
            Element stored[CELLS];
#pragma unroll
            for (int e = 0; e < CELLS; e++) {
                stored[e] = rounded(cells.h[sub][i][e]);
                if (Exchange::SENDS_WORDS) element(ring.slot(0, sub), OUTPUT, task, e) = stored[e];
            }
            send_states(exchange, 0, sub, ring.slot(0, sub) + (OUTPUT - STATE) * ARRAY_WORDS * ROWS, task,
                        stored, cells.sent_scale[sub][i]);
        }
    ring.wait_for_first();

    /* Without RESETS there is one window, of all steps. */
    for (int first = 0; first < (RESETS ? num_steps : 1); first += ResetWindow::WINDOW) {
        const int end = window.end(first, num_steps);
        window.begin(first);
        window.request(resets, layout, block, num_steps, first + ResetWindow::WINDOW);

        /* The condition `step < limit` always holds, but the compiler cannot know that where words are in
           flight. So it keeps the addresses of a step inside the loop; outside they would take registers that
           sums need. */
        const int limit = Exchange::HAS_SECOND_BARRIER ? (int)opaque(num_steps) : end;
#pragma unroll 1
        for (int step = first; step < end; step++) {
            if (FAR && step == num_steps - 1) weights.release();
#pragma unroll
            for (int sub = 0; sub < SUBTILES; sub++) {
                uint4 *const slot = ring.slot(step, sub);
                begin_phase(block, step, sub, LOAD_INPUTS);

                /* Load inputs: of this step from the ring, of later ones into it; where words take longer than
                   that, while they are on their way. */
                ForwardInputs inputs;
                Borders borders;
                const auto load_inputs = [&] {
                    if (Exchange::HAS_SECOND_BARRIER) ring.advance(step, sub);
                    inputs.read_all(slot, block.order, block.warp, block.lane);
                    window.read(borders, block, step, sub);
                };
                if (!STAGED) load_inputs();
                auto gather = exchange.gather(step, sub, block.order > 0, true);

                /* Receive and multiply: all words, a chunk or a round of them at a time. */
                typename Exchange::Sums sums;
                sums.fill(0);
                if (step < limit) {
                    gather.request();
                    if (STAGED) load_inputs();
                    begin_phase(block, step, sub, RECEIVE_AND_MULTIPLY);
                    gather.receive(sums, weights, exchange.late);
                }

                /* Reduce: the sums over k of all warps. */
                begin_phase(block, step, sub, REDUCE);
                typename Exchange::PartialSums partials((float *)memory, step * SUBTILES + sub);
                partials.write(sums, block.warp, block.lane);
                if (Product::REDUCES_THROUGH_SHARED) sync_step(exchange, step);
                begin_phase(block, step, sub, CELLS_AND_SEND);

#pragma unroll
                for (int i = 0; i < WARP_TASKS; i++) {
                    const Task task(i, block.warp, block.lane);
                    if (!task.there) continue;
                    Cell after[CELLS];
                    Element output[CELLS],
                        state[CELLS]; /* y, and what is sent: with RESETS it may be another */
                    float of_h[CELLS][OCTET_GATES], of_x[CELLS][GATES];
                    /* All cells are read before one is written, or the compiler computes them one after the other. */
#pragma unroll
                    for (int e = 0; e < CELLS; e++) {
                        partials.add_up(of_h[e], task, e);
#pragma unroll
                        for (int gate = 0; gate < GATES; gate++)
                            of_x[e][gate] = CROWDED ? ForwardInputs::read(slot, block.order, task, gate, e)
                                                    : inputs.of[i][gate][e];
                    }
#pragma unroll
                    for (int e = 0; e < CELLS; e++) {
                        const bool live = !RAGGED || step < cells.length[sub][i][e];
                        after[e] = cells.step(of_x[e], of_h[e], sub, i, e, step == 0, live, params.clip_low,
                                              params.clip_high);
                        const bool padding = HIDDEN % 8 != 0 && block.rank * UNITS + task.unit >= HIDDEN;
                        output[e] = rounded(live && !padding ? after[e].h : 0.0f);
                        if constexpr (RESETS) {
                            cells.reset_if(borders.of[i][e] != 0, sub, i, e);
                            state[e] = rounded(live && !padding ? cells.h[sub][i][e] : 0.0f);
                            after[e].c = cells.c[sub][i][e];
                        } else state[e] = output[e];
                    }
#pragma unroll
                    for (int e = 0; e < CELLS; e++)
                        if (task.owns() && (!RESETS || Exchange::SENDS_WORDS))
                            element(RESETS ? states : slot, STATE, task, e) = state[e];
                    if (step + 1 < num_steps || block.order < LAYERS - 1)
                        send_states(exchange, step + 1, sub, RESETS ? states : slot, task, state,
                                    STAY_LARGE ? cells.sent_scale[sub][i] : STATE_SCALE);
                    /* Nothing waits for what is stored from here on. */
                    if constexpr (RESETS) {
#pragma unroll
                        for (int e = 0; e < CELLS; e++)
                            if (task.owns()) element(slot, OUTPUT, task, e) = output[e];
                    }
#pragma unroll
                    for (int e = 0; e < CELLS; e++) save(slot, task, e, after[e]);
                }
                begin_phase(block, step, sub, STORE);
                if (!Product::REDUCES_THROUGH_SHARED) sync_step(exchange, step);

                /* Store: with a second barrier, `load_inputs` of the next step stores this one; else the results
                   of the step before are stored here. */
                if (Exchange::HAS_SECOND_BARRIER) __syncthreads();
                else ring.advance(step, sub);
                ring.look_ahead(step, sub);
            }
        }
    }
    if (!Exchange::HAS_SECOND_BARRIER) __syncthreads();
#pragma unroll
    for (int sub = 0; sub < SUBTILES; sub++) ring.store_last(sub);
    weights.end_stream();
    cells.end(params, block, layout);
}

} // namespace dnnffi
