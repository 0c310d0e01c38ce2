"""The functional API with NumPy arrays: what it hands to the reference, and what it returns."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import dnnffi
from dnnffi import DropoutState, RNNProblem, RNNSpec, RNNWeights, testing
from dnnffi.execution.comparison import relative_deviation
from dnnffi.reference import rnn as reference
from dnnffi.rnn.backend import ReferenceRNNBackend, rnn_backends
from dnnffi.rnn.reference_plan import HostGenerator, ReferenceRNNPlan
from dnnffi.spec.problem import BATCH_MAJOR, PACKED
from dnnffi.spec.sequences import lengths_to_batch_sizes

MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
seeds = st.integers(0, 2**32 - 1)


def network(mode="lstm", **fields):
    defaults = {"input_size": 3, "hidden_size": 5, "dtype": "float64"}
    return RNNSpec(mode=mode, **{**defaults, **fields})


def direct(problem, a, masks=None):
    """The reference itself, without the functional API."""
    packed = problem.layout == PACKED
    return reference.forward(
        problem.spec,
        a.x,
        a.h_0,
        a.c_0,
        a.weights,
        batch_first=problem.layout == BATCH_MAJOR,
        lengths=None if packed else problem.lengths,
        batch_sizes=lengths_to_batch_sizes(problem.row_lengths) if packed else None,
        masks=masks,
        clip=problem.options.clip,
        clip_nan=problem.options.clip_nan,
    )


def infer(problem, a, **changes):
    """(y, h_n, c_n) of the inference function."""
    arguments = {"x": a.x, "hx": a.hx, "weights": a.weights, **changes}
    x, hx, weights = (arguments.pop(name) for name in ("x", "hx", "weights"))
    keywords = testing.keywords(problem) | arguments
    y, state = getattr(dnnffi, problem.spec.mode)(x, hx, weights, **keywords)
    return (y, *state) if problem.spec.has_cell else (y, state, None)


def train(problem, a, **changes):
    """(y, h_n, c_n, ctx) of the training function."""
    arguments = {"x": a.x, "hx": a.hx, "weights": a.weights, **changes}
    x, hx, weights = (arguments.pop(name) for name in ("x", "hx", "weights"))
    function = getattr(dnnffi, f"{problem.spec.mode}_forward")
    y, state, ctx = function(x, hx, weights, **(testing.keywords(problem, function) | arguments))
    return (y, *state, ctx) if problem.spec.has_cell else (y, state, None, ctx)


def example(mode="lstm", seed=0, *, training=True, **fields):
    """A small problem with rows that end early, and its arrays."""
    spec = network(mode, **fields)
    problem = RNNProblem.dense(spec, steps=4, batch=3, lengths=(2, 4, 1), training=training)
    return problem, testing.inputs(problem, seed)


def flatten(gradients):
    """Return all arrays of a `Gradients`, None for each that it lacks."""
    hx = gradients.hx if isinstance(gradients.hx, tuple) else (gradients.hx,)
    weights = gradients.weights
    if isinstance(weights, RNNWeights):
        weights = weights.arrays()
    return [gradients.x, *hx, *(weights or [None])]


def assert_same(found, expected):
    """Bit for bit, NaN included."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


# Results


@pytest.mark.parametrize("packed", [False, True], ids=["loose", "packed"])
@pytest.mark.parametrize("mode", MODES)
def test_what_is_not_said_is_one_layer_and_direction_with_time_first(mode, packed):
    spec = network(mode)
    a = testing.inputs(RNNProblem.dense(spec, steps=4, batch=3, training=True), 0)
    expected = reference.forward(spec, a.x, a.h_0, a.c_0, a.weights)
    weights = RNNWeights.pack(a.weights, spec) if packed else a.weights
    y, state = getattr(dnnffi, mode)(a.x, a.hx, weights)
    y_too, state_too, ctx = getattr(dnnffi, f"{mode}_forward")(a.x, a.hx, weights)
    states = [expected.h_n, expected.c_n] if spec.has_cell else [expected.h_n]
    for found in ([y, state], [y_too, state_too]):
        arrays = [found[0], *(found[1] if spec.has_cell else found[1:])]
        assert_same(arrays, [expected.y, *states])
    assert ctx.backward(a.dy).x.shape == a.x.shape


@given(testing.problems(with_options=True), seeds)
def test_results_are_the_references(problem, seed):
    a = testing.inputs(problem, seed)
    expected = direct(problem, a)
    results = [expected.y, expected.h_n, expected.c_n]
    assert_same(infer(problem, a), results)
    assert_same(train(problem, a)[:3], results)


