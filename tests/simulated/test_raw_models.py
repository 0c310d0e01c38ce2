"""The benchmark's model of the library alone, on the stand-in."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from bench import bench_models

import dnnffi
from dnnffi.bench import array_models, raw_models
from dnnffi.rnn.route_choice import Times, choose

SHAPES = bench_models.SHAPES
SINGLE = replace(bench_models.ONE, dtype="float32")  # which all algorithms take


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_the_library_alone_gives_what_the_reference_gives(simulator, name, training):
    shape = SHAPES[name]
    expected, gradients = bench_models.run(array_models.functional, shape, training=training)
    found, graded = bench_models.run(raw_models.raw, shape, place="gpu", training=training)
    bench_models.check(found, expected[:2])
    if training:
        bench_models.check(list(graded), list(gradients))


def made(shape, training=True):
    return raw_models.raw(shape, shape.draw(), "gpu", training)


def timed(monkeypatch, **replayed):
    """Set the milliseconds of each algorithm as a graph, None without one, or its refusal."""

    def tune(candidates, problem, *arguments, **keywords):
        times = {f"cudnn {n}": Times(9.0, t) for n, t in replayed.items() if not isinstance(t, str)}
        refused = {f"cudnn {n}": why for n, why in replayed.items() if isinstance(why, str)}
        return choose(times, refused)

    monkeypatch.setattr(raw_models, "tune", tune)


def test_the_fastest_algorithm_is_the_model(simulator, monkeypatch):
    timed(monkeypatch, standard=3.0, persist_static=1.0, persist_dynamic=4.0)
    about = made(SINGLE).about()
    assert about["algorithm"] == "persist_static"
    assert {name: one["ms"] for name, one in about["algorithms"].items()} == {
        "standard": 3.0,
        "persist_static": 1.0,
        "persist_dynamic": 4.0,
    }
    assert about["algorithms"]["standard"]["workspace_bytes"] > 0
    assert about["algorithms"]["standard"]["reserve_bytes"] > 0


def test_a_standard_algorithm_that_was_not_captured_has_its_buffers_and_no_time(
    simulator, monkeypatch
):
    timed(monkeypatch, standard=None, persist_static=1.0)
    standard = made(SINGLE).about()["algorithms"]["standard"]
    assert standard.keys() == {"workspace_bytes", "reserve_bytes"}


def test_without_a_captured_algorithm_the_fastest_call_is_the_model(simulator, monkeypatch):
    timed(monkeypatch, standard=None)
    assert made(SINGLE).about()["algorithm"] == "standard"


def test_what_is_launched_is_kept_and_nothing_else(simulator):
    model = made(SINGLE)
    gc.collect()
    assert simulator.live("rnn") == 1
    assert sum(graph() is not None for graph in simulator.memory.graphs) == 1
    calls = simulator.calls("cudnnRNNForward")
    model.step()()
    assert simulator.calls("cudnnRNNForward") == calls + 1
    assert simulator.violation == ""


def test_a_launch_is_all_that_a_call_is(simulator):
    model = made(SINGLE, training=False)
    allocations = simulator.memory.allocations
    model.forward()
    assert simulator.memory.allocations == allocations


def test_what_was_refused_is_told_with_the_reason(simulator, monkeypatch):
    timed(monkeypatch, standard=3.0, persist_static="too far apart", persist_dynamic=2.0)
    about = made(SINGLE).about()
    assert about["algorithm"] == "persist_dynamic"
    assert about["algorithms"]["persist_static"] == {"refused": "too far apart"}


def test_without_the_standard_algorithm_there_is_no_model(simulator):
    simulator.control.standin_fail(b"cudnnRNNForward", 1, 8)
    with pytest.raises(RuntimeError, match="standard algorithm does not run"):
        made(SINGLE)


def test_a_call_of_dnnffi_says_its_algorithm_and_buffers(simulator):
    data = bench_models.ONE.draw()
    arrays = [simulator.asarray(array) for array in data.weights]
    weights = dnnffi.RNNWeights.pack(
        arrays,
        bench_models.ONE.spec,
        backend="cudnn",
        out=simulator.memory.empty((180,), "float64"),
    )
    x = simulator.asarray(data.x)
    _, _, ctx = dnnffi.lstm_forward(
        x, None, weights, options={"algorithm": "standard"}, backend="cudnn"
    )
    about = array_models._about_the_newest_plan()
    assert about["algorithm"] == "standard"
    assert about["reserve_bytes"] == ctx._saved.context.owner.nbytes
    assert about["workspace_bytes"] > 0
