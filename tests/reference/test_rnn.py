"""The NumPy reference: gradients by finite differences, and what its definition implies."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnffi.reference.cells import sigmoid
from dnnffi.reference.rnn import Forward, backward, dropout_masks, forward
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import lengths_to_batch_sizes

MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class Inputs:
    """Random read-only arrays for a network: a write to one of them fails the test."""

    def __init__(
        self, spec: RNNSpec, x_shape: tuple[int, ...], batch: int, seed: int = 0, scale: float = 0.6
    ) -> None:
        rng = np.random.default_rng(seed)
        self.spec = spec
        self.x = rng.normal(size=x_shape)
        self.h_0 = rng.normal(size=spec.h_shape(batch))
        self.c_0 = rng.normal(size=spec.c_shape(batch)) if spec.has_cell else None
        self.weights = [rng.normal(scale=scale, size=p.shape) for p in spec.parameter_shapes()]
        y_shape = (*x_shape[:-1], spec.output_size * spec.num_directions)
        self.dy = rng.normal(size=y_shape)
        self.dh_n = rng.normal(size=self.h_0.shape)
        self.dc_n = None if self.c_0 is None else rng.normal(size=self.c_0.shape)
        for a in (self.x, self.h_0, self.c_0, *self.weights, self.dy, self.dh_n, self.dc_n):
            if a is not None:
                a.flags.writeable = False

    def forward(self, **options: Any) -> Forward:
        return forward(self.spec, self.x, self.h_0, self.c_0, self.weights, **options)

    def loss(self, arrays: list[np.ndarray], **options: Any) -> float:
        """The scalar that `backward` differentiates, by x, h_0, c_0 of an LSTM and the weights."""
        x, h_0, *rest = arrays
        c_0 = rest.pop(0) if self.spec.has_cell else None
        result = forward(self.spec, x, h_0, c_0, rest, **options)
        value = (self.dy * result.y).sum() + (self.dh_n * result.h_n).sum()
        if result.c_n is not None:
            value += (self.dc_n * result.c_n).sum()
        return float(value)


def dense(spec: RNNSpec, steps: int = 4, batch: int = 3, *, seed: int = 0, **kw: Any) -> Inputs:
    return Inputs(spec, spec.x_shape(steps, batch, **kw), batch, seed)


def small(mode: str, **fields: Any) -> RNNSpec:
    return RNNSpec(mode=mode, input_size=3, hidden_size=4, dtype="float64", **fields)


def all_gradients(inputs: Inputs, result: Forward) -> list[np.ndarray]:
    """The gradients of x, h_0, c_0 of an LSTM, and the weights."""
    g = backward(result.tape, inputs.dy, inputs.dh_n, inputs.dc_n)
    return [a for a in (g.x, g.h_0, g.c_0, *g.weights) if a is not None]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray], tolerance: float = 1e-13):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def check_gradients(inputs: Inputs, **options: Any) -> None:
    """Every gradient along random directions, against central differences in float64."""
    arrays = [inputs.x, inputs.h_0, inputs.c_0, *inputs.weights]
    arrays = [a for a in arrays if a is not None]
    gradients = all_gradients(inputs, inputs.forward(**options))
    rng = np.random.default_rng(1)
    step = 1e-6
    for index, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
        assert gradient.shape == array.shape
        for _ in range(2):
            along = rng.normal(size=array.shape)
            sides = []
            for sign in (1, -1):
                moved = arrays.copy()
                moved[index] = array + sign * step * along
                sides.append(inputs.loss(moved, **options))
            numeric = (sides[0] - sides[1]) / (2 * step)
            size = np.linalg.norm(gradient) * np.linalg.norm(along) + 1
            assert abs(numeric - (gradient * along).sum()) < 1e-7 * size, f"array {index}"


# Gradients


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_each_mode(mode: str, layers: int, bidirectional: bool) -> None:
    check_gradients(dense(small(mode, num_layers=layers, bidirectional=bidirectional)))


@pytest.mark.parametrize("mode", MODES)
def test_gradients_without_biases(mode: str) -> None:
    check_gradients(dense(small(mode, bias=False)))


@pytest.mark.parametrize("bias", [False, True])
def test_gradients_with_projection(bias: bool) -> None:
    check_gradients(dense(small("lstm", proj_size=2, num_layers=2, bidirectional=True, bias=bias)))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_gradients_with_lengths(mode: str, batch_first: bool) -> None:
    projection = 2 if mode == "lstm" else 0
    spec = small(mode, num_layers=2, bidirectional=True, proj_size=projection)
    inputs = dense(spec, steps=5, batch=4, batch_first=batch_first)
    check_gradients(inputs, batch_first=batch_first, lengths=(2, 4, 1, 3))


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_packed_sequences(mode: str) -> None:
    spec = small(mode, num_layers=2, bidirectional=True)
    check_gradients(Inputs(spec, (8, 3), batch=4), batch_sizes=(4, 2, 1, 1))


@pytest.mark.parametrize("mode", MODES)
def test_gradients_through_dropout_masks(mode: str) -> None:
    spec = small(mode, num_layers=3, bidirectional=True)
    masks = dropout_masks(spec, 4, 3, 0.4, np.random.default_rng(2))
    check_gradients(dense(spec), dropout=0.4, masks=masks, lengths=(4, 2, 3))


@pytest.mark.parametrize("projection", [0, 2])
def test_gradients_with_a_clipped_cell(projection: int) -> None:
    inputs = dense(small("lstm", num_layers=2, bidirectional=True, proj_size=projection))
    low, high = -0.3, 0.5
    c_n = inputs.forward(clip=(low, high)).c_n
    assert (c_n < low).any()
    assert (c_n > high).any()
    assert ((c_n > low) & (c_n < high)).any()
    check_gradients(inputs, clip=(low, high))


def test_missing_gradients_of_the_outputs_count_as_zero() -> None:
    inputs = dense(small("lstm", num_layers=2))
    tape = inputs.forward().tape
    zeros = [np.zeros_like(a) for a in (inputs.dy, inputs.dh_n, inputs.dc_n)]
    given = [inputs.dy, inputs.dh_n, inputs.dc_n]
    for present in range(3):
        some = [a if i == present else None for i, a in enumerate(given)]
        full = [a if i == present else zeros[i] for i, a in enumerate(given)]
        found, expected = backward(tape, *some), backward(tape, *full)
        assert_same([found.x, *found.weights], [expected.x, *expected.weights], 0)
    assert not backward(tape).x.any()


def test_backward_leaves_the_tape_valid() -> None:
    inputs = dense(small("gru", num_layers=2, bidirectional=True))
    result = inputs.forward()
    assert_same(all_gradients(inputs, result), all_gradients(inputs, result), 0)


def test_what_is_written_into_the_results_is_not_read_again() -> None:
    inputs = dense(small("lstm", num_layers=2))
    expected = all_gradients(inputs, inputs.forward())
    result = inputs.forward()
    for a in (result.y, result.h_n, result.c_n):
        a[...] = np.nan
    assert_same(all_gradients(inputs, result), expected, 0)


@pytest.mark.parametrize("steps", [4, 200])  # 200 steps of 3 rows are multiplied in three parts
@pytest.mark.parametrize("lengths", [None, (1, 4, 2)])
@pytest.mark.parametrize("mode", MODES)
def test_inference_gives_the_same_and_keeps_no_tape(
    mode: str, lengths: tuple[int, ...] | None, steps: int
) -> None:
    spec = small(mode, num_layers=2, bidirectional=True, proj_size=2 if mode == "lstm" else 0)
    inputs = dense(spec, steps=steps)
    expected = inputs.forward(lengths=lengths)
    found = inputs.forward(lengths=lengths, training=False)
    assert found.tape is None
    assert (found.c_n is None) == (expected.c_n is None) == (mode != "lstm")
    # Products of fewer steps at once may be rounded in another order (OpenBLAS, by processor).
    for a, b in ((found.y, expected.y), (found.h_n, expected.h_n), (found.c_n, expected.c_n)):
        if b is not None:
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


# Values


def test_one_lstm_step_by_hand() -> None:
    spec = RNNSpec(mode="lstm", input_size=1, hidden_size=1, dtype="float64")
    w_ih, w_hh, b_ih, b_hh = [1, 2, 3, 4], [0.5, 0.25, -0.5, 1], [0.1, 0.2, 0.3, 0.4], [1, -1, 0, 2]
    x, h, c = 0.5, 0.2, -0.7
    i, f, g, o = (w_ih[k] * x + b_ih[k] + w_hh[k] * h + b_hh[k] for k in range(4))
    c_n = c / (1 + math.exp(-f)) + math.tanh(g) / (1 + math.exp(-i))
    h_n = math.tanh(c_n) / (1 + math.exp(-o))
    result = run_scalars(spec, x, h, c, [w_ih, w_hh, b_ih, b_hh])
    assert result.c_n.item() == pytest.approx(c_n, rel=1e-14)
    assert result.h_n.item() == pytest.approx(h_n, rel=1e-14)
    assert result.y.item() == result.h_n.item()


def test_one_projected_lstm_step_by_hand() -> None:
    spec = RNNSpec(mode="lstm", input_size=1, hidden_size=2, proj_size=1, bias=False)
    # Both units have all gates at zero: c = 1/2 c_0, and 1/2 tanh(c) is projected.
    weights = [np.zeros((8, 1)), np.zeros((8, 1)), np.array([[3.0, -5.0]])]
    c_0 = np.array([[[0.4, 0.8]]])
    result = forward(spec, np.ones((1, 1, 1)), None, c_0, weights)
    assert result.c_n.ravel().tolist() == [0.2, 0.4]
    expected = 3 * math.tanh(0.2) / 2 - 5 * math.tanh(0.4) / 2
    assert result.h_n.item() == pytest.approx(expected, rel=1e-14)


def test_one_gru_step_by_hand() -> None:
    spec = RNNSpec(mode="gru", input_size=1, hidden_size=1, dtype="float64")
    w_ih, w_hh, b_ih, b_hh = [1, 2, 3], [0.5, 0.25, -0.5], [0.1, 0.2, 0.3], [1, -1, 0.7]
    x, h = 0.5, 0.2
    r, z = (1 / (1 + math.exp(-(w_ih[k] * x + b_ih[k] + w_hh[k] * h + b_hh[k]))) for k in range(2))
    n = math.tanh(w_ih[2] * x + b_ih[2] + r * (w_hh[2] * h + b_hh[2]))
    result = run_scalars(spec, x, h, None, [w_ih, w_hh, b_ih, b_hh])
    assert result.h_n.item() == pytest.approx((1 - z) * n + z * h, rel=1e-14)
    assert result.c_n is None


@pytest.mark.parametrize(
    ("mode", "x", "expected"),
    [
        ("rnn_tanh", 0.5, math.tanh(1.0 + 0.1 + 0.6 - 0.3)),
        ("rnn_relu", 0.5, 1.0 + 0.1 + 0.6 - 0.3),
        ("rnn_relu", -0.5, 0.0),
    ],
)
def test_one_elman_step_by_hand(mode: str, x: float, expected: float) -> None:
    spec = RNNSpec(mode=mode, input_size=1, hidden_size=1, dtype="float64")
    result = run_scalars(spec, x, 0.2, None, [[2], [3], [0.1], [-0.3]])
    assert result.h_n.item() == pytest.approx(expected, rel=1e-14)


def run_scalars(
    spec: RNNSpec, x: float, h: float, c: float | None, weights: list[list[float]]
) -> Forward:
    """Run one step of one row of a network with I = H = 1."""
    state = [None if s is None else np.full((1, 1, 1), s) for s in (h, c)]
    arrays = [
        np.array(w, dtype=float).reshape(p.shape)
        for w, p in zip(weights, spec.parameter_shapes(), strict=True)
    ]
    return forward(spec, np.full((1, 1, 1), x), *state, arrays)


@pytest.mark.parametrize("mode", MODES)
def test_no_biases_are_zero_biases(mode: str) -> None:
    without = dense(small(mode, num_layers=2, bias=False))
    spec = small(mode, num_layers=2)
    given = iter(without.weights)
    weights = [
        np.zeros(p.shape) if p.name.startswith("b") else next(given)
        for p in spec.parameter_shapes()
    ]
    expected = without.forward()
    found = forward(spec, without.x, without.h_0, without.c_0, weights)
    assert_same([found.y, found.h_n], [expected.y, expected.h_n], 0)


@pytest.mark.parametrize("mode", MODES)
def test_no_initial_state_is_zero(mode: str) -> None:
    inputs = dense(small(mode, bidirectional=True))
    zeros = [None if s is None else np.zeros_like(s) for s in (inputs.h_0, inputs.c_0)]
    found = forward(inputs.spec, inputs.x, None, None, inputs.weights)
    expected = forward(inputs.spec, inputs.x, *zeros, inputs.weights)
    assert_same([found.y, found.h_n], [expected.y, expected.h_n], 0)
    gradients = backward(found.tape, inputs.dy)
    assert gradients.h_0.shape == inputs.h_0.shape


def test_sigmoid_is_exact_at_both_ends() -> None:
    a = np.array([-np.inf, -1e4, -700.0, -40.0, 0.0, 40.0, 1e4, np.inf, np.nan])
    with np.errstate(over="ignore"):
        found = sigmoid(np, a)
    assert found[[0, 1, 4, 6, 7]].tolist() == [0, 0, 0.5, 1, 1]
    np.testing.assert_allclose(found[2:4], np.exp(a[2:4]), rtol=1e-15)
    assert np.isnan(found[8])


def test_weights_beyond_the_dtype_of_x_are_infinite() -> None:
    inputs = dense(small("gru"))
    weights = [np.full(w.shape, 1e6) for w in inputs.weights]
    with np.errstate(all="raise"):
        found = forward(inputs.spec, inputs.x.astype("float16"), None, None, weights)
    assert found.y.dtype == np.float16


# Layouts


@st.composite
def batches(draw: st.DrawFn) -> tuple[RNNSpec, int, tuple[int, ...], int]:
    """A small network, T, the lengths of the rows (perhaps all below T) and a seed."""
    mode = draw(st.sampled_from(MODES))
    spec = RNNSpec(
        mode=mode,
        input_size=draw(st.integers(1, 3)),
        hidden_size=draw(st.integers(2, 3)),
        num_layers=draw(st.integers(1, 3)),
        bidirectional=draw(st.booleans()),
        bias=draw(st.booleans()),
        proj_size=draw(st.integers(0, 1)) if mode == "lstm" else 0,
        dtype="float64",
    )
    steps = draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(1, steps), min_size=1, max_size=4))
    return spec, steps, tuple(lengths), draw(st.integers(0, 2**32 - 1))


@settings(deadline=None, max_examples=150)
@given(batches())
def test_a_row_of_a_batch_is_that_row_alone(case: tuple[Any, ...]) -> None:
    spec, steps, lengths, seed = case
    inputs = dense(spec, steps, len(lengths), seed=seed)
    whole = inputs.forward(lengths=lengths)
    gradients = all_gradients(inputs, whole)
    states = 2 if spec.has_cell else 1
    totals = [np.zeros_like(w) for w in inputs.weights]
    for row, length in enumerate(lengths):
        one = slice(row, row + 1)
        state = [None if s is None else s[:, one] for s in (inputs.h_0, inputs.c_0)]
        alone = forward(spec, inputs.x[:length, one], *state, inputs.weights)
        np.testing.assert_allclose(whole.y[:length, one], alone.y, rtol=0, atol=1e-12)
        assert not whole.y[length:, one].any()
        np.testing.assert_allclose(whole.h_n[:, one], alone.h_n, rtol=0, atol=1e-12)
        if spec.has_cell:
            np.testing.assert_allclose(whole.c_n[:, one], alone.c_n, rtol=0, atol=1e-12)
        dc_n = None if inputs.dc_n is None else inputs.dc_n[:, one]
        g = backward(alone.tape, inputs.dy[:length, one], inputs.dh_n[:, one], dc_n)
        scale = max(1.0, *(abs(a).max() for a in gradients))
        np.testing.assert_allclose(gradients[0][:length, one], g.x, rtol=0, atol=1e-12 * scale)
        assert not gradients[0][length:, one].any()
        for found, expected in zip(gradients[1 : 1 + states], (g.h_0, g.c_0), strict=False):
            np.testing.assert_allclose(found[:, one], expected, rtol=0, atol=1e-12 * scale)
        for total, w in zip(totals, g.weights, strict=True):
            total += w
    for found, expected in zip(gradients[1 + states :], totals, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * scale)


@settings(deadline=None, max_examples=100)
@given(batches())
def test_packed_is_padded_with_the_same_lengths(case: tuple[Any, ...]) -> None:
    spec, _, lengths, seed = case
    lengths = tuple(sorted(lengths, reverse=True))
    batch_sizes = lengths_to_batch_sizes(lengths)
    steps, batch = len(batch_sizes), len(lengths)
    padded = dense(spec, steps, batch, seed=seed)

    def pack(a: np.ndarray) -> np.ndarray:
        return np.concatenate([a[t, :size] for t, size in enumerate(batch_sizes)])

    masks = dropout_masks(spec, steps, batch, 0.5, np.random.default_rng(seed))
    expected = padded.forward(lengths=lengths, masks=masks)
    wanted = backward(expected.tape, padded.dy, padded.dh_n, padded.dc_n)
    for given_masks in (masks, [pack(mask) for mask in masks]):
        found = forward(
            spec,
            pack(padded.x),
            padded.h_0,
            padded.c_0,
            padded.weights,
            batch_sizes=batch_sizes,
            masks=given_masks,
        )
        assert_same([found.y, found.h_n], [pack(expected.y), expected.h_n], 0)
        g = backward(found.tape, pack(padded.dy), padded.dh_n, padded.dc_n)
        assert_same([g.x, g.h_0, *g.weights], [pack(wanted.x), wanted.h_0, *wanted.weights], 0)


@pytest.mark.parametrize("lengths", [None, (2, 5, 3)])
@pytest.mark.parametrize("mode", MODES)
def test_batch_first_is_the_transpose(mode: str, lengths: tuple[int, ...] | None) -> None:
    inputs = dense(small(mode, num_layers=2, bidirectional=True), steps=5)
    expected = inputs.forward(lengths=lengths)
    wanted = backward(expected.tape, inputs.dy, inputs.dh_n, inputs.dc_n)
    x, dy = (a.swapaxes(0, 1).copy() for a in (inputs.x, inputs.dy))
    found = forward(
        inputs.spec, x, inputs.h_0, inputs.c_0, inputs.weights, batch_first=True, lengths=lengths
    )
    g = backward(found.tape, dy, inputs.dh_n, inputs.dc_n)
    assert found.y.flags.c_contiguous
    assert g.x.flags.c_contiguous
    assert_same([found.y.swapaxes(0, 1), found.h_n], [expected.y, expected.h_n], 1e-14)
    assert_same([g.x.swapaxes(0, 1), *g.weights], [wanted.x, *wanted.weights])


def test_the_last_state_is_the_output_at_the_last_step_of_each_direction() -> None:
    inputs = dense(small("gru", bidirectional=True), steps=5)
    lengths = (3, 5, 1)
    result = inputs.forward(lengths=lengths)
    for row, length in enumerate(lengths):
        assert (result.h_n[0, row] == result.y[length - 1, row, :4]).all()
        assert (result.h_n[1, row] == result.y[0, row, 4:]).all()


# Dropout


def test_masks_are_zero_or_the_inverse_of_what_is_kept() -> None:
    spec = small("lstm", num_layers=3, bidirectional=True)
    masks = dropout_masks(spec, 50, 20, 0.25, np.random.default_rng(0))
    assert [mask.shape for mask in masks] == [(50, 20, 8)] * 2
    assert set(np.unique(masks)) == {0.0, 1 / 0.75}
    assert np.mean(masks[0] == 0) == pytest.approx(0.25, abs=0.02)
    assert (masks[0] != masks[1]).any()
    again = dropout_masks(spec, 50, 20, 0.25, np.random.default_rng(0))
    assert_same(again, masks, 0)


@pytest.mark.parametrize(("dropout", "value"), [(0.0, 1.0), (1.0, 0.0)])
def test_masks_at_the_ends(dropout: float, value: float) -> None:
    (mask,) = dropout_masks(small("gru", num_layers=2), 2, 2, dropout, np.random.default_rng(0))
    assert (mask == value).all()


def test_masks_act_on_what_the_next_layer_reads() -> None:
    spec = small("rnn_tanh", num_layers=2)
    inputs = dense(spec)
    zero = inputs.forward(dropout=1.0, masks=[np.zeros((4, 3, 4))])
    plain = inputs.forward()
    # The second layer sees zeros: what it gives no longer depends on the first one's input.
    other = forward(spec, -inputs.x, inputs.h_0, None, inputs.weights, masks=[np.zeros((4, 3, 4))])
    assert_same([zero.y], [other.y], 0)
    assert (zero.y != plain.y).all()
    assert_same([zero.h_n[0]], [plain.h_n[0]], 0)


def test_dropout_needs_masks_and_as_many_as_there_are_gaps() -> None:
    inputs = dense(small("gru", num_layers=2))
    with pytest.raises(ValueError, match="masks must be given"):
        inputs.forward(dropout=0.5)
    with pytest.raises(ValueError, match="masks must be 1"):
        inputs.forward(dropout=0.5, masks=[])
    single = dense(small("gru"))
    assert_same([single.forward(dropout=0.5).y], [single.forward().y], 0)


# Clipping


def lstm_with_cell(c: float, **options: Any) -> Forward:
    """Run one step with all gates at zero: c_1 is half of the cell state c that it reads."""
    spec = RNNSpec(mode="lstm", input_size=1, hidden_size=1, bias=False, dtype="float64")
    weights = [np.zeros((4, 1)), np.zeros((4, 1))]
    return forward(spec, np.ones((1, 1, 1)), None, np.full((1, 1, 1), c), weights, **options)


@pytest.mark.parametrize(
    ("c", "c_n", "gradient"),
    [
        (0.4, 0.2, 0.5),
        (0.5, 0.25, 0.5),
        (3.0, 0.25, 0.0),  # the initial state is clipped
        (-3.0, 0.125, 0.0),
        (np.inf, 0.25, 0.0),
    ],
)
def test_the_initial_cell_is_clipped(c: float, c_n: float, gradient: float) -> None:
    result = lstm_with_cell(c, clip=(0.25, 0.5))
    assert result.c_n.item() == c_n
    assert backward(result.tape, dc_n=np.ones((1, 1, 1))).c_0.item() == gradient


def test_the_last_cell_is_clipped_for_the_output_and_returned_as_it_is() -> None:
    result = lstm_with_cell(0.4, clip=(0.25, 0.5))
    assert result.c_n.item() == 0.2
    assert result.h_n.item() == pytest.approx(0.5 * math.tanh(0.25), rel=1e-15)
    assert backward(result.tape, dh_n=np.ones((1, 1, 1))).c_0.item() == 0


def test_nan_in_a_clipped_cell() -> None:
    bounds = (-0.25, 0.5)
    kept = lstm_with_cell(np.nan, clip=bounds, clip_nan="propagate")
    assert np.isnan(kept.c_n.item())
    assert np.isnan(kept.h_n.item())
    replaced = lstm_with_cell(np.nan, clip=bounds, clip_nan="clip")
    assert replaced.c_n.item() == -0.125
    assert backward(replaced.tape, dc_n=np.ones((1, 1, 1))).c_0.item() == 0
    assert np.isnan(lstm_with_cell(np.nan, clip_nan="clip").c_n.item())


# NaN and infinity: values, without a warning


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", MODES)
def test_nan_stays_in_its_row_from_its_step_on(mode: str) -> None:
    inputs = dense(small(mode, num_layers=2))
    x = inputs.x.copy()
    x[2, 1, 0] = np.nan
    y = forward(inputs.spec, x, inputs.h_0, inputs.c_0, inputs.weights).y
    expected = np.zeros(y.shape, bool)
    expected[2:, 1] = True
    assert (np.isnan(y) == expected).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("mode", MODES)
def test_nothing_past_a_row_is_read(mode: str, value: float) -> None:
    projection = 2 if mode == "lstm" else 0
    spec = small(mode, num_layers=2, bidirectional=True, proj_size=projection)
    inputs, lengths = dense(spec), (3, 4, 1)
    past = np.arange(4)[:, None] >= np.array(lengths)
    masks = dropout_masks(spec, 4, 3, 0.5, np.random.default_rng(0))
    expected = inputs.forward(lengths=lengths, masks=masks)
    wanted = backward(expected.tape, inputs.dy, inputs.dh_n, inputs.dc_n)
    x, dy, mask = (np.where(past[..., None], value, a) for a in (inputs.x, inputs.dy, masks[0]))
    found = forward(spec, x, inputs.h_0, inputs.c_0, inputs.weights, lengths=lengths, masks=[mask])
    g = backward(found.tape, dy, inputs.dh_n, inputs.dc_n)
    assert_same([found.y, found.h_n], [expected.y, expected.h_n], 0)
    assert_same([g.x, g.h_0, *g.weights], [wanted.x, wanted.h_0, *wanted.weights], 0)


@pytest.mark.filterwarnings("error")
def test_a_row_that_ended_in_infinity_gives_finite_gradients_to_the_others() -> None:
    spec = RNNSpec(mode="rnn_relu", input_size=1, hidden_size=1, bias=False, dtype="float64")
    x = np.array([[[np.inf], [1.0]], [[0.0], [1.0]]])
    result = forward(spec, x, None, None, [np.ones((1, 1))] * 2, lengths=(1, 2))
    assert result.h_n.ravel().tolist() == [np.inf, 2.0]
    dy = np.array([[[0.0], [1.0]], [[0.0], [1.0]]])
    # The first row's state before its only step was 0, so its infinity is not in this gradient.
    assert backward(result.tape, dy).weights[1].item() == 1.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", ["w_hr is NaN", "dh_n is infinite", "w_ih is NaN"])
def test_steps_past_the_end_add_nothing_to_gradients_that_are_not_finite(case: str) -> None:
    spec = small("lstm", proj_size=2)
    inputs = dense(spec, steps=2, batch=1)
    weights, dh_n = list(inputs.weights), inputs.dh_n
    if case == "w_hr is NaN":
        weights[4] = np.full((2, 4), np.nan)
    elif case == "w_ih is NaN":
        weights[0] = np.full((16, 3), np.nan)
    else:
        dh_n = np.full((1, 1, 2), np.inf)
    initial = (inputs.h_0, inputs.c_0, weights)
    padded = forward(spec, inputs.x, *initial, lengths=(1,))
    alone = forward(spec, inputs.x[:1], *initial)
    found = backward(padded.tape, inputs.dy, dh_n, inputs.dc_n)
    expected = backward(alone.tape, inputs.dy[:1], dh_n, inputs.dc_n)
    assert_same(found.weights, expected.weights)
    assert_same([found.x[:1], found.h_0, found.c_0], [expected.x, expected.h_0, expected.c_0])
    assert not padded.y[1].any()
    assert not found.x[1].any()


@pytest.mark.filterwarnings("error")
def test_an_infinite_input_saturates_the_gates() -> None:
    spec = RNNSpec(mode="lstm", input_size=1, hidden_size=1, bias=False, dtype="float64")
    weights = [np.ones((4, 1)), np.zeros((4, 1))]
    result = forward(spec, np.full((1, 1, 1), np.inf), None, None, weights)
    assert result.c_n.item() == 1
    assert result.h_n.item() == math.tanh(1)


# Dtypes


def half_types() -> list[Any]:
    return [(np.dtype(np.float16), 2**-11), (np.dtype(ml_dtypes.bfloat16), 2**-8)]


@pytest.mark.parametrize("which", [0, 1], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("mode", MODES)
def test_half_precision_is_the_rounded_result(mode: str, which: int) -> None:
    dtype, rounding = half_types()[which]
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=4, num_layers=2, dtype=dtype.name)
    inputs = dense(spec)
    arrays = [inputs.x, inputs.h_0, inputs.c_0]
    half = [None if a is None else a.astype(dtype) for a in arrays]
    weights = [w.astype(dtype) for w in inputs.weights]
    dy = inputs.dy.astype(dtype)
    found = forward(spec, *half, weights)
    expected = forward(
        spec,
        *(None if a is None else a.astype(np.float64) for a in half),
        [w.astype(np.float64) for w in weights],
    )
    g, wanted = backward(found.tape, dy), backward(expected.tape, dy.astype(np.float64))
    pairs = [(found.y, expected.y), (found.h_n, expected.h_n), (g.x, wanted.x)]
    pairs += [(g.h_0, wanted.h_0), *zip(g.weights, wanted.weights, strict=True)]
    if spec.has_cell:
        pairs += [(found.c_n, expected.c_n), (g.c_0, wanted.c_0)]
    for a, b in pairs:
        assert a.dtype == dtype
        # One rounding to the dtype, plus the error of the float32 computation before it.
        error = abs(a.astype(np.float64) - b)
        assert (error <= rounding * abs(b) * 1.01 + 1e-5).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mode", MODES)
def test_results_have_the_dtype_of_x(mode: str, dtype: type) -> None:
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=4, num_layers=2, bidirectional=True)
    inputs = dense(spec)
    masks = dropout_masks(spec, 4, 3, 0.5, np.random.default_rng(0))
    clip = (-1.0, 1.0) if mode == "lstm" else None
    result = forward(
        spec,
        inputs.x.astype(dtype),
        None,
        None,
        [w.astype(dtype) for w in inputs.weights],
        lengths=(2, 4, 1),
        masks=masks,
        clip=clip,
    )
    g = backward(result.tape, inputs.dy.astype(dtype))
    found = [result.y, result.h_n, result.c_n, g.x, g.h_0, g.c_0, *g.weights]
    assert {a.dtype for a in found if a is not None} == {np.dtype(dtype)}
    kept = [a for passes in result.tape.layers for one in passes for s in one.saved for a in s]
    assert {a.dtype for a in kept if a is not None} <= {np.dtype(dtype), np.dtype(bool)}