@given(testing.problems(with_options=True, training=True), seeds)
def test_gradients_are_the_references(problem, seed):
    a = testing.inputs(problem, seed)
    *_, ctx = train(problem, a)
    expected = reference.backward(direct(problem, a).tape, a.dy, a.dh_n, a.dc_n)
    found = ctx.backward(a.dy, a.dhx)
    states = [expected.h_0, expected.c_0] if problem.spec.has_cell else [expected.h_0]
    assert_same(flatten(found), [expected.x, *states, *expected.weights])
    assert found.x.shape == problem.x_shape
    assert found.weights is not a.weights


@given(
    testing.problems(training=True),
    seeds,
    st.sampled_from(["cudnn", "miopen", "torch"]),
    st.booleans(),
)
def test_packed_weights_give_the_same(problem, seed, layout, named):
    assume(layout != "miopen" or not problem.spec.proj_size)
    a = testing.inputs(problem, seed)
    weights = RNNWeights.pack(a.weights, problem.spec, backend=layout)
    # They bring layers and directions with them; saying both again is right too.
    implied = {} if named else {"num_layers": 1, "bidirectional": False}
    assert_same(infer(problem, a, weights=weights, **implied), infer(problem, a))
    *results, ctx = train(problem, a, weights=weights, **implied)
    *expected, ctx_of_list = train(problem, a)
    assert_same(results, expected)
    grads, expected_grads = ctx.backward(a.dy, a.dhx), ctx_of_list.backward(a.dy, a.dhx)
    assert isinstance(expected_grads.weights, list)
    assert isinstance(grads.weights, RNNWeights)
    assert grads.weights.layout == weights.layout
    assert_same(flatten(grads), flatten(expected_grads))


@pytest.mark.parametrize("mode", MODES)
def test_the_three_layouts_agree(mode):
    spec = network(mode, num_layers=2, bidirectional=True)
    lengths = (4, 3, 3, 1)
    dense = RNNProblem.dense(spec, steps=4, batch=4, lengths=lengths, training=True)
    a = testing.inputs(dense, 0)
    active = np.arange(4)[:, None] < np.array(lengths)
    swapped = a._replace(x=a.x.swapaxes(0, 1).copy(), dy=a.dy.swapaxes(0, 1).copy())
    packed = a._replace(x=a.x[active], dy=a.dy[active])
    sizes = lengths_to_batch_sizes(lengths)
    others = [
        (
            RNNProblem.dense(
                spec, steps=4, batch=4, batch_first=True, lengths=lengths, training=True
            ),
            swapped,
        ),
        (RNNProblem.packed(spec, sizes, training=True), packed),
    ]
    *results, ctx = train(dense, a)
    grads = ctx.backward(a.dy, a.dhx)
    y, dx = ([r.swapaxes(0, 1), r[active]] for r in (results[0], grads.x))
    for k, (problem, arrays) in enumerate(others):
        *found, ctx = train(problem, arrays)
        found_grads = ctx.backward(arrays.dy, arrays.dhx)
        close = zip(
            [found[0], found_grads.x, found[1], *flatten(found_grads)[1:]],
            [y[k], dx[k], results[1], *flatten(grads)[1:]],
            strict=True,
        )
        for one, other in close:
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@given(testing.problems(padded=True, shortest=0, layouts=("sequence_major", "batch_major")), seeds)
def test_nothing_past_a_rows_length_is_read_and_zero_is_written(problem, seed):
    a = testing.inputs(problem, seed)
    past = np.arange(problem.steps)[:, None] >= np.array(problem.row_lengths)
    past = past.T if problem.layout == BATCH_MAJOR else past
    clean, dirty = (
        a._replace(x=np.where(past[..., None], fill, a.x), dy=np.where(past[..., None], fill, a.dy))
        for fill in (np.zeros((), a.x.dtype), np.full((), np.nan, a.x.dtype))
    )
    *results, ctx = train(problem, dirty)
    *expected, clean_ctx = train(problem, clean)
    assert_same(results, expected)
    grads = ctx.backward(dirty.dy, a.dhx)
    assert_same(flatten(grads), flatten(clean_ctx.backward(clean.dy, a.dhx)))
    assert not results[0][past].any()
    assert not grads.x[past].any()


@given(
    testing.problems(
        padded=True, shortest=0, training=True, layouts=("sequence_major", "batch_major")
    ),
    seeds,
)
def test_a_row_without_a_step_keeps_its_states(problem, seed):
    a = testing.inputs(problem, seed)
    rows = np.array(problem.row_lengths) == 0
    y, h_n, c_n, ctx = train(problem, a)
    grads = ctx.backward(a.dy, a.dhx)
    y, dx = (one if problem.layout == BATCH_MAJOR else one.swapaxes(0, 1) for one in (y, grads.x))
    assert not y[rows].any()
    assert not dx[rows].any()
    found = [h_n, c_n, *grads.hx] if problem.spec.has_cell else [h_n, grads.hx]
    expected = [a.h_0, a.c_0, *a.dhx] if problem.spec.has_cell else [a.h_0, a.dhx]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one[:, rows], other[:, rows])


