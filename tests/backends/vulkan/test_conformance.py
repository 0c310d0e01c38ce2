"""Tests of the conformance problems on the adapter, with functions and packed contexts."""

from __future__ import annotations

import conformance
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vulkan_calls import run_context, run_function

import dnnffi
from dnnffi import testing

pytestmark = pytest.mark.usefixtures("device")

CASES = [
    # Kernels that run all steps have no projection.
    case._replace(
        problem=case.problem._replace(options=case.problem.options._replace(algorithm="stepwise"))
    )
    if case.problem.spec.proj_size
    else case
    for case in conformance.matrix(conformance.VULKAN)
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_those_of_the_reference(case):
    conformance.check_inference(case, run_function)


@given(
    problem=testing.problems(testing.specs(dtypes=("float32", "float16")), training=False),
    given_states=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_results_of_a_context_are_those_of_the_reference(problem, given_states, seed):
    case = conformance.Case(problem, given_states, seed)
    conformance.check_inference(case, run_context)


@pytest.mark.parametrize("tiles", ["as_they_are", "gpu", "no_subgroups"])
@pytest.mark.parametrize("algorithm", ["stepwise", "persistent"])
@pytest.mark.parametrize("mode", conformance.MODES)
@pytest.mark.parametrize(("hidden", "batch"), [(31, 9), (33, 17), (70, 1), (129, 5)])
def test_sizes_around_those_of_the_tiles(
    device, monkeypatch, mode, algorithm, hidden, batch, tiles
):
    # Use the tiles of other adapters on this one.
    if tiles == "gpu":
        monkeypatch.setattr(device, "cpu", False)
    elif tiles == "no_subgroups":
        monkeypatch.setattr(device, "subgroup", 0)
    spec = dnnffi.RNNSpec(
        mode=mode, input_size=hidden - 1, hidden_size=hidden, num_layers=2, bidirectional=True
    )
    options = dnnffi.spec.options.rnn_options({"algorithm": algorithm}, mode)
    problem = dnnffi.RNNProblem.dense(
        spec, steps=3, batch=batch, lengths=[n % 4 for n in range(batch)], options=options
    )
    conformance.check_inference(conformance.Case(problem, True, hidden), run_context)


@pytest.mark.parametrize(("hidden", "steps"), [(30, 1600), (64, 600), (256, 50)])
def test_persistent_kernels_run_long_sequences_to_their_end(device, hidden, steps):
    # On lavapipe an invocation runs at most 65535 loop iterations; H 256 would take 104000.
    spec = dnnffi.RNNSpec(mode="gru", input_size=4, hidden_size=hidden, bidirectional=True)
    options = dnnffi.spec.options.rnn_options({"algorithm": "persistent"}, "gru")
    lengths = [steps, steps - 1, 7]
    problem = dnnffi.RNNProblem.dense(spec, steps=steps, batch=3, lengths=lengths, options=options)
    conformance.check_inference(conformance.Case(problem, True, 0), run_context)


def test_a_projection_with_the_tiles_of_a_gpu(device, monkeypatch):
    monkeypatch.setattr(device, "cpu", False)
    spec = dnnffi.RNNSpec(mode="lstm", input_size=9, hidden_size=41, proj_size=35, num_layers=2)
    problem = dnnffi.RNNProblem.dense(spec, steps=3, batch=7, lengths=[1, 0, 3, 3, 2, 0, 1])
    conformance.check_inference(conformance.Case(problem, True, 0), run_context)


def test_float16_weights_with_the_tiles_of_a_gpu(device, monkeypatch):
    monkeypatch.setattr(device, "cpu", False)
    spec = dnnffi.RNNSpec(mode="gru", input_size=9, hidden_size=41, dtype="float16")
    problem = dnnffi.RNNProblem.dense(spec, steps=3, batch=7)
    conformance.check_inference(conformance.Case(problem, True, 0), run_context)


def test_more_rows_than_a_dispatch_has_groups_in_a_dimension(device):
    # 4096 steps at a time, of 16 rows a group on a CPU: 71680 groups.
    spec = dnnffi.RNNSpec(mode="rnn_tanh", input_size=1, hidden_size=1)
    options = dnnffi.spec.options.rnn_options({"algorithm": "persistent"}, "rnn_tanh")
    problem = dnnffi.RNNProblem.dense(spec, steps=4100, batch=280, options=options)
    conformance.check_inference(conformance.Case(problem, True, 0), run_context)


@pytest.mark.parametrize("steps", [1, 7])
def test_tanh_keeps_the_digits_of_small_numbers(steps):
    """The weights are 1, so that y is tanh of x: from 1e-7 to 3, past where the series ends."""
    spec = dnnffi.RNNSpec(mode="rnn_tanh", input_size=1, hidden_size=1, bias=False)
    weights = dnnffi.RNNWeights(np.array([1, 0], "float32"), spec)
    x = np.geomspace(1e-7, 3, 64 * steps, dtype="float32").reshape(steps, 64, 1)
    x[:, ::2] *= -1
    y, _ = dnnffi.rnn_tanh(x, None, weights, backend="vulkan")
    np.testing.assert_allclose(y, np.tanh(x.astype("float64")), rtol=1e-6)
