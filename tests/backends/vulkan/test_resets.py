"""Resets on an adapter: states replaced between steps, as in the reference."""

from __future__ import annotations

import conformance
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vulkan_calls import run_context, run_function

import dnnffi
from dnnffi import RNNSpec, testing
from dnnffi.backends.vulkan.shaders import Step, step
from dnnffi.backends.vulkan.tiles import Tile
from dnnffi.device.dtypes import dtype_object
from dnnffi.spec.options import rnn_options

pytestmark = pytest.mark.usefixtures("device")

ALGORITHMS = "stepwise", "persistent"
STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 5, 6


def spec_of(mode, **more):
    return RNNSpec(**{"mode": mode, "input_size": INPUTS, "hidden_size": HIDDEN} | more)


def states(spec, rows, rng):
    """Return states for resets: one row for all rows, or one for each; None for 0 rows."""
    if not rows:
        return None
    dtype = dtype_object(spec.dtype)
    h = rng.standard_normal(spec.h_shape(rows)).astype(dtype)
    return (h, rng.standard_normal(spec.c_shape(rows)).astype(dtype)) if spec.has_cell else h


def drawn(problem, rng, rate, rows):
    """Return arguments of a call that resets states at a share ``rate`` of the steps."""
    flags = rng.random(problem.leading_shape) < rate
    return {"resets": flags, "reset_to": states(problem.spec, rows, rng)}


def dense(spec, steps=STEPS, batch=BATCH, lengths=None, algorithm="auto"):
    options = rnn_options({"algorithm": algorithm}, spec.mode)
    return dnnffi.RNNProblem.dense(spec, steps=steps, batch=batch, lengths=lengths, options=options)


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, "float32")


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("mode", conformance.MODES)
def test_states_are_replaced_as_in_the_reference(mode, dtype, bidirectional, algorithm, rate):
    spec = spec_of(mode, dtype=dtype, bidirectional=bidirectional, num_layers=2)
    options = rnn_options({"algorithm": algorithm}, mode)
    rng = np.random.default_rng(int(rate * 10))
    for number, layout in enumerate(conformance.LAYOUTS):
        problem = conformance.problem_of(spec, layout, STEPS, BATCH, rng, options=options)
        case = conformance.Case(problem, bool(number % 2), number)
        for rows in (0, 1, BATCH):
            conformance.check_inference(case, run_function, **drawn(problem, rng, rate, rows))


