"""The rule that picks an algorithm: which problem gets which, on which GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi import testing
from dnnffi.arrays import Architecture
from dnnffi.backends.cudnn.algorithm import rule
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

H200 = Architecture(9, 0, 132)
VOLTA = Architecture(7, 0, 80)
TURING = Architecture(7, 5, 72)
A40 = Architecture(8, 6, 84)


def problem(mode="lstm", size=512, steps=100, batch=64, dtype="float16", training=False, **spec):
    spec = RNNSpec(mode=mode, input_size=size, hidden_size=size, dtype=dtype, **spec)
    return RNNProblem.dense(spec, steps, batch, training=training)


@pytest.mark.parametrize(
    ("given_problem", "expected"),
    [
        (problem(), "persist_static"),
        (problem(batch=12), "standard"),
        (problem(batch=136), "standard"),
        (problem(size=1024 + 128), "standard"),
        (problem(size=500), "standard"),
        (problem(num_layers=2), "standard"),
        (problem(bidirectional=True), "standard"),
        (problem(dtype="float32"), "standard"),
        (problem("gru"), "standard"),
        (problem("rnn_tanh", size=896, batch=64), "persist_static"),
        (problem("rnn_tanh", size=896, batch=96), "standard"),
        (problem(size=192), "persist_static_small_h"),
        (problem(size=192, training=True), "standard"),
        (problem(size=128, training=True), "persist_static_small_h"),
        (problem("rnn_relu", size=384), "persist_static_small_h"),
        (problem("rnn_relu", size=256, training=True), "persist_static_small_h"),
        (problem("rnn_relu", size=257, training=True), "standard"),
        (problem(size=64, dtype="float64"), "standard"),
    ],
)
def test_on_an_h200(given_problem, expected):
    assert rule(given_problem, H200) == expected


@pytest.mark.parametrize(
    ("architecture", "steps", "batch", "expected"),
    [
        (VOLTA, 40, 128, "persist_static"),
        (VOLTA, 39, 128, "standard"),
        (VOLTA, 20, 96, "persist_static"),
        (VOLTA, 10, 32, "persist_static"),
        (VOLTA, 9, 32, "standard"),
        (VOLTA, 40, 80, "standard"),
        (VOLTA, 40, 8, "persist_static"),
        (TURING, 40, 64, "standard"),
        (A40, 40, 64, "standard"),
    ],
)
def test_by_device(architecture, steps, batch, expected):
    assert rule(problem(steps=steps, batch=batch), architecture) == expected


@given(testing.problems(networks=testing.specs(max_size=600)), st.sampled_from([H200, VOLTA, A40]))
def test_what_the_library_refuses_is_never_picked(any_problem, architecture):
    spec = any_problem.spec
    picked = rule(any_problem, architecture)
    if spec.proj_size or not spec.bias or any_problem.lengths or spec.dtype == "float64":
        assert picked == "standard"
