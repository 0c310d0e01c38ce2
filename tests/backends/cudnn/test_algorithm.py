"""Tests of the rule that chooses an algorithm by problem and GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi import testing
from dnnffi.backends.cudnn.algorithm import known_wrong, rule
from dnnffi.device.interface import Architecture
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

H200 = Architecture(9, 0, 132)
VOLTA = Architecture(7, 0, 80)
TURING = Architecture(7, 5, 72)
A40 = Architecture(8, 6, 84)


def problem(mode="lstm", size=512, steps=100, batch=64, dtype="float16", training=False, **spec):
    spec = RNNSpec(mode=mode, input_size=size, hidden_size=size, dtype=dtype, **spec)
    return RNNProblem.dense(spec, steps=steps, batch=batch, training=training)


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
        (problem(size=128, training=True), "persist_static"),
        (problem(size=64), "standard"),
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
    assert not known_wrong(any_problem, picked)


SMALL_H = "persist_static_small_h"


@pytest.mark.parametrize(
    ("given_problem", "algorithm", "wrong"),
    [
        (problem("lstm", size=48), SMALL_H, True),
        (problem("gru", size=112), SMALL_H, True),
        (problem("lstm", size=16), SMALL_H, False),
        (problem("lstm", size=64), SMALL_H, False),
        (problem("lstm", size=48, dtype="float32"), SMALL_H, False),
        (problem("lstm", size=48), "persist_static", False),
        (problem("lstm", size=48)._replace(options=RNNOptions(math="strict")), SMALL_H, False),
        (problem("rnn_tanh", size=64, bidirectional=True, training=True), SMALL_H, True),
        (problem("rnn_tanh", size=64, bidirectional=True), SMALL_H, False),
        (problem("rnn_relu", size=64, training=True), SMALL_H, False),
        (problem("rnn_relu", size=50, bidirectional=True, training=True), SMALL_H, False),
    ],
)
def test_what_was_seen_to_be_wrong_is_refused(given_problem, algorithm, wrong):
    assert bool(known_wrong(given_problem, algorithm)) == wrong
