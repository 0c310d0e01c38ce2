"""Tests of measured networks: what `tune` is asked for, and where a program uses it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import dnnffi
from dnnffi import jax as djax
from dnnffi.backends.cudnn.entry import CUDNN
from dnnffi.jax.rnn import tuning
from dnnffi.jax.rnn.engine import VendorEngine
from dnnffi.rnn.route_choice import RouteChoice
from dnnffi.spec.options import rnn_options

SPEC = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2)
PROBLEM = dnnffi.RNNProblem.dense(SPEC, steps=5, batch=4)


@pytest.mark.parametrize(
    ("arguments", "keywords", "problem"),
    [
        ((4, 5), {}, PROBLEM._replace(training=True)),
        ((4, 5, False), {}, PROBLEM),
        ((4, 5, False), {"resets": True}, PROBLEM._replace(has_resets=True)),
        (
            (2, 5),
            {"batch_first": True, "lengths": (2, 5), "options": {"math": "fast"}},
            dnnffi.RNNProblem.dense(
                SPEC,
                steps=5,
                batch=2,
                batch_first=True,
                lengths=(2, 5),
                training=True,
                options=rnn_options({"math": "fast"}, "lstm"),
            ),
        ),
    ],
)
def test_tune_measures_the_problem_that_was_asked_for(monkeypatch, arguments, keywords, problem):
    measured = []

    class Engine:
        def device(self):
            return 3

        def decide(self, problem):
            return "own 1" if measured else "cudnn standard"

    def measure(problem, device):
        measured.append((problem, device))

    way = SimpleNamespace(handlers=SimpleNamespace(engine=Engine()))
    backend = SimpleNamespace(tuner=SimpleNamespace(measure=measure))
    monkeypatch.setitem(tuning.IMPLEMENTATIONS, "cudnn", way)
    backends = SimpleNamespace(external={"cudnn": backend}.__getitem__)
    monkeypatch.setattr(tuning, "rnn_backends", backends)
    assert djax.tune(SPEC, *arguments, **keywords) == "own 1"
    assert measured == [(problem, 3)]


def test_tune_is_told_by_a_bool_that_calls_have_resets():
    with pytest.raises(TypeError, match=r"^resets must be True or False"):
        djax.tune(SPEC, 4, 5, resets=[[True]])


@pytest.mark.parametrize(
    ("replayed", "options", "expected"),
    [
        ("cudnn persist_static", {}, "cudnn persist_static"),  # XLA captures
        (None, {}, "cudnn persist_dynamic"),
        ("cudnn persist_static", {"tune": "off"}, "cudnn standard"),
        ("cudnn persist_static", {"algorithm": "standard"}, ""),
    ],
)
def test_what_was_measured_is_used_unless_the_options_say_otherwise(
    standin, replayed, options, expected
):
    choice = RouteChoice("cudnn persist_dynamic", replayed, {}, {})
    tuner = SimpleNamespace(find=lambda problem, device: choice)
    engine = VendorEngine(CUDNN, standin.library, tuner)
    problem = PROBLEM._replace(options=rnn_options(options, "lstm"))
    assert engine.decide(problem) == expected
    for handle in engine._handles.get(0, ()):
        handle.close()


def test_what_was_not_measured_goes_by_the_rule(standin):
    tuner = SimpleNamespace(find=lambda problem, device: None)
    engine = VendorEngine(CUDNN, standin.library, tuner)
    assert engine.decide(PROBLEM) == "cudnn standard"
    for handle in engine._handles[0]:
        handle.close()
