"""Tests of one step of each cell and its derivative, with the kernels' source compiled as C++."""

from __future__ import annotations

import ctypes
import re
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi.backends.own.recurrent.config import CELLS, GATES, SAVED
from dnnffi.backends.own.recurrent.config import CLIPS as CLIP_NAMES
from dnnffi.reference.cells import make_cell
from simulators.cuda.emulator import functions

MODES = tuple(CELLS)
CLIPS = {0: None, 1: "propagate", 2: "clip"}
BOUNDS = -0.5, 0.75
KINDS = [(mode, clip) for mode in MODES for clip in CLIPS if mode == "lstm" or not clip]

TEXT = """
extern "C" void forward(
    long count, const float *input, const float *product, const float *h, const float *c,
    double low, double high, float *h_after, float *c_after, float *saved)
{
    for (long i = 0; i < count; i++) {
        const Cell after = step_forward(
            input + i * GATES, product + i * GATES, h[i], c[i], low, high);
        h_after[i] = after.h, c_after[i] = after.c;
        memcpy(saved + i * SAVED, after.saved, sizeof after.saved);
    }
}
extern "C" void backward(
    long count, const float *saved, const float *before, const float *dh, const float *dc,
    double low, double high, float *d_gates, float *dh_before, float *dc_before)
{
    for (long i = 0; i < count; i++) {
        const CellGradients d = step_backward(
            saved + i * SAVED, before[i], dh[i], dc[i], low, high);
        memcpy(d_gates + i * SAVED, d.gates, sizeof d.gates);
        dh_before[i] = d.h, dc_before[i] = d.c;
    }
}
"""

IN_DOUBLE = """
#define fmaf fma
extern "C" double fma(double, double, double);
"""


def in_double(text):
    return re.sub(r"\bfloat\b", "double", text)


class Steps:
    """`step_forward` and `step_backward` on arrays of rows, in float32 or in float64."""

    def __init__(self, mode, clip=0, dtype="f4"):
        self.mode, self.clip, self.dtype = mode, clip, np.dtype(dtype)
        self.gates, self.saved = GATES[mode], SAVED[mode]
        constants = {"CELL": CELLS[mode], "CLIP": CLIP_NAMES[clip], "DTYPE": "FLOAT32"}
        constants |= {"FACTORS": "FLOAT32", "STRICT": False}
        how = {}
        if dtype == "f8":
            how = {"change": in_double, "prelude": IN_DOUBLE}
        text = in_double(TEXT) if how else TEXT
        self._library = functions(constants, ("cells.cuh",), text, **how)

    def forward(self, gx, gh, h, c):
        """Return h, c and the saved values [N, saved] of a step."""
        shapes = (len(h),), (len(h),), (len(h), self.saved)
        return self._call("forward", (gx, gh, h, c), shapes)

    def backward(self, saved, before, dh, dc):
        """Return the gradients [N, saved] of the gates, and those of h and c before the step."""
        shapes = (len(dh), self.saved), (len(dh),), (len(dh),)
        return self._call("backward", (saved, before, dh, dc), shapes)

    def _call(self, name, given, shapes):
        given = [np.ascontiguousarray(one, self.dtype) for one in given]
        found = [np.zeros(shape, self.dtype) for shape in shapes]
        low, high = map(ctypes.c_double, BOUNDS)
        pointers = [ctypes.c_void_p(one.ctypes.data) for one in (*given, *found)]
        arguments = (*pointers[:4], low, high, *pointers[4:])
        getattr(self._library, name)(ctypes.c_long(len(given[2])), *arguments)
        return found


@cache
def steps(mode, clip, dtype="f4"):
    return Steps(mode, clip, dtype)


def reference(mode, clip, dtype):
    return make_cell(mode, np, dtype, BOUNDS if clip else None, CLIPS[clip] or "propagate")


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, *BOUNDS, 1e30, -1e30]
NUMBERS = st.floats(-8, 8, width=32)
ROWS = 4


