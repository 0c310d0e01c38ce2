"""Resets in the NumPy reference: a row of episodes is each episode on its own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnffi.reference.rnn import Forward, backward, dropout_masks, forward
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import lengths_to_batch_sizes

MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
STEPS, BATCH = 6, 3
EPSILON = 1e-6


class Drawn:
    """A network with two layers, its arrays, and a row of the state of resets for each row."""

    def __init__(self, mode: str, *, both: bool, proj_size: int = 0, seed: int = 0) -> None:
        self.spec = RNNSpec(
            mode=mode,  # type: ignore[arg-type]
            input_size=2,
            hidden_size=3,
            num_layers=2,
            bidirectional=both,
            proj_size=proj_size,
            dtype="float64",
        )
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=self.spec.x_shape(STEPS, BATCH))
        self.states, self.reset_to = (
            (
                rng.normal(size=self.spec.h_shape(BATCH)),
                rng.normal(size=self.spec.c_shape(BATCH)) if self.spec.has_cell else None,
            )
            for _ in range(2)
        )
        self.weights = [rng.normal(scale=0.6, size=p.shape) for p in self.spec.parameter_shapes()]
        self.dy = rng.normal(size=self.spec.y_shape(STEPS, BATCH))
        self.d_states = tuple(
            None if state is None else rng.normal(size=state.shape) for state in self.states
        )

    def forward(self, resets: Any, **options: Any) -> Forward:
        return forward(
            *(self.spec, self.x, *self.states, self.weights),
            resets=resets,
            reset_to=self.reset_to,
            **options,
        )

    def episodes(self, resets: np.ndarray, lengths: list[int]) -> tuple[np.ndarray, list[Any]]:
        """Return y and the last states of a call for each episode of each row."""
        directions = self.spec.num_directions
        y = np.zeros(self.spec.y_shape(STEPS, BATCH))
        ends = [None if state is None else np.zeros_like(state) for state in self.states]
        for row, length in enumerate(lengths):
            cuts = [t for t in range(length) if resets[t, row]]
            edges = [0, *(t for t in cuts if t > 0), length]
            for begin, end in pairwise(edges):
                begun, at_end = begin == 0 and 0 not in cuts, end == length
                given = [
                    None if first is None else np.stack([
                        (first if (at_end if k % directions else begun) else later)[k, row]
                        for k in range(len(first))
                    ])[:, None]
                    for first, later in zip(self.states, self.reset_to, strict=True)
                ]  # fmt: skip
                x = self.x[begin:end, row : row + 1]
                found = forward(self.spec, x, *given, self.weights, training=False)
                y[begin:end, row] = found.y[:, 0]
                for state, ended in zip((found.h_n, found.c_n), ends, strict=True):
                    for k in range(0 if state is None else len(state)):
                        if begin == 0 if k % directions else at_end:
                            ended[k, row] = state[k, 0]
        return y, ends


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_rows_of_episodes_are_the_episodes_on_their_own(data: Any) -> None:
    mode, both = data.draw(st.sampled_from(MODES)), data.draw(st.booleans())
    proj_size = data.draw(st.sampled_from([0, 2])) if mode == "lstm" else 0
    drawn = Drawn(mode, both=both, proj_size=proj_size, seed=data.draw(st.integers(0, 99)))
    row = st.lists(st.booleans(), min_size=STEPS, max_size=STEPS)
    resets = np.array(data.draw(st.lists(row, min_size=BATCH, max_size=BATCH))).T
    lengths = data.draw(st.lists(st.integers(1, STEPS), min_size=BATCH, max_size=BATCH))
    training = data.draw(st.booleans())
    found = drawn.forward(resets, lengths=lengths, training=training)
    y, (h_n, c_n) = drawn.episodes(resets, lengths)
    np.testing.assert_allclose(found.y, y, atol=1e-12)
    np.testing.assert_allclose(found.h_n, h_n, atol=1e-12)
    if c_n is not None:
        np.testing.assert_allclose(found.c_n, c_n, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("both", [False, True])
def test_gradients_are_those_of_finite_differences(mode: str, both: bool) -> None:
    """Along a drawn direction of x, the states, those of resets, and the weights at once."""
    drawn = Drawn(mode, both=both, proj_size=2 if mode == "lstm" else 0)
    resets = np.array([[0, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0]])
    lengths = [STEPS, STEPS - 1, STEPS - 2]
    found = drawn.forward(resets, lengths=lengths)
    gradients = backward(found.tape, drawn.dy, *drawn.d_states)
    assert gradients.reset_to is not None
    arrays = [drawn.x, *drawn.states, *drawn.reset_to, *drawn.weights]
    each = [gradients.x, gradients.h_0, gradients.c_0, *gradients.reset_to, *gradients.weights]
    rng = np.random.default_rng(1)
    along = [None if a is None else rng.normal(size=a.shape) for a in arrays]

    def loss(sign: int) -> float:
        x, h_0, c_0, reset_h, reset_c, *weights = (
            None if a is None else a + sign * EPSILON * v
            for a, v in zip(arrays, along, strict=True)
        )
        result = forward(
            *(drawn.spec, x, h_0, c_0, weights),
            lengths=lengths,
            resets=resets,
            reset_to=(reset_h, reset_c),
            training=False,
        )
        pairs = zip((drawn.dy, *drawn.d_states), (result.y, result.h_n, result.c_n), strict=True)
        return sum(float((d * a).sum()) for d, a in pairs if a is not None)

    expected = (loss(1) - loss(-1)) / (2 * EPSILON)
    slope = sum(float((g * v).sum()) for g, v in zip(each, along, strict=True) if v is not None)
    assert slope == pytest.approx(expected, rel=1e-6)


def test_no_reset_changes_nothing() -> None:
    drawn = Drawn("lstm", both=True)
    plain = forward(drawn.spec, drawn.x, *drawn.states, drawn.weights)
    found = drawn.forward(np.zeros((STEPS, BATCH), bool))
    for expected, array in zip(plain[:3], found[:3], strict=True):
        np.testing.assert_array_equal(expected, array)


def test_one_row_of_zeros_is_the_state_of_resets_unless_another_is_given() -> None:
    drawn = Drawn("lstm", both=True)
    arguments = drawn.spec, drawn.x, *drawn.states, drawn.weights
    resets = np.eye(STEPS, BATCH, dtype=bool)
    zeros = tuple(np.zeros((len(state), 1, state.shape[2])) for state in drawn.states)
    np.testing.assert_array_equal(
        forward(*arguments, resets=resets).y,
        forward(*arguments, resets=resets, reset_to=zeros).y,
    )


def test_resets_have_the_layout_of_x() -> None:
    drawn, lengths = Drawn("gru", both=True), [STEPS, 4, 2]
    resets = np.random.default_rng(3).random((STEPS, BATCH)) < 0.4
    expected = drawn.forward(resets, lengths=lengths)
    rest = *drawn.states, drawn.weights
    options: dict[str, Any] = {"reset_to": drawn.reset_to}
    by_row = forward(
        *(drawn.spec, drawn.x.swapaxes(0, 1), *rest),
        batch_first=True,
        lengths=lengths,
        resets=resets.T,
        **options,
    )
    np.testing.assert_array_equal(by_row.y.swapaxes(0, 1), expected.y)
    is_there = np.arange(STEPS)[:, None] < np.array(lengths)
    packed = forward(
        *(drawn.spec, drawn.x[is_there], *rest),
        batch_sizes=lengths_to_batch_sizes(lengths),
        resets=resets[is_there],
        **options,
    )
    np.testing.assert_array_equal(packed.y, expected.y[is_there])
    np.testing.assert_array_equal(packed.h_n, expected.h_n)


def test_nan_before_a_border_reaches_neither_results_nor_gradients_behind_it() -> None:
    drawn = Drawn("lstm", both=False)
    drawn.x[1] = np.nan
    resets = np.zeros((STEPS, BATCH), bool)
    resets[2] = True
    found = drawn.forward(resets)
    assert np.isnan(found.y[1]).all()
    assert np.isfinite(found.y[2:]).all()
    dy = np.where(np.arange(STEPS)[:, None, None] < 2, 0, drawn.dy)
    assert np.isfinite(backward(found.tape, dy).x[2:]).all()


def test_masks_of_dropout_are_those_of_the_step() -> None:
    drawn = Drawn("rnn_tanh", both=False)
    masks = dropout_masks(drawn.spec, STEPS, BATCH, 0.5, np.random.default_rng(0))
    resets = np.zeros((STEPS, BATCH), bool)
    resets[STEPS - 1] = True
    plain = forward(drawn.spec, drawn.x, *drawn.states, drawn.weights, masks=masks)
    found = drawn.forward(resets, masks=masks)
    np.testing.assert_array_equal(plain.y[:-1], found.y[:-1])
    assert (plain.y[-1] != found.y[-1]).any()