@settings(max_examples=40)
@given(
    mode=st.sampled_from(conformance.MODES),
    algorithm=st.sampled_from(ALGORITHMS),
    lengths=st.lists(st.integers(0, STEPS), min_size=BATCH, max_size=BATCH),
    data=st.data(),
)
def test_flags_and_lengths_in_any_combination(mode, algorithm, lengths, data):
    spec = spec_of(mode, bidirectional=True)
    problem = dense(spec, lengths=[*lengths[:-1], STEPS], algorithm=algorithm)
    case = conformance.Case(problem, data.draw(st.booleans()), 0)
    conformance.check_inference(case, run_context, **data.draw(testing.resets(problem)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("t", [0, STEPS - 1])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_resets_of_the_first_and_of_the_last_step(mode, t, algorithm):
    spec = spec_of(mode, bidirectional=True)
    problem = dense(spec, lengths=[STEPS, 1, STEPS - 1], algorithm=algorithm)
    more = drawn(problem, np.random.default_rng(t), 0.0, BATCH)
    more["resets"][t] = True
    conformance.check_inference(conformance.Case(problem, True, t), run_context, **more)


@pytest.mark.parametrize("tiles", ["as_they_are", "gpu", "no_subgroups"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("mode", ["lstm", "gru"])
@pytest.mark.parametrize(("hidden", "batch"), [(33, 17), (70, 1)])
def test_sizes_around_those_of_the_tiles(
    device, monkeypatch, mode, algorithm, hidden, batch, tiles
):
    if tiles == "gpu":
        monkeypatch.setattr(device, "cpu", False)
    elif tiles == "no_subgroups":
        monkeypatch.setattr(device, "subgroup", 0)
    spec = spec_of(mode, hidden_size=hidden, bidirectional=True)
    problem = dense(spec, batch=batch, lengths=[n % 6 for n in range(batch)], algorithm=algorithm)
    rng = np.random.default_rng(hidden)
    for rows in (1, batch):
        case = conformance.Case(problem, True, rows)
        conformance.check_inference(case, run_context, **drawn(problem, rng, 0.3, rows))


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_projected_states_are_replaced(device, monkeypatch, bidirectional, cpu):
    monkeypatch.setattr(device, "cpu", cpu)
    spec = spec_of("lstm", hidden_size=11, proj_size=7, num_layers=2, bidirectional=bidirectional)
    problem = dense(spec, batch=5, lengths=[5, 0, 3, 5, 1])
    rng = np.random.default_rng(0)
    for rows in (0, 1, 5):
        case = conformance.Case(problem, True, rows)
        conformance.check_inference(case, run_context, **drawn(problem, rng, 0.4, rows))


@pytest.mark.parametrize(("hidden", "batch", "steps"), [(64, 3, 600), (64, 16, 450)])
def test_persistent_kernels_run_long_sequences_to_their_end(device, hidden, batch, steps):
    # On lavapipe, the loop that replaces states counts towards the iterations of an invocation.
    spec = spec_of("lstm", hidden_size=hidden, bidirectional=True, bias=False)
    lengths = [steps - row for row in range(batch)]
    problem = dense(spec, steps, batch, lengths, algorithm="persistent")
    more = drawn(problem, np.random.default_rng(0), 0.01, batch)
    more["resets"][::50] = True
    conformance.check_inference(conformance.Case(problem, True, 0), run_context, **more)


def test_parts_of_a_few_steps(device, monkeypatch):
    spec = spec_of("gru", hidden_size=64, bidirectional=True)
    problem = dense(spec, steps=300, batch=4, algorithm="stepwise")
    more = drawn(problem, np.random.default_rng(0), 0.05, 4)
    arrays = conformance.arrays_of(conformance.Case(problem, True, 0))
    whole, _ = run_context(problem, arrays, **more)
    monkeypatch.setattr(device, "max_binding_bytes", 2**17)
    found, _ = run_context(problem, arrays, **more)
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("mode", conformance.MODES)
def test_nan_does_not_pass_a_border(mode, algorithm):
    spec = spec_of(mode, bidirectional=True)
    x, resets = numbers(0, STEPS, BATCH, INPUTS), np.zeros((STEPS, BATCH), bool)
    right, _ = run_on(spec, x, resets, algorithm)
    x[2, 1] = np.nan
    resets[2:4, 1] = True  # an episode of one step
    hx = np.full(spec.h_shape(BATCH), np.nan, "float32")
    first = resets.copy()
    first[0] = True  # nor is NaN of h_0 read, but by the reverse direction
    found, state = run_on(spec, x, resets, algorithm)
    assert np.isfinite(np.delete(found[:, 1], 2, axis=0)).all()
    assert np.isfinite(np.asarray(state)).all()
    np.testing.assert_array_equal(found[:, [0, 2]], right[:, [0, 2]])
    x[2, 1] = 0
    found, _ = run_on(spec, x, first, algorithm, (hx, hx) if spec.has_cell else hx)
    assert np.isfinite(found[..., :HIDDEN]).all()


def run_on(spec, x, resets, algorithm, hx=None, **more):
    weights = dnnffi.RNNWeights.pack(testing.weights(spec, 0), spec, backend="torch")
    options = {"algorithm": algorithm}
    with dnnffi.pack_rnn(weights) as context:
        return context.run(x, hx, resets=resets, options=options, **more)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_flags_past_the_end_of_a_row_are_not_read(algorithm):
    spec, lengths = spec_of("gru", bidirectional=True), (4, 0, 2)
    x, resets = numbers(0, STEPS, BATCH, INPUTS), np.zeros((STEPS, BATCH), bool)
    resets[1, 0] = True
    right, end = run_on(spec, x, resets, algorithm, lengths=lengths)
    resets |= np.arange(STEPS)[:, None] >= np.array(lengths)
    found, last = run_on(spec, x, resets, algorithm, lengths=lengths)
    np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(last, end)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("rows", [0, 1, BATCH])
def test_a_kept_state_is_that_after_the_last_step(causal_spec, rows, algorithm):
    """Calls with resets and calls without them, which use other buffers, continue each other."""
    if causal_spec.proj_size:
        algorithm = "stepwise"
    x = np.random.default_rng(0).standard_normal((9, BATCH, causal_spec.input_size))
    x, resets = x.astype(causal_spec.dtype), np.zeros((9, BATCH), bool)
    resets[0, 0] = resets[3, 1] = resets[4, :2] = resets[8, 2] = True
    more = {"reset_to": states(causal_spec, rows, np.random.default_rng(1))}
    more["options"] = {"algorithm": algorithm}
    with dnnffi.pack_rnn(testing.weights(causal_spec, 0), causal_spec) as context:
        right, end = context.run(x, resets=resets, **more)
        found = []
        for begin, stop in ((0, 1), (1, 3), (3, 5), (5, 6), (6, 8), (8, 9)):
            part = resets[begin:stop]
            some = more | {"resets": part} if part.any() else {"options": more["options"]}
            y, last = context.run(x[begin:stop], keep_state=True, **some)
            found.append(y)
    allowed = 1e-6 if causal_spec.dtype == "float32" else 1e-2
    np.testing.assert_allclose(np.concatenate(found), right, rtol=allowed, atol=allowed)
    pairs = zip(last, end, strict=True) if causal_spec.has_cell else [(last, end)]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=allowed, atol=allowed)


def test_the_initial_state_goes_before_the_kept_one(gru, x):
    resets = np.zeros(x.shape[:2], bool)
    resets[2, 1] = True
    hx = numbers(1, 1, 3, 7)
    right, _ = gru.run(x, hx, resets=resets)
    gru.run(x, keep_state=True)
    found, _ = gru.run(x, hx, resets=resets, keep_state=True)
    np.testing.assert_array_equal(found, right)


def test_calls_of_the_same_sizes_use_the_same_buffers(gru, x):
    resets = np.ones(x.shape[:2], bool)
    right, _ = gru.run(x)
    with_resets, _ = gru.run(x, resets=resets)
    for _ in range(2):
        np.testing.assert_array_equal(gru.run(x)[0], right)
        np.testing.assert_array_equal(gru.run(x, resets=resets)[0], with_resets)
        gru.run(x, resets=resets, reset_to=np.ones((1, 3, 7), "float32"))
    assert len(gru._network._idle) == 3  # without resets, with one row for all, with one each


def test_a_call_with_resets_is_one_submission(gru, x, submissions):
    gru.run(x, resets=np.ones(x.shape[:2], bool))
    assert len(submissions) == 1


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("mode", conformance.MODES)
def test_only_kernels_of_calls_with_resets_read_flags(mode, whole):
    kernel = Step(mode, 7, 2, 2, False, True, Tile(8, 4), 8, 0, whole=whole)
    assert "flags" not in step(kernel) + str(kernel.bindings())
    with_resets = kernel._replace(resets=True)
    assert "flags" in step(with_resets)
    storage = [name for name in with_resets.bindings() if name != "now"]
    assert len(storage) <= 8  # of a kernel, that every adapter has


def test_results_can_be_validated():
    spec = spec_of("lstm")
    weights = dnnffi.RNNWeights.pack(testing.weights(spec, 0), spec, backend="torch")
    x, resets = numbers(0, STEPS, BATCH, INPUTS), numbers(1, STEPS, BATCH) > 0
    options = {"validate": True}
    dnnffi.lstm(x, None, weights, resets=resets, backend="vulkan", options=options)


def test_an_empty_batch(gru):
    y, h_n = gru.run(np.zeros((4, 0, 5), "f4"), resets=np.zeros((4, 0), bool))
    assert (y.shape, h_n.shape) == ((4, 0, 7), (1, 0, 7))


FLAGS = np.ones((4, 3), bool)


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ({"resets": np.zeros((4, 4), bool)}, ValueError, r"^resets must .* \(4, 3\); got \(4, 4\)"),
        ({"resets": FLAGS.T}, ValueError, r"^resets must have the shape of x .* got \(3, 4\)"),
        ({"resets": np.zeros((4, 3))}, TypeError, "^resets must be bool or integers; got float64"),
        ({"reset_to": np.zeros((1, 1, 7), "f4")}, ValueError, "give resets, too"),
        (
            {"resets": FLAGS, "reset_to": np.zeros((1, 2, 7), "f4")},
            ValueError,
            r"^reset_to must have shape \(1, 1, 7\), one row for all, or \(1, 3, 7\); got",
        ),
        (
            {"resets": FLAGS, "reset_to": np.zeros((1, 1, 7))},
            TypeError,
            "^reset_to must have the dtype of the weights, float32; got float64",
        ),
        (
            {"resets": FLAGS, "reset_to": (np.zeros((1, 1, 7), "f4"),) * 2},
            TypeError,
            "^reset_to must be one array",
        ),
    ],
)
def test_wrong_arguments_are_named(gru, x, more, error, words):
    right, _ = gru.run(x)
    with pytest.raises(error, match=words):
        gru.run(x, **more)
    np.testing.assert_array_equal(gru.run(x)[0], right)


def test_the_parts_of_reset_to_are_named():
    spec = spec_of("lstm")
    resets, h = np.ones((STEPS, BATCH), bool), np.zeros((1, 1, HIDDEN), "f4")
    with pytest.raises(ValueError, match=r"^reset_to\[1\] must have shape \(1, 1, 6\)"):
        run_on(spec, numbers(0, STEPS, BATCH, INPUTS), resets, "auto", reset_to=(h, h[..., :3]))


def test_training_with_resets_is_refused():
    spec = spec_of("gru")
    weights = dnnffi.RNNWeights.pack(testing.weights(spec, 0), spec, backend="torch")
    x, resets = numbers(0, STEPS, BATCH, INPUTS), np.ones((STEPS, BATCH), bool)
    with pytest.raises(dnnffi.UnsupportedError, match="it runs inference alone"):
        dnnffi.gru_forward(x, None, weights, resets=resets, backend="vulkan")


def test_states_beyond_what_the_adapter_binds_are_named(device, monkeypatch):
    spec = spec_of("rnn_tanh", input_size=4, hidden_size=4)
    x, resets = numbers(0, 1, 100, 4), np.ones((1, 100), bool)
    monkeypatch.setattr(device, "max_binding_bytes", 3000)
    each = np.zeros((1, 100, 4), "f4")
    with pytest.raises(dnnffi.UnsupportedError, match=r"100 rows .* 3200 bytes.* one row for all"):
        run_on(spec, x, resets, "stepwise", reset_to=each)
    run_on(spec, x, resets, "stepwise", reset_to=each[:, :1])