@pytest.mark.parametrize("mode", MODES)
def test_missing_states_are_zero(mode):
    problem, a = example(mode, num_layers=2, bidirectional=True)
    zeros = (np.zeros_like(a.h_0), np.zeros_like(a.h_0))
    hx = zeros if mode == "lstm" else zeros[0]
    assert_same(infer(problem, a, hx=None), infer(problem, a, hx=hx))
    *_, ctx = train(problem, a, hx=None)
    *_, ctx_of_zeros = train(problem, a, hx=hx)
    grads, expected = ctx.backward(a.dy, a.dhx), ctx_of_zeros.backward(a.dy, a.dhx)
    assert grads.hx is None
    assert_same([grads.x, *grads.weights], [expected.x, *expected.weights])


@pytest.mark.parametrize("mode", MODES)
def test_a_pair_of_states_is_a_list_or_a_tuple(mode):
    problem, a = example(mode)
    hx = list(a.hx) if mode == "lstm" else a.hx
    dhx = list(a.dhx) if mode == "lstm" else a.dhx
    *results, ctx = train(problem, a, hx=hx)
    *expected, ctx_of_tuple = train(problem, a)
    assert_same(results, expected)
    assert_same(flatten(ctx.backward(a.dy, dhx)), flatten(ctx_of_tuple.backward(a.dy, a.dhx)))


def test_lengths_of_any_kind_of_integers():
    problem, a = example()
    expected = infer(problem, a)
    for lengths in (np.array([2, 4, 1]), [np.int8(2), 4, 1], iter((2, 4, 1))):
        assert_same(infer(problem, a, lengths=lengths), expected)
    assert_same(infer(problem, a, lengths=[4, 4, 4]), infer(problem, a, lengths=None))


def test_flags_of_numpy_are_bools():
    problem, a = example(bidirectional=True)
    swapped = a.x.swapaxes(0, 1).copy()
    flags = {"bidirectional": np.True_, "batch_first": np.True_, "num_layers": np.int64(1)}
    y = infer(problem, a, x=swapped, **flags)[0]
    np.testing.assert_array_equal(y.swapaxes(0, 1), infer(problem, a)[0])


# Arrays


@pytest.mark.parametrize("mode", MODES)
def test_strided_arrays_are_accepted(mode):
    problem, a = example(mode, num_layers=2)

    def strided(array):
        wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan)
        wide[..., ::2] = array
        return wide[..., ::2]

    b = testing.Inputs(
        *(
            [strided(w) for w in value]
            if isinstance(value, list)
            else None
            if value is None
            else strided(value)
            for value in a
        )
    )
    assert not b.x.flags.c_contiguous
    *results, ctx = train(problem, b)
    *expected, ctx_of_plain = train(problem, a)
    assert_same(results, expected)
    assert_same(flatten(ctx.backward(b.dy, b.dhx)), flatten(ctx_of_plain.backward(a.dy, a.dhx)))
    fortran = np.asfortranarray(a.x)
    assert_same(infer(problem, a, x=fortran), infer(problem, a))