def rows(numbers, columns):
    return st.lists(numbers, min_size=ROWS * columns, max_size=ROWS * columns).map(
        lambda values: np.array(values, "f4").reshape(ROWS, columns)
    )


@st.composite
def inputs(draw, gates, numbers):
    """Draw gx, gh [N, gates] and h, c, dh, dc [N]."""
    wide = [draw(rows(numbers, gates)) for _ in range(2)]
    return (*wide, *(draw(rows(numbers, 1))[:, 0] for _ in range(4)))


def of_reference(mode, clip, gx, gh, h, c, dh, dc):
    """Return the reference's h and c after the step, and all gradients; a row is a unit.

    The gradients are those of gx, of gh, and of h and c before the step.
    """
    cell = reference(mode, clip, gx.dtype)
    gx, gh = (one.T[:, :, None] for one in (gx, gh))  # [gates, N, 1]
    h, c, dh, dc = (one[:, None] for one in (h, c, dh, dc))
    kept, h_after = np.empty((cell.kept, *h.shape), h.dtype), np.empty_like(h)
    d_gx = np.empty_like(gx)
    d_gh = d_gx if cell.sums else np.empty_like(gh)
    with np.errstate(all="ignore"):
        c_after, saved = cell.step(gx, gh, h, c, kept, h_after)
        before = cell.step_backward(saved, dh, dc, d_gx, d_gh)
    return h_after, c_after, d_gx[:, :, 0].T, d_gh[:, :, 0].T, before


def of_kernels(mode, clip, gx, gh, h, c, dh, dc, dtype="f4"):
    """Return h and c after the step, and the gradients, by the kernels' cells."""
    run = steps(mode, clip, dtype)
    h_after, c_after, saved = run.forward(gx, gh, h, c)
    before = c if mode == "lstm" else h
    return h_after, c_after, *run.backward(saved, before, dh, dc)


def compare(found, expected, rtol, atol):
    expected = np.asarray(expected)
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=rtol, atol=atol)


def check(mode, clip, given, wide, rtol, atol):
    """Compare values and gradients with those of the reference."""
    reference_inputs = [one.astype("f8") for one in given] if wide else given
    h, c, d_gx, d_gh, before = of_reference(mode, clip, *reference_inputs)
    h_after, c_after, d_gates, dh_before, dc_before = of_kernels(mode, clip, *given)
    compare(h_after, h, rtol, atol)
    d_input = d_gates[:, : GATES[mode]]
    d_product = d_gates[:, [0, 1, 3]] if mode == "gru" else d_input
    compare(d_input, d_gx, rtol, atol)
    compare(d_product, d_gh, rtol, atol)
    if mode == "lstm":
        compare(c_after, c, rtol, atol)
        compare(dc_before, before.c, rtol, atol)
    if mode == "gru":
        compare(dh_before, before.h, rtol, atol)
    else:
        assert not dh_before.any()


@pytest.mark.parametrize(("mode", "clip"), KINDS)
@given(data=st.data())
def test_a_step_and_its_derivative_are_those_of_the_reference(mode, clip, data):
    given = data.draw(inputs(GATES[mode], NUMBERS))
    # At a bound rounding decides whether a gradient passes: there it is compared in float32.
    _, c_after, *_ = of_kernels(mode, clip, *given)
    for bound in BOUNDS if clip else ():
        c_after = np.where(abs(c_after - bound) < 1e-5, np.nan, c_after)
    if not np.isnan(c_after).any():
        check(mode, clip, given, True, 2e-5, 1e-5)


@pytest.mark.parametrize(("mode", "clip"), KINDS)
@given(data=st.data())
def test_nan_and_infinity_go_where_those_of_the_reference_go(mode, clip, data):
    given = data.draw(inputs(GATES[mode], st.sampled_from(SPECIAL) | st.floats(-2, 2, width=32)))
    check(mode, clip, given, False, 1e-4, 1e-4)


