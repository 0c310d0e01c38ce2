"""Strategies for networks, their problems and lengths, and arrays for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from math import prod
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from dnnffi.device.dtypes import dtype_object
from dnnffi.spec.checks import check_choice, check_problem, check_range
from dnnffi.spec.names import DType, Mode
from dnnffi.spec.options import ALGORITHMS, CLIP_NANS, MATHS, rnn_options
from dnnffi.spec.problem import BATCH_MAJOR, PACKED, SEQUENCE_MAJOR, RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import lengths_to_batch_sizes
from dnnffi.testing.draw import DTYPES, check_strategy, either, names_among

# Hypothesis shrinks towards the first of each, so the plainest comes first.
MODES: tuple[Mode, ...] = ("rnn_tanh", "rnn_relu", "gru", "lstm")
LAYOUTS = (SEQUENCE_MAJOR, BATCH_MAJOR, PACKED)

_HostArray = np.ndarray[Any, Any]


@st.composite
def specs(
    draw: st.DrawFn,
    *,
    modes: Sequence[Mode] = MODES,
    dtypes: Sequence[DType] = DTYPES,
    max_size: int = 9,
    max_layers: int = 3,
    bidirectional: bool | None = None,
    bias: bool | None = None,
    projection: bool | None = None,
) -> RNNSpec:
    """Draw networks. A parameter that is None draws both True and False.

    Parameters
    ----------
    modes, dtypes : the values to draw from; arrays of bfloat16 need the package ml_dtypes
    max_size : largest I and H; a projection needs 2 or more
    max_layers : largest L
    bidirectional : whether the network has two directions
    bias : whether the network has biases
    projection : whether the network has a projection (P < H); True draws only LSTMs
    """
    modes, dtypes = names_among("modes", modes, MODES), names_among("dtypes", dtypes, DTYPES)
    if projection and ("lstm" not in modes or max_size < 2):
        raise ValueError("projection=True needs 'lstm' among modes and a max_size of 2 or more")
    mode: Mode = draw(st.sampled_from(["lstm"] if projection else modes))
    if projection is None:
        projected = mode == "lstm" and max_size > 1 and draw(st.booleans())
    else:
        projected = projection
    hidden_size = draw(st.integers(2 if projected else 1, max_size))
    return RNNSpec(
        mode=mode,
        input_size=draw(st.integers(1, max_size)),
        hidden_size=hidden_size,
        num_layers=draw(st.integers(1, max_layers)),
        bidirectional=draw(either(bidirectional)),
        bias=draw(either(bias)),
        proj_size=draw(st.integers(1, hidden_size - 1)) if projected else 0,
        dtype=draw(st.sampled_from(dtypes)),
    )


def lengths(steps: int, batch: int, shortest: int = 1) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw a length for each row, in any order, from ``shortest`` (0 or 1) to ``steps``.

    Perhaps all are shorter.
    """
    check_range("shortest", shortest, 0, 1)
    return st.lists(st.integers(shortest, steps), min_size=batch, max_size=batch).map(tuple)


