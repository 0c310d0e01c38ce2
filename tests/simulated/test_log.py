"""Messages of the logger ``dnnffi`` for calls on the stand-in for cuDNN."""

from __future__ import annotations

import logging

import conformance_conv
import numpy as np
import pytest

import dnnffi
from dnnffi import testing
from dnnffi.rnn.route import CALLS_BEFORE_TUNING
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


def arrays_of(host, spec=SPEC):
    rng = np.random.default_rng(0)
    size = dnnffi.weight_layout(spec, "cudnn").size
    flat = rng.uniform(-0.5, 0.5, size).astype(spec.dtype)
    weights = dnnffi.RNNWeights(host.asarray(flat), spec)
    return host.asarray(rng.standard_normal(spec.x_shape(STEPS, BATCH))), weights


def conv(host, **options):
    problem = dnnffi.ConvProblem.of("forward", CONV, X_SHAPE, options=ConvOptions(**options))
    arrays = testing.conv_inputs(problem, 0)
    conformance_conv.check_values(problem, arrays, host.asarray, "cudnn")


def test_the_choice_for_a_new_plan_is_a_detail_and_a_known_call_says_nothing(host, messages):
    x, weights = arrays_of(host)
    dnnffi.gru(x, None, weights, backend="cudnn")
    assert any(one.startswith("standard runs RNNSpec(") for one in messages("DEBUG"))
    dnnffi.gru(x, None, weights, backend="cudnn")
    assert messages("DEBUG") == []


def test_a_measurement_of_a_network(host, messages):
    x, weights = arrays_of(host)
    for _ in range(CALLS_BEFORE_TUNING):
        dnnffi.gru(x, None, weights, backend="cudnn")
    (measured,) = (one for one in messages("INFO") if one.startswith("measured"))
    assert "for RNNSpec(mode='gru'" in measured
    assert measured.endswith(" runs it")


def test_candidates_of_a_measurement_are_details(host, messages):
    x, weights = arrays_of(host)
    dnnffi.gru(x, None, weights, backend="cudnn", options={"tune": "now"})
    found = messages("DEBUG")
    assert any(one.startswith("candidate cudnn standard: ") for one in found)


def test_the_time_that_cudnn_takes_to_compile(host, messages):
    x, weights = arrays_of(host)
    options = {"algorithm": "persist_dynamic", "tune": "off"}
    dnnffi.gru(x, None, weights, backend="cudnn", options=options)
    (compiled,) = (one for one in messages("INFO") if "compiled" in one)
    assert compiled.startswith("cuDNN compiled persist_dynamic in ")


def test_a_result_of_an_earlier_process(host, messages, folder):
    x, weights = arrays_of(host)
    dnnffi.gru(x, None, weights, backend="cudnn", options={"tune": "now"})
    host.forget_plans()
    messages("INFO")
    dnnffi.gru(x, None, weights, backend="cudnn", options={"tune": "now"})
    (found,) = (one for one in messages("INFO") if "earlier process" in one)
    assert found.startswith("the result of an earlier process for RNNSpec(")
    assert found.endswith(" is used")


def test_captures_are_details_and_a_failed_one_is_not(host, messages):
    x, weights = arrays_of(host)
    options = {"tune": "now"}
    dnnffi.gru(x, None, weights, backend="cudnn", options=options)
    for _ in range(40):
        dnnffi.gru(x, None, weights, backend="cudnn", options=options)
    assert any(one.startswith("captured a call in ") for one in messages("DEBUG"))
    host.memory.fail_capture = lambda: RuntimeError("no capture here")
    other, _ = arrays_of(host)
    for _ in range(40):
        dnnffi.gru(other, None, weights, backend="cudnn", options=options)
    assert messages("INFO") == [
        "a capture failed, and calls run without a graph: RuntimeError: no capture here"
    ]


def test_an_algorithm_that_the_rule_guessed_and_the_library_refuses(host, messages, monkeypatch):
    monkeypatch.setattr(
        "dnnffi.backends.cudnn.rnn_executor.rule", lambda problem, architecture: "persist_static"
    )
    x, weights = arrays_of(host)
    dnnffi.gru(x, None, weights, backend="cudnn", options={"tune": "off"})
    (found,) = messages("INFO")
    assert found.startswith("standard runs instead of persist_static, which was refused: ")


def test_a_measurement_of_a_convolution(host, messages, folder):
    conv(host, tune="now")
    (measured,) = (one for one in messages("INFO") if one.startswith("measured"))
    assert "candidates in" in measured
    host.forget_plans()
    conv(host)
    (found,) = (one for one in messages("INFO") if "earlier process" in one)
    assert found.endswith(" is used")


def test_the_engine_of_a_convolution_is_a_detail(host, messages):
    conv(host)
    (made,) = (one for one in messages("DEBUG") if "; made in " in one)
    assert "engine 1" in made


def test_an_engine_that_fails_when_it_runs(host, messages):
    conv(host)
    messages("INFO")
    host.control.standin_fail(b"cudnnBackendExecute", 1, INTERNAL_ERROR)
    conv(host)
    (found,) = messages("INFO")
    assert found.startswith("engine 2")
    assert " runs instead of engine 1" in found
    assert "CudnnError" in found