def test_a_cell_state_is_clipped_where_it_is_read_and_kept_as_it_is():
    low, high = BOUNDS
    before = np.array([low, high, -3, 3, np.nan, 0.1], "f4")
    zeros, open_gates = np.zeros(6), np.tile([-40.0, 40.0, 0.0, 40.0], (6, 1))  # f = o = 1, i = 0
    for clip, of_nan in ((1, np.nan), (2, low)):
        read = np.array([low, high, low, high, of_nan, 0.1])
        h, c, _ = steps("lstm", clip).forward(open_gates, 0 * open_gates, zeros, before)
        np.testing.assert_allclose(c, read, rtol=1e-6)
        np.testing.assert_allclose(h, np.tanh(read), rtol=1e-6)
    h, c, _ = steps("lstm", 0).forward(open_gates, 0 * open_gates, zeros, before)
    np.testing.assert_allclose(c, before, rtol=1e-6)
    np.testing.assert_allclose(h, np.tanh(before), rtol=1e-6)


@pytest.mark.parametrize(("clip", "passes"), [(0, [1, 1, 1]), (1, [0, 1, 0]), (2, [0, 1, 0])])
def test_no_gradient_passes_where_a_state_was_clipped(clip, passes):
    before = np.array([-3, 0.1, 3], "f4")
    gates = np.tile([-40.0, 40.0, 0.0, 40.0], (3, 1))
    run = steps("lstm", clip)
    _, _, saved = run.forward(gates, 0 * gates, np.zeros(3), before)
    *_, dc = run.backward(saved, before, np.zeros(3), np.ones(3))
    np.testing.assert_allclose(dc, passes, rtol=1e-6)


@pytest.mark.parametrize(("mode", "clip"), KINDS)
def test_the_derivative_is_the_limit_of_differences(mode, clip):
    random = np.random.default_rng(0)
    count, gates, step = 200, GATES[mode], 1e-6
    gx, gh = random.standard_normal((2, count, gates))
    h, c, dh, dc = random.standard_normal((4, count))
    run = steps(mode, clip, "f8")

    def total(gx, gh, h, c):
        after = run.forward(gx, gh, h, c)
        return dh * after[0] + (dc * after[1] if mode == "lstm" else 0)

    _, _, d_gates, dh_before, dc_before = of_kernels(mode, clip, gx, gh, h, c, dh, dc, "f8")
    # Where the function has a corner within a step, there is no derivative to compare.
    after = run.forward(gx, gh, h, c)
    smooth = np.ones(count, bool)
    for corner in BOUNDS if clip else ():
        smooth &= (abs(c - corner) > 1e-4) & (abs(after[1] - corner) > 1e-4)
    if mode == "rnn_relu":
        smooth &= abs(gx + gh)[:, 0] > 1e-4
    assert smooth.sum() > 150
    for gate in range(gates):
        one = np.zeros((count, gates))
        one[:, gate] = step
        slope = (total(gx + one, gh, h, c) - total(gx - one, gh, h, c)) / (2 * step)
        np.testing.assert_allclose(d_gates[smooth, gate], slope[smooth], atol=1e-7)
        slope = (total(gx, gh + one, h, c) - total(gx, gh - one, h, c)) / (2 * step)
        column = 3 if mode == "gru" and gate == 2 else gate
        np.testing.assert_allclose(d_gates[smooth, column], slope[smooth], atol=1e-7)
    slope = (total(gx, gh, h + step, c) - total(gx, gh, h - step, c)) / (2 * step)
    np.testing.assert_allclose(dh_before[smooth], slope[smooth], atol=1e-7)
    slope = (total(gx, gh, h, c + step) - total(gx, gh, h, c - step)) / (2 * step)
    np.testing.assert_allclose(dc_before[smooth], slope[smooth], atol=1e-7)
