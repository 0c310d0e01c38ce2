"""The benchmark's model of the library alone, on the stand-in."""

from __future__ import annotations

import gc
from dataclasses import replace

import bench_models
import pytest

import dnnffi
from dnnffi.bench import array_models, raw_models
from dnnffi.errors import CudnnError
from dnnffi.rnn.engines import engine_named

SHAPES = bench_models.SHAPES
SINGLE = replace(bench_models.ONE, dtype="float32")  # which all algorithms take


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_the_library_alone_gives_what_the_reference_gives(host, name, training):
    shape = SHAPES[name]
    expected, gradients = bench_models.run(array_models.functional, shape, training=training)
    found, graded = bench_models.run(raw_models.raw, shape, place="gpu", training=training)
    bench_models.check(found, expected[:2])
    if training:
        bench_models.check(list(graded), list(gradients))


def made(shape, training=True):
    return raw_models.raw(shape, shape.draw(), "gpu", training)


def timed(monkeypatch, times):
    """Each candidate is as fast as ``times`` says, by its place among those that run."""
    left = iter(times)
    monkeypatch.setattr(raw_models, "median_time", lambda call, memory, best: next(left))


def test_the_fastest_algorithm_is_the_model(host, monkeypatch):
    timed(monkeypatch, [3.0, 1.0, 2.0, 4.0])
    about = made(SINGLE).about()
    assert about["algorithm"] == "persist_static"
    assert {name: one["ms"] for name, one in about["algorithms"].items()} == {
        "standard": 3.0,
        "persist_static": 1.0,
        "persist_static_small_h": 2.0,
        "persist_dynamic": 4.0,
    }
    assert all(one["workspace_bytes"] > 0 for one in about["algorithms"].values())
    assert all(one["reserve_bytes"] > 0 for one in about["algorithms"].values())


def test_what_is_launched_is_kept_and_nothing_else(host, monkeypatch):
    timed(monkeypatch, [1.0, 2.0, 3.0, 4.0])
    model = made(SINGLE)
    gc.collect()
    assert host.live("rnn") == 1
    assert sum(graph() is not None for graph in host.memory.graphs) == 1
    calls = host.calls("cudnnRNNForward")
    model.step()()
    assert host.calls("cudnnRNNForward") == calls + 1
    assert host.violation == ""


def test_a_launch_is_all_that_a_call_is(host):
    model = made(SINGLE, training=False)
    allocations = host.memory.allocations
    model.forward(*model.inputs)
    assert host.memory.allocations == allocations


def test_an_algorithm_that_fails_or_differs_is_left_out_with_the_reason(host, monkeypatch):
    kernels = type(engine_named("cudnn").kernels)
    make = kernels.make
    differing = iter(["", "too far apart", ""])

    def failing(self, problem, candidate, device, generator=None):
        if candidate == "persist_static_small_h":
            raise MemoryError("none left")
        return make(self, problem, candidate, device, generator)

    monkeypatch.setattr(kernels, "make", failing)
    monkeypatch.setattr(raw_models, "disagreement", lambda *arguments: next(differing))
    timed(monkeypatch, [3.0, 1.0, 2.0])
    about = made(SINGLE).about()
    assert about["algorithm"] == "persist_dynamic"
    assert about["algorithms"]["persist_static"] == {"refused": "too far apart"}
    assert about["algorithms"]["persist_static_small_h"] == {"refused": "MemoryError: none left"}


def test_without_the_standard_algorithm_there_is_no_model(host):
    host.control.standin_fail(b"cudnnRNNForward", 1, 8)
    with pytest.raises(CudnnError):
        made(SINGLE)


def test_a_call_of_dnnffi_says_its_algorithm_and_buffers(host):
    data = bench_models.ONE.draw()
    arrays = [host.asarray(array) for array in data.weights]
    weights = dnnffi.RNNWeights.pack(
        arrays, bench_models.ONE.spec, backend="cudnn", out=host.memory.empty((180,), "float64")
    )
    x = host.asarray(data.x)
    _, _, ctx = dnnffi.lstm_forward(
        x, None, weights, options={"algorithm": "standard"}, backend="cudnn"
    )
    about = array_models._about_the_newest_plan()
    assert about["algorithm"] == "standard"
    assert about["reserve_bytes"] == ctx._saved.context.reserve.nbytes
    assert about["workspace_bytes"] > 0
