"""Messages of the logger ``dnnffi`` for calls on the stand-in for cuDNN."""

from __future__ import annotations

import logging

import conformance_conv
import numpy as np
import pytest

import dnnffi
from dnnffi import testing
from dnnffi.rnn.network import CALLS_BEFORE_TUNING
from dnnffi.spec.conv_options import ConvOptions

SPEC = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype="float64")
CONV = dnnffi.ConvSpec(in_channels=4, out_channels=6, kernel=(3, 3), padding=1)
X_SHAPE = (2, 4, 5, 6)
STEPS, BATCH = 5, 3
INTERNAL_ERROR = 4000


@pytest.fixture
def messages(caplog):
    """A function that returns the messages of a level since it was called last."""
    caplog.set_level(logging.DEBUG, "dnnffi")

    def taken(level):
        found = [one.getMessage() for one in caplog.records if one.levelname == level]
        caplog.clear()
        return found

    return taken


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))


def arrays_of(simulator, spec=SPEC):
    rng = np.random.default_rng(0)
    size = dnnffi.weight_layout(spec, "cudnn").size
    flat = rng.uniform(-0.5, 0.5, size).astype(spec.dtype)
    weights = dnnffi.RNNWeights(simulator.asarray(flat), spec)
    return simulator.asarray(rng.standard_normal(spec.x_shape(STEPS, BATCH))), weights


def conv(simulator, **options):
    problem = dnnffi.ConvProblem.of("forward", CONV, X_SHAPE, options=ConvOptions(**options))
    arrays = testing.conv_inputs(problem, 0)
    conformance_conv.check_values(problem, arrays, simulator.asarray, "cudnn")


def test_the_choice_for_a_new_plan_is_a_detail_and_a_known_call_says_nothing(simulator, messages):
    x, weights = arrays_of(simulator)
    dnnffi.gru(x, None, weights, backend="cudnn")
    assert any(one.startswith("standard runs RNNSpec(") for one in messages("DEBUG"))
    dnnffi.gru(x, None, weights, backend="cudnn")
    assert messages("DEBUG") == []


def test_a_measurement_of_a_network(simulator, messages):
    x, weights = arrays_of(simulator)
    for _ in range(CALLS_BEFORE_TUNING):
        dnnffi.gru(x, None, weights, backend="cudnn")
    (measured,) = (one for one in messages("INFO") if one.startswith("measured"))
    assert "for RNNSpec(mode='gru'" in measured
    assert measured.endswith(" runs it")


def test_candidates_of_a_measurement_are_details(simulator, messages):
    x, weights = arrays_of(simulator)
    dnnffi.gru(x, None, weights, backend="cudnn", options={"tune": "now"})
    found = messages("DEBUG")
    assert any(one.startswith("candidate cudnn standard: ") for one in found)


def test_the_time_that_cudnn_takes_to_compile(simulator, messages):
    x, weights = arrays_of(simulator)
    options = {"algorithm": "persist_dynamic", "tune": "off"}
    dnnffi.gru(x, None, weights, backend="cudnn", options=options)
    (compiled,) = (one for one in messages("INFO") if "compiled" in one)
    assert compiled.startswith("cuDNN compiled persist_dynamic in ")


def test_a_result_of_an_earlier_process(simulator, messages, folder):
    x, weights = arrays_of(simulator)
    dnnffi.gru(x, None, weights, backend="cudnn", options={"tune": "now"})
    simulator.forget_plans()
    messages("INFO")
    dnnffi.gru(x, None, weights, backend="cudnn", options={"tune": "now"})
    (found,) = (one for one in messages("INFO") if "earlier process" in one)
    assert found.startswith("the result of an earlier process for RNNSpec(")
    assert found.endswith(" is used")


def test_captures_are_details_and_a_failed_one_is_not(simulator, messages):
    x, weights = arrays_of(simulator)
    options = {"tune": "now"}
    dnnffi.gru(x, None, weights, backend="cudnn", options=options)
    for _ in range(40):
        dnnffi.gru(x, None, weights, backend="cudnn", options=options)
    assert any(one.startswith("captured a call in ") for one in messages("DEBUG"))
    simulator.memory.fail_capture = lambda: RuntimeError("no capture here")
    other, _ = arrays_of(simulator)
    for _ in range(40):
        dnnffi.gru(other, None, weights, backend="cudnn", options=options)
    assert messages("INFO") == [
        "a capture failed, and calls run without a graph: RuntimeError: no capture here"
    ]


def test_an_algorithm_that_the_rule_guessed_and_the_library_refuses(
    simulator, messages, monkeypatch
):
    monkeypatch.setattr(
        "dnnffi.backends.cudnn.rnn_executor.rule", lambda problem, architecture: "persist_static"
    )
    x, weights = arrays_of(simulator)
    dnnffi.gru(x, None, weights, backend="cudnn", options={"tune": "off"})
    (found,) = messages("INFO")
    assert found.startswith("standard runs instead of persist_static, which was refused: ")


def test_a_measurement_of_a_convolution(simulator, messages, folder):
    conv(simulator, tune="now")
    (measured,) = (one for one in messages("INFO") if one.startswith("measured"))
    assert "candidates in" in measured
    simulator.forget_plans()
    conv(simulator)
    (found,) = (one for one in messages("INFO") if "earlier process" in one)
    assert found.endswith(" is used")


def test_the_engine_of_a_convolution_is_a_detail(simulator, messages):
    conv(simulator)
    (made,) = (one for one in messages("DEBUG") if "; made in " in one)
    assert "engine 1" in made


def test_an_engine_that_fails_when_it_runs(simulator, messages):
    conv(simulator)
    messages("INFO")
    simulator.control.standin_fail(b"cudnnBackendExecute", 1, INTERNAL_ERROR)
    conv(simulator)
    (found,) = messages("INFO")
    assert found.startswith("engine 2")
    assert " runs instead of engine 1" in found
    assert "CudnnError" in found
