#pragma once
/* One step of a cell, and its derivative, with floats as inputs and outputs: used by
   the forward and the backward kernel, and compiled for the host by tests.

   `input` are the products of x with the input bias, `product` those of the state before the step
   with the recurrent bias; gates in PyTorch's order: i f g o, r z n. */

#include "ptx_convert.cuh"

namespace dnnffi {

constexpr CellMode CELL = Config::CELL;
constexpr Clip CLIP = Config::CLIP;

constexpr int GATES = CELL == LSTM ? 4 : CELL == GRU ? 3 : 1;

/* Values that a forward pass in training saves for the backward pass: i f g o; r z n and the product of n; nothing
   of a plain cell, whose y suffices. Also the columns of the gradients that the backward pass leaves: of the
   gates, and for a GRU of n's two products. */
constexpr int SAVED = CELL == LSTM || CELL == GRU ? 4 : 1;

struct Cell
{
    float h, c;         /* the state after the step; c of an LSTM */
    float saved[SAVED]; /* with it */
};

/* The cell state as it is read: clipped, if that was asked for. `changed` says whether it was. */
DEVICE float clipped(float c, float low, float high, bool &changed)
{
    changed = false;
    if (CLIP == UNCLIPPED) return c;
    const bool below = CLIP == CLIP_REPLACES_NAN ? !(c >= low) : c < low;
    changed = below || c > high;
    return below ? low : c > high ? high : c;
}

DEVICE Cell step_forward(const float *input, const float *product, float h, float c, float low, float high)
{
    Cell after;
    after.c = 0;
    if constexpr (CELL == LSTM) {
        bool changed;
        const float i = sigmoid(input[0] + product[0]), f = sigmoid(input[1] + product[1]);
        const float g = tanh_of(input[2] + product[2]), o = sigmoid(input[3] + product[3]);
        after.c = fmaf(f, clipped(c, low, high, changed), i * g);
        after.h = o * tanh_of(clipped(after.c, low, high, changed));
        after.saved[0] = i, after.saved[1] = f, after.saved[2] = g, after.saved[3] = o;
    } else if constexpr (CELL == GRU) {
        const float r = sigmoid(input[0] + product[0]), z = sigmoid(input[1] + product[1]);
        const float n = tanh_of(fmaf(r, product[2], input[2]));
        after.h = fmaf(z, h - n, n);
        after.saved[0] = r, after.saved[1] = z, after.saved[2] = n, after.saved[3] = product[2];
    } else {
        const float a = input[0] + product[0];
        after.h = CELL == TANH ? tanh_of(a) : a > 0 || a != a ? a : 0; /* NaN stays */
        after.saved[0] = after.h;
    }
    return after;
}

struct CellGradients
{
    float gates[SAVED]; /* of the sums in the gates; of a GRU r, z and n's two products */
    float h, c;         /* of the state before the step, without the part through the product */
};

/* From the gradients of the state after the step. `before` is the state before it: c of an LSTM, h
   of a GRU; of a plain cell `saved` is h after the step. */
DEVICE CellGradients step_backward(const float *saved, float before, float dh, float dc, float low,
                                   float high)
{
    CellGradients d;
    d.h = d.c = 0;
    if constexpr (CELL == LSTM) {
        const float i = saved[0], f = saved[1], g = saved[2], o = saved[3];
        bool changed_before, changed;
        const float c_before = clipped(before, low, high, changed_before);
        const float tanh_c = tanh_of(clipped(fmaf(f, c_before, i * g), low, high, changed));
        if (!changed) dc = fmaf(dh * o, 1 - tanh_c * tanh_c, dc);
        d.gates[0] = dc * g * i * (1 - i);
        d.gates[1] = dc * c_before * f * (1 - f);
        d.gates[2] = dc * i * (1 - g * g);
        d.gates[3] = dh * tanh_c * o * (1 - o);
        d.c = changed_before ? 0 : dc * f;
    } else if constexpr (CELL == GRU) {
        const float r = saved[0], z = saved[1], n = saved[2], product = saved[3];
        const float dn = dh * (1 - z) * (1 - n * n);
        d.gates[0] = dn * product * r * (1 - r);
        d.gates[1] = dh * (before - n) * z * (1 - z);
        d.gates[2] = dn;
        d.gates[3] = dn * r;
        d.h = dh * z;
    } else {
        const float h = saved[0];
        d.gates[0] = CELL == TANH ? dh * (1 - h * h) : h <= 0 ? 0 : dh; /* NaN counts as active */
    }
    return d;
}

} // namespace dnnffi