class Exporter:
    """An array that has DLPack and nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **keywords):
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("mode", MODES)
def test_anything_with_dlpack_is_an_array(mode):
    problem, a = example(mode)

    def export(value):
        if isinstance(value, list | tuple):
            return type(value)(map(export, value))
        return Exporter(value)

    arrays = {"x": export(a.x), "hx": export(a.hx), "weights": export(a.weights)}
    assert_same(infer(problem, a, **arrays), infer(problem, a))
    *results, ctx = train(problem, a, **arrays)
    *expected, ctx_of_arrays = train(problem, a)
    assert_same(results, expected)
    grads = ctx.backward(export(a.dy), export(a.dhx))
    assert_same(flatten(grads), flatten(ctx_of_arrays.backward(a.dy, a.dhx)))


@pytest.mark.parametrize("mode", MODES)
def test_arguments_are_not_written_to(mode):
    problem, a = example(mode, num_layers=2, bidirectional=True)
    for array in (a.x, a.h_0, a.c_0, a.dy, a.dh_n, a.dc_n, *a.weights):
        if array is not None:
            array.flags.writeable = False
    *_, ctx = train(problem, a)
    ctx.backward(a.dy, a.dhx, retain=True)
    ctx.backward(a.dy, a.dhx)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", MODES)
def test_nan_and_infinity_pass_as_in_the_reference(mode, value):
    problem, a = example(mode, num_layers=2, bidirectional=True)
    a.x[0, 1, 2] = a.h_0[0, 2, 1] = a.dy[1, 1, 0] = value
    expected = direct(problem, a)
    *results, ctx = train(problem, a)
    assert_same(results, [expected.y, expected.h_n, expected.c_n])
    grads = ctx.backward(a.dy, a.dhx)
    expected_grads = reference.backward(expected.tape, a.dy, a.dh_n, a.dc_n)
    assert_same([grads.x, *grads.weights], [expected_grads.x, *expected_grads.weights])
    assert np.isnan(expected_grads.x).any()


def test_the_backend_may_be_named():
    problem, a = example()
    assert_same(infer(problem, a, backend="reference"), infer(problem, a))


def test_options_reach_the_reference():
    problem, a = example()
    low, high = -0.05, 0.1
    y, *_ = infer(problem, a)
    assert y.min() < np.tanh(low)
    assert y.max() > np.tanh(high)
    y, *_ = infer(problem, a, options={"clip": (low, high)})
    assert np.tanh(low) <= y.min() < 0 < y.max() <= np.tanh(high)


@pytest.mark.parametrize(("clip_nan", "passes"), [("propagate", True), ("clip", False)])
def test_clipping_takes_nan_away_where_asked(clip_nan, passes):
    problem, a = example()
    a.c_0[0, 0, 0] = np.nan
    options = {"clip": (-1, 1), "clip_nan": clip_nan}
    y, *_ = infer(problem, a, options=options)
    assert np.isnan(y).any() == passes


def test_a_bad_call_after_a_good_one_is_still_refused():
    # The second finds the plan of the first.
    problem, a = example()
    infer(problem, a)
    with pytest.raises(TypeError, match=r"^x must have the dtype of the weights, float64"):
        infer(problem, a, x=a.x.astype("float32"))


# Backward


NAMES = ("x", "hx", "weights")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "need", [(), ("x",), ("hx",), ("weights",), ["weights", "x"], {"hx"}], ids=str
)
def test_only_what_is_needed_is_computed(mode, need):
    problem, a = example(mode)
    *_, ctx = train(problem, a)
    every = ctx.backward(a.dy, a.dhx, retain=True)
    grads = ctx.backward(a.dy, a.dhx, need=need)
    for name in NAMES:
        found = getattr(grads, name)
        assert (found is not None) == (name in need)
    wanted = every._replace(**{name: None for name in NAMES if name not in need})
    present = [array for array in flatten(wanted) if array is not None]
    assert_same([array for array in flatten(grads) if array is not None], present)


@pytest.mark.parametrize("name", NAMES)
def test_one_name_is_a_need(name):
    problem, a = example()
    *_, ctx = train(problem, a)
    grads = ctx.backward(a.dy, need=name)
    assert [n for n in NAMES if getattr(grads, n) is not None] == [name]


def test_gradients_have_the_structure_of_the_arguments():
    problem, a = example("lstm", num_layers=2, proj_size=2)
    grads = train(problem, a)[-1].backward(a.dy)
    assert isinstance(grads, dnnffi.Gradients)
    assert isinstance(grads.hx, tuple)
    assert [g.shape for g in grads.hx] == [a.h_0.shape, a.c_0.shape]
    assert [g.shape for g in grads.weights] == [w.shape for w in a.weights]
    problem, a = example("gru")
    grads = train(problem, a)[-1].backward(a.dy)
    assert grads.hx.shape == a.h_0.shape


@pytest.mark.parametrize("mode", MODES)
def test_missing_gradients_of_the_results_are_zero(mode):
    problem, a = example(mode, num_layers=2)
    zero = a._replace(
        dy=np.zeros_like(a.dy),
        dh_n=np.zeros_like(a.dh_n),
        dc_n=None if a.dc_n is None else np.zeros_like(a.dc_n),
    )
    *_, ctx = train(problem, a)

    def backward(*arguments):
        return flatten(ctx.backward(*arguments, retain=True))

    assert_same(backward(a.dy), backward(a.dy, zero.dhx))
    assert_same(backward(None, a.dhx), backward(zero.dy, a.dhx))
    if mode == "lstm":
        assert_same(backward(None, (a.dh_n, None)), backward(zero.dy, (a.dh_n, zero.dc_n)))
        assert_same(backward(None, (None, a.dc_n)), backward(zero.dy, (zero.dh_n, a.dc_n)))
        assert_same(backward(a.dy, (None, None)), backward(a.dy))


def test_a_context_shows_its_network_its_arrays_and_whether_it_is_spent():
    spec = network(num_layers=2, bidirectional=True)
    x, weights = np.ones((5, 2, 3)), testing.weights(spec, 0)
    y, _, ctx = dnnffi.lstm_forward(x, None, weights, num_layers=2, bidirectional=True)
    text = (
        "<RNNContext of lstm: x [5, 2, 3], y [5, 2, 10], hidden 5, 2 layers, bidirectional, "
        "float64, reference, {}>"
    )
    assert repr(ctx) == text.format("ready for backward")
    ctx.backward(y)
    assert repr(ctx) == text.format("spent by backward")


def test_a_second_backward_is_an_error_that_says_so():
    problem, a = example()
    *_, ctx = train(problem, a)
    ctx.backward(a.dy)
    for _ in range(2):
        with pytest.raises(dnnffi.ContextError, match=r"already called .*retain=True"):
            ctx.backward(a.dy)


def test_a_backward_that_failed_can_be_called_again(monkeypatch):
    problem, a = example()
    *_, ctx = train(problem, a)
    expected = flatten(ctx.backward(a.dy, a.dhx, retain=True))
    with monkeypatch.context() as patched:
        patched.setattr(reference, "backward", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            ctx.backward(a.dy, a.dhx)
    assert_same(flatten(ctx.backward(a.dy, a.dhx)), expected)


def test_retain_allows_another():
    problem, a = example()
    *_, ctx = train(problem, a)
    first, second, last = (
        flatten(ctx.backward(a.dy, a.dhx, retain=retain)) for retain in (True, True, False)
    )
    assert_same(second, first)
    assert_same(last, first)
    with pytest.raises(dnnffi.ContextError, match="retain=True"):
        ctx.backward(a.dy, a.dhx)


def test_gradients_are_linear_in_what_comes_in():
    problem, a = example(num_layers=2, bidirectional=True)
    *_, ctx = train(problem, a)
    whole = flatten(ctx.backward(a.dy, a.dhx, retain=True))
    parts = [flatten(ctx.backward(*part, retain=True)) for part in ((a.dy,), (None, a.dhx))]
    for one, first, second in zip(whole, *parts, strict=True):
        np.testing.assert_allclose(one, first + second, rtol=1e-12, atol=1e-12)


def test_contexts_are_independent():
    problem, a = example()
    b = testing.inputs(problem, 1)
    *_, ctx = train(problem, a)
    *_, other = train(problem, b)
    expected = flatten(other.backward(b.dy, b.dhx, retain=True))
    ctx.backward(a.dy, a.dhx)
    assert_same(flatten(other.backward(b.dy, b.dhx)), expected)


def test_a_refused_backward_spends_nothing():
    problem, a = example()
    *_, ctx = train(problem, a)
    with pytest.raises(ValueError, match=r"^dy must have shape"):
        ctx.backward(a.dy[1:])
    ctx.backward(a.dy)


# Empty batches


@pytest.fixture
def asked(monkeypatch):
    """The problems for which the reference is asked for a plan."""
    found = []
    monkeypatch.setattr(
        ReferenceRNNBackend, "plan", lambda self, problem, *_: found.append(problem)
    )
    rnn_backends.of("reference").plans.clear()
    yield found
    rnn_backends.of("reference").plans.clear()


def empty(mode, layout="sequence_major", **fields):
    """A problem of an empty batch that trains, and its arrays."""
    spec = network(mode, **fields)
    if layout == PACKED:
        problem = RNNProblem.packed(spec, (0, 0, 0), training=True)
    else:
        problem = RNNProblem.dense(
            spec, steps=3, batch=0, batch_first=layout == BATCH_MAJOR, training=True
        )
    return problem, testing.inputs(problem, 0)


LAYOUTS = ("sequence_major", BATCH_MAJOR, PACKED)
NETWORKS = [
    (mode, fields)
    for mode in MODES
    for fields in (
        {},
        {"num_layers": 2, "bidirectional": True, "dtype": "float32"},
        {"bias": False, "dtype": "bfloat16"},
        *([{"proj_size": 2, "dtype": "float16"}] if mode == "lstm" else []),
    )
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("mode", "fields"), NETWORKS)
def test_an_empty_batch_gives_empty_results_and_asks_nobody(asked, mode, fields, layout):
    problem, a = empty(mode, layout, **fields)
    for y, h_n, c_n in (infer(problem, a), infer(problem, a, hx=None), train(problem, a)[:3]):
        assert (y.shape, h_n.shape) == (problem.y_shape, problem.h_shape)
        assert y.dtype == h_n.dtype == a.x.dtype
        assert y.size == h_n.size == 0
        assert (None if c_n is None else (c_n.shape, c_n.dtype)) == (
            (problem.c_shape, a.x.dtype) if problem.spec.has_cell else None
        )
    assert not asked


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("mode", "fields"), NETWORKS)
def test_gradients_of_an_empty_batch_are_empty_and_those_of_weights_zeros(
    asked, mode, fields, layout
):
    problem, a = empty(mode, layout, **fields)
    gradients = train(problem, a)[-1].backward(a.dy, a.dhx)
    assert gradients.x.shape == problem.x_shape
    states = gradients.hx if problem.spec.has_cell else (gradients.hx,)
    assert [s.shape for s in states] == [problem.h_shape, problem.c_shape][: len(states)]
    for gradient, weight in zip(gradients.weights, a.weights, strict=True):
        assert (gradient.shape, gradient.dtype) == (weight.shape, weight.dtype)
        assert not gradient.any()
    assert not asked


@pytest.mark.parametrize("backend", ["cudnn", "torch"])
def test_packed_weights_have_gradients_of_their_layout_from_an_empty_batch(backend):
    problem, a = empty("gru")
    weights = RNNWeights.pack(a.weights, problem.spec, backend=backend)
    ctx = train(problem, a, weights=weights)[-1]
    gradient = ctx.backward(a.dy, need="weights").weights
    assert gradient.layout == weights.layout
    assert not gradient.flat.any()


def test_lengths_of_an_empty_batch_are_none():
    problem, a = empty("lstm")
    assert infer(problem, a, lengths=[])[0].shape == problem.y_shape
    assert infer(problem, a, lengths=np.zeros(0, int))[0].shape == problem.y_shape


def test_an_empty_batch_is_valid():
    problem, a = empty("lstm")
    *_, ctx = train(problem, a, options={"validate": True})
    ctx.backward(a.dy)


def test_an_empty_batch_draws_no_random_numbers():
    problem, a = empty("lstm", num_layers=2)
    state, other = DropoutState(5), DropoutState(5)
    train(problem, a, dropout=0.5, dropout_state=state)[-1].backward(a.dy)
    full, arrays = example(num_layers=2)
    found = train(full, arrays, dropout=0.5, dropout_state=state)[0]
    expected = train(full, arrays, dropout=0.5, dropout_state=other)[0]
    np.testing.assert_array_equal(found, expected)


def test_the_context_of_an_empty_batch_is_used_once_unless_it_is_retained():
    problem, a = empty("gru")
    ctx = train(problem, a)[-1]
    ctx.backward(a.dy, retain=True)
    ctx.backward(a.dy)
    with pytest.raises(dnnffi.ContextError, match="spent the reserve space"):
        ctx.backward(a.dy)


def test_gradients_into_an_empty_batch_are_checked():
    problem, a = empty("gru")
    ctx = train(problem, a)[-1]
    with pytest.raises(ValueError, match=r"^dy must have shape \(3, 0, 5\); got \(3, 1, 5\)$"):
        ctx.backward(np.zeros((3, 1, 5)))
    with pytest.raises(TypeError, match=r"^dh_n must have the dtype of the weights, float64"):
        ctx.backward(a.dy, a.dhx.astype("f4"))


# Dropout


def deep(mode="lstm", seed=0):
    spec = network(mode, num_layers=3, bidirectional=True)
    problem = RNNProblem.dense(
        spec, steps=4, batch=3, lengths=(2, 4, 1), training=True, dropout=0.4
    )
    return problem, testing.inputs(problem, seed)


@pytest.mark.parametrize("mode", MODES)
def test_dropout_uses_the_states_masks_forward_and_backward(mode):
    problem, a = deep(mode)
    masks = HostGenerator(7).masks(problem)
    expected = direct(problem, a, masks)
    *results, ctx = train(problem, a, dropout_state=dnnffi.DropoutState(7))
    assert_same(results, [expected.y, expected.h_n, expected.c_n])
    grads = ctx.backward(a.dy, a.dhx)
    expected_grads = reference.backward(expected.tape, a.dy, a.dh_n, a.dc_n)
    assert_same([grads.x, *grads.weights], [expected_grads.x, *expected_grads.weights])


def ys(problem, a, state, count=3, **changes):
    return [train(problem, a, dropout_state=state, **changes)[0] for _ in range(count)]


def test_the_same_seed_gives_the_same_results():
    problem, a = deep()
    one, other = (ys(problem, a, dnnffi.DropoutState(7)) for _ in range(2))
    assert_same(one, other)
    assert (one[0] != one[1]).any()
    assert (one[0] != ys(problem, a, dnnffi.DropoutState(8))[0]).any()


def test_a_restored_state_goes_on_where_the_saved_one_was():
    problem, a = deep()
    state = dnnffi.DropoutState(7)
    ys(problem, a, state)
    saved = state.save()
    expected = ys(problem, a, state)
    assert_same(ys(problem, a, dnnffi.DropoutState.restore(saved)), expected)
    # A restored state that is not yet used can be saved again.
    again = dnnffi.DropoutState.restore(dnnffi.DropoutState.restore(saved).save())
    assert_same(ys(problem, a, again), expected)


def test_a_state_saved_before_its_first_use_starts_from_its_seed():
    problem, a = deep()
    saved = dnnffi.DropoutState(7).save()
    assert saved["seed"] == 7
    restored = dnnffi.DropoutState.restore(saved)
    assert_same(ys(problem, a, restored), ys(problem, a, dnnffi.DropoutState(7)))


def test_saved_states_of_the_wrong_length_are_refused():
    problem, a = deep()
    state = dnnffi.DropoutState(7)
    ys(problem, a, state)
    saved = state.save() | {"states": b"short"}
    message = r"^saved\['states'\] of reference device 0 must have 32 bytes; got 5$"
    with pytest.raises(ValueError, match=message):
        dnnffi.DropoutState.restore(saved)


def test_a_state_stays_in_one_place():
    problem, a = deep()
    state = dnnffi.DropoutState(7)
    state.generator("cudnn device 0", HostGenerator)
    message = r"^dropout_state belongs to cudnn device 0 and cannot be used on reference"
    with pytest.raises(ValueError, match=message):
        ys(problem, a, state)
    assert repr(state) == "DropoutState(seed=7, cudnn device 0)"
    assert repr(dnnffi.DropoutState(7)) == "DropoutState(seed=7, not used yet)"


def test_without_a_state_the_device_has_its_own():
    problem, a = deep()
    one, other = ys(problem, a, None, 2)
    assert (one != other).any()


@pytest.mark.filterwarnings("ignore:dropout is between layers")
@pytest.mark.parametrize("mode", MODES)
def test_dropout_acts_between_layers_only(mode):
    problem, a = example(mode)
    state = dnnffi.DropoutState(7)
    before = state.save()
    plain = train(problem, a)
    dropped = train(problem, a, dropout=0.9, dropout_state=state)
    assert_same(dropped[:3], plain[:3])
    grads = [flatten(r[3].backward(a.dy, a.dhx)) for r in (dropped, plain)]
    assert_same(*grads)
    assert state.save() == before  # nothing was drawn


def test_no_dropout_draws_nothing():
    problem, a = deep()
    state = dnnffi.DropoutState(7)
    before = state.save()
    dropped = train(problem, a, dropout=0, dropout_state=state)
    assert_same(dropped[:3], infer(problem, a))
    assert state.save() == before


def test_dropping_everything_leaves_the_next_layer_zeros():
    spec = network(num_layers=2)
    problem = RNNProblem.dense(spec, steps=4, batch=3, training=True, dropout=1.0)
    a = testing.inputs(problem, 0)
    y = train(problem, a, dropout_state=dnnffi.DropoutState(7))[0]
    second = RNNProblem.dense(network(input_size=5), steps=4, batch=3)
    states = (a.h_0[1:], a.c_0[1:])
    changes = {"x": np.zeros((4, 3, 5)), "hx": states, "weights": a.weights[4:]}
    np.testing.assert_array_equal(y, infer(second, a, **changes)[0])


@pytest.mark.parametrize("mode", MODES)
def test_inference_takes_no_dropout(mode):
    _, a = example(mode)
    with pytest.raises(TypeError, match="dropout"):
        getattr(dnnffi, mode)(a.x, a.hx, a.weights, dropout=0.5)


@pytest.mark.parametrize("seed", [0, 2**64 - 1, np.uint64(3)], ids=str)
def test_seeds(seed):
    assert dnnffi.DropoutState(seed).seed == int(seed)


@pytest.mark.parametrize("seed", [1.0, "1", None, True, [1], np.array([1, 2])], ids=str)
def test_a_seed_is_an_integer(seed):
    with pytest.raises(TypeError, match=r"^seed must be an integer; got "):
        dnnffi.DropoutState(seed)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_has_64_bits(seed):
    with pytest.raises(ValueError, match=r"^seed must be from 0 to 2\*\*64 - 1; got "):
        dnnffi.DropoutState(seed)


# Validation


@given(testing.problems(training=True, with_options=True), seeds)
def test_right_results_are_valid(problem, seed):
    a = testing.inputs(problem, seed)
    options = problem.options._asdict() | {"validate": True}
    infer(problem, a, options=options)
    *_, ctx = train(problem, a, options=options)
    ctx.backward(a.dy, a.dhx)


@given(testing.problems(testing.specs(modes=("lstm", "gru", "rnn_tanh")), training=True), seeds)
@settings(max_examples=20)
def test_right_results_are_valid_with_packed_weights(problem, seed):
    a = testing.inputs(problem, seed)
    weights = RNNWeights.pack(a.weights, problem.spec)
    *_, ctx = train(problem, a, weights=weights, options={"validate": True})
    ctx.backward(a.dy, a.dhx)


def test_nan_and_infinity_are_valid_where_the_reference_has_them():
    problem, a = example()
    a.x[0, 1, 2] = np.nan
    *_, ctx = train(problem, a, options={"validate": True})
    ctx.backward(a.dy, a.dhx)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("mode", MODES)
def test_gradients_that_vanish_are_valid(mode, dtype):
    # Over 80 steps of the backward pass they fall below the range of the dtype.
    spec = network(mode, dtype=dtype)
    problem = RNNProblem.dense(spec, steps=80, batch=2, training=True)
    for seed in range(3):
        a = testing.inputs(problem, seed)
        *_, ctx = train(problem, a, options={"validate": True})
        ctx.backward(None, a.dhx)


DEVIATIONS = {
    "none": ([1.0, -2.0], [1.0, -2.0], 0),
    "of the largest": ([1.0, -2.5], [1.0, -2.0], 0.25),
    "of a small one": ([1.5, -2.0], [1.0, -2.0], 0.25),
    "from zero": ([2.0**-20, 0.0], [0.0, 0.0], 2.0**-6),
    "of what underflows": ([0.0, 0.0], [2.0**-26, 0.0], 2.0**-12),
    "NaN for NaN": ([np.nan, 2.0], [np.nan, 2.0], 0),
    "NaN for a number": ([np.nan, 2.0], [1.0, 2.0], np.inf),
    "a number for NaN": ([1.0, 2.0], [np.nan, 2.0], np.inf),
    "infinity for infinity": ([np.inf, 2.5], [np.inf, 2.0], 0.25),
    "infinity of the other sign": ([-np.inf, 2.0], [np.inf, 2.0], np.inf),
    "infinity for a number": ([np.inf, 2.0], [1.0, 2.0], np.inf),
}


@pytest.mark.parametrize(
    ("found", "expected", "deviation"), DEVIATIONS.values(), ids=list(DEVIATIONS)
)
def test_relative_deviation(found, expected, deviation):
    assert relative_deviation(np.array(found, "f2"), np.array(expected)) == deviation


class Tampered(ReferenceRNNPlan):
    """A plan that gets one number of one result wrong."""

    wrong = "y"
    by = 1.0

    def forward(self, *arguments):
        y, h_n, c_n, tape = super().forward(*arguments)
        results = {"y": y, "h_n": h_n, "c_n": c_n}
        if self.wrong in results:
            results[self.wrong][0, 0, 0] += self.by
        return (*results.values(), tape)

    def backward(self, *arguments, **keywords):
        dx, dh_0, dc_0, dweights, of_resets = super().backward(*arguments, **keywords)
        results = {"dx": dx, "dh_0": dh_0, "dc_0": dc_0, "dweights[1]": dweights[1]}
        if self.wrong in results:
            results[self.wrong].flat[0] += self.by
        return dx, dh_0, dc_0, dweights, of_resets


@pytest.fixture
def tampered(monkeypatch):
    """Make the reference engine's plans wrong; the validation's own plan stays right."""

    def tamper(wrong, by=1.0):
        monkeypatch.setattr(Tampered, "wrong", wrong)
        monkeypatch.setattr(Tampered, "by", by)

    reference_backend = rnn_backends.of("reference")
    plans = reference_backend.plans
    monkeypatch.setattr(
        reference_backend, "plan", lambda problem, device, generator: Tampered(problem)
    )
    plans.clear()
    yield tamper
    plans.clear()


@pytest.mark.parametrize("wrong", ["y", "h_n", "c_n"])
@pytest.mark.parametrize("by", [1e-3, np.nan, np.inf])
def test_wrong_results_are_found(tampered, wrong, by):
    tampered(wrong, by)
    problem, a = example()
    for run in (infer, train):
        with pytest.raises(
            dnnffi.ValidationError, match=rf"relative deviation: {wrong} "
        ) as caught:
            run(problem, a, options={"validate": True})
        assert list(caught.value.deviations) == [wrong]
        found, allowed = caught.value.deviations[wrong]
        assert found > allowed == 1e-9
        assert isinstance(caught.value, AssertionError)
        run(problem, a)


@pytest.mark.parametrize("wrong", ["dx", "dh_0", "dc_0", "dweights[1]"])
def test_wrong_gradients_are_found(tampered, wrong):
    tampered(wrong, 1e-3)
    problem, a = example()
    *_, ctx = train(problem, a, options={"validate": True})
    with pytest.raises(dnnffi.ValidationError) as caught:
        ctx.backward(a.dy, a.dhx)
    assert list(caught.value.deviations) == [wrong]


def test_every_wrong_weight_gradient_of_an_rnnweights_is_found(tampered):
    tampered("dweights[1]", 1e-3)
    problem, a = example()
    weights = RNNWeights.pack(a.weights, problem.spec)
    *_, ctx = train(problem, a, weights=weights, options={"validate": True})
    with pytest.raises(dnnffi.ValidationError, match=r"dweights\[1\]"):
        ctx.backward(a.dy, a.dhx)


def test_dropout_cannot_be_validated():
    problem, a = deep()
    with pytest.raises(ValueError, match=r"^options\['validate'\] needs dropout=0"):
        train(problem, a, options={"validate": True})
    infer(problem, a, options={"validate": True})