def batch_sizes(max_steps: int = 6, max_batch: int = 5) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw the number of rows at each step of packed sequences, which never rises."""
    rows = st.lists(st.integers(1, max_steps), min_size=1, max_size=max_batch)
    return rows.map(lengths_to_batch_sizes)


@st.composite
def resets(draw: st.DrawFn, problem: RNNProblem) -> dict[str, Any]:
    """Draw where states are replaced and by what: ``resets`` and ``reset_to`` of a call.

    They add to `keywords`. Flags are drawn at first steps, last ones and past a row's length, too;
    states are None, one row for all, or one for each.

    Examples
    --------
    >>> from hypothesis import find
    >>> import dnnffi
    >>> from dnnffi import testing
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
    >>> problem = dnnffi.RNNProblem.dense(spec, steps=5, batch=2, batch_first=True)
    >>> found = find(testing.resets(problem), lambda more: more["resets"].any())
    >>> found["resets"].shape, found["reset_to"] is None
    ((2, 5), True)
    """
    check_problem(problem, RNNProblem, "RNNProblem.dense(spec, steps=..., batch=...)")
    spec, shape = problem.spec, problem.leading_shape
    count = prod(shape)
    flags = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    rows = draw(st.sampled_from([0, 1, problem.batch]))
    reset_to: Any = None
    if rows:
        random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        dtype = dtype_object(spec.dtype)
        shapes = (spec.h_shape(rows), spec.c_shape(rows)) if spec.has_cell else [spec.h_shape(rows)]
        states = tuple(random.standard_normal(one).astype(dtype) for one in shapes)
        reset_to = states if spec.has_cell else states[0]
    return {"resets": np.array(flags, bool).reshape(shape), "reset_to": reset_to}


@st.composite
def options(
    draw: st.DrawFn, mode: str, *, algorithms: Sequence[str] = ("auto", "standard")
) -> dict[str, Any]:
    """Draw ``options`` of a call of ``mode``: algorithm, math, clipping of an LSTM.

    Any key may be missing. The persistent algorithms can run only some problems, so they are drawn
    only if ``algorithms`` names them.
    """
    check_choice("mode", mode, MODES)
    choices: dict[str, st.SearchStrategy[Any]] = {
        "algorithm": st.sampled_from(names_among("algorithms", algorithms, ALGORITHMS)),
        "math": st.sampled_from(MATHS),
    }
    if mode == "lstm":
        # Narrow enough that cells of random networks reach the bounds.
        choices["clip"] = st.none() | st.tuples(
            st.floats(-1, 0, width=16), st.floats(0, 1, width=16)
        )
        choices["clip_nan"] = st.sampled_from(CLIP_NANS)
    return draw(st.fixed_dictionaries({}, optional=choices))


@st.composite
def problems(
    draw: st.DrawFn,
    networks: st.SearchStrategy[RNNSpec] | None = None,
    *,
    layouts: Sequence[str] = LAYOUTS,
    max_steps: int = 6,
    max_batch: int = 5,
    padded: bool | None = None,
    shortest: int = 1,
    training: bool | None = None,
    dropout: float = 0.0,
    with_options: bool = False,
) -> RNNProblem:
    """Draw problems: a network, its sequences, and inference or training.

    Parameters
    ----------
    networks : a strategy; None for all of `specs`
    layouts : the values to draw from: "sequence_major", "batch_major" and "packed"
    max_steps, max_batch : largest T and B
    padded : whether dense problems have ``lengths``; None draws both
    shortest : the least length of a row of a dense problem, 0 or 1
    training : whether the problems are for training; None draws both
    dropout : probability of dropout in problems for training
    with_options : whether to draw `options` too, instead of the defaults
    """
    layouts = names_among("layouts", layouts, LAYOUTS)
    check_strategy("networks", networks, RNNSpec, "st.just(spec)")
    spec = draw(specs() if networks is None else networks)
    trains = draw(either(training))
    common: dict[str, Any] = {"training": trains, "dropout": dropout if trains else 0.0}
    if with_options:
        common["options"] = rnn_options(draw(options(spec.mode)), spec.mode)
    layout = draw(st.sampled_from(layouts))
    if layout == PACKED:
        return RNNProblem.packed(spec, draw(batch_sizes(max_steps, max_batch)), **common)
    steps, batch = draw(st.integers(1, max_steps)), draw(st.integers(1, max_batch))
    return RNNProblem.dense(
        spec,
        steps=steps,
        batch=batch,
        batch_first=layout == BATCH_MAJOR,
        lengths=draw(lengths(steps, batch, shortest)) if draw(either(padded)) else None,
        **common,
    )


class Inputs(NamedTuple):
    """NumPy arrays for a problem, in the spec's dtype; ``c_0`` and ``dc_n`` None without a cell.

    x [T, B, I] in the problem's layout; h_0, dh_n [L*D, B, O]; c_0, dc_n [L*D, B, H]; weights in
    PyTorch's order; dy of the shape of y.
    """

    x: _HostArray
    h_0: _HostArray
    c_0: _HostArray | None
    weights: list[_HostArray]
    dy: _HostArray
    dh_n: _HostArray
    dc_n: _HostArray | None

    @property
    def hx(self) -> Any:
        """The states as functions take them: (h_0, c_0) of an LSTM, else h_0."""
        return self.h_0 if self.c_0 is None else (self.h_0, self.c_0)

    @property
    def dhx(self) -> Any:
        """The gradients of the last states as ``ctx.backward`` takes them."""
        return self.dh_n if self.dc_n is None else (self.dh_n, self.dc_n)


def weights(spec: RNNSpec, seed: int) -> list[_HostArray]:
    """Return weights in PyTorch's order, uniform in [-1/sqrt(H), 1/sqrt(H)] as in ``torch.nn``.

    The same seed gives the same numbers, rounded to the spec's dtype.
    """
    random = np.random.default_rng(seed)
    bound = spec.hidden_size**-0.5
    dtype = dtype_object(spec.dtype)
    shapes = [parameter.shape for parameter in spec.parameter_shapes()]
    return [random.uniform(-bound, bound, shape).astype(dtype) for shape in shapes]


def inputs(problem: RNNProblem, seed: int) -> Inputs:
    """Return normally distributed arrays for a problem; the weights are those of `weights`.

    x and dy are not zero past a row's length, where no backend may read. The same seed gives the
    same numbers, rounded to the spec's dtype.
    """
    check_problem(problem, RNNProblem, "RNNProblem.dense(spec, steps=..., batch=...)")
    spec = problem.spec
    # A stream on which the weights were not used.
    random = np.random.default_rng((seed, 1))
    dtype = dtype_object(spec.dtype)

    def normal(shape: tuple[int, ...]) -> _HostArray:
        return random.standard_normal(shape).astype(dtype)

    return Inputs(
        x=normal(problem.x_shape),
        h_0=normal(problem.h_shape),
        c_0=normal(problem.c_shape) if spec.has_cell else None,
        weights=weights(spec, seed),
        dy=normal(problem.y_shape),
        dh_n=normal(problem.h_shape),
        dc_n=normal(problem.c_shape) if spec.has_cell else None,
    )


def keywords(problem: RNNProblem, function: Callable[..., Any] | None = None) -> dict[str, Any]:
    """Return the keywords with which a function runs a problem on separate weight arrays.

    Parameters
    ----------
    problem : the problem to run
    function : the function that gets the keywords: `dnnffi.lstm_forward` for instance, or your
        own. ``dropout`` is among them if the function has this parameter, as those for training
        have. With None it is left out, because functions for inference refuse it

    Examples
    --------
    >>> import dnnffi
    >>> from dnnffi import testing
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2)
    >>> problem = dnnffi.RNNProblem.dense(spec, steps=5, batch=2, training=True, dropout=0.5)
    >>> "dropout" in testing.keywords(problem, dnnffi.gru)
    False
    >>> testing.keywords(problem, dnnffi.gru_forward)["dropout"]
    0.5
    """
    check_problem(problem, RNNProblem, "RNNProblem.dense(spec, steps=..., batch=...)")
    spec = problem.spec
    result: dict[str, Any] = {
        "num_layers": spec.num_layers,
        "bidirectional": spec.bidirectional,
        "options": problem.options._asdict(),
    }
    if problem.layout == PACKED:
        lengths = problem.row_lengths
        result["batch_sizes"] = lengths_to_batch_sizes(lengths) if lengths else (0,) * problem.steps
    else:
        result["batch_first"] = problem.layout == BATCH_MAJOR
        result["lengths"] = problem.lengths
    if function is not None and "dropout" in signature(function).parameters:
        result["dropout"] = problem.dropout
    return result
