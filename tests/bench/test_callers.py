"""Entries of dnnffi on NumPy arrays, and the aims of a record of callers."""

from __future__ import annotations

import numpy as np
import pytest
from bench.bench_models import SHAPES, check_against_the_reference

from dnnffi.bench.callers import array_models, problems, report

EQUAL = sorted(name for name, shape in SHAPES.items() if not shape.lengths)


@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize("creator", array_models.CREATORS, ids=lambda creator: creator.name)
def test_against_the_reference(creator, name):
    check_against_the_reference(creator.create, SHAPES[name])


def test_calls_on_new_arrays_have_others_than_in_many_calls_before(monkeypatch):
    seen = []
    lstm = array_models.dnnffi.lstm_forward

    def note(x, *arguments):
        seen.append(x)
        return lstm(x, *arguments)

    monkeypatch.setattr(array_models.dnnffi, "lstm_forward", note)
    shape = SHAPES["one layer"]
    data = shape.draw()
    model = array_models.new_arrays(shape, data, "cpu", True)
    for _ in range(70):
        model.once()
    assert len({array.ctypes.data for array in seen[:64]}) == 64
    assert seen[64] is seen[0]
    assert all(np.array_equal(array, data.x) for array in seen)


def test_both_are_called_until_they_are_tuned():
    assert all(creator.tunes for creator in array_models.CREATORS)


def test_the_networks_are_those_that_were_measured_first():
    assert [shape.name for shape in problems.CALLERS] == [
        "lstm f16 100 64 512 512 1 uni",
        "lstm f32 100 64 512 512 1 uni",
        "gru f32 100 32 256 256 2 uni",
        "lstm f32 20 1 128 128 1 uni",
    ]


# Reports

TIMES = {  # milliseconds and host microseconds
    "dnnffi": (0.2, 17.0),
    "dnnffi allocator": (0.21, 30.0),
    "dnnffi torch list": (0.22, 60.0),
    "empty autograd function": (0.01, 25.0),
}


def record(times=TIMES, network="a", phases=("inference", "training")):
    rows = [
        {"shape": network, "model": model, "phase": phase, "ms": ms, "host_us": host}
        for phase in phases
        for model, (ms, host) in times.items()
    ]
    return {"rows": rows, "shapes": [{"name": network, "sets": ["callers"]}]}


def test_an_entry_is_compared_beyond_the_empty_call_of_its_library():
    found = record()
    (one, _) = report.excesses(found, "dnnffi torch list")
    assert (one.network, one.phase) == ("a", "inference")
    assert one.ratio == pytest.approx(1.1)
    assert one.extra_us == pytest.approx(60 - 17 - 25)
    assert one.is_gpu_bound
    (one, _) = report.excesses(found, "dnnffi allocator")
    assert one.extra_us == pytest.approx(13)


@pytest.mark.parametrize(("ms", "bound"), [(0.061, True), (0.059, False)])
def test_the_gpu_limits_a_call_whose_functions_take_longer_than_the_entry_on_the_host(ms, bound):
    (one,) = report.excesses(
        record(TIMES | {"dnnffi": (ms, 17.0)}, phases=["inference"]), "dnnffi torch list"
    )
    assert one.is_gpu_bound is bound


def by_what(found):
    return {target.what: target for target in report.targets(found)}


def test_aims_are_compared_with_the_worst_network():
    found = record()
    slow = {"dnnffi": (0.02, 17.0), "dnnffi allocator": (0.05, 29.0)}
    found["rows"] += record(slow, "b")["rows"]
    targets = by_what(found)
    ratio = targets["dnnffi allocator, time of a call, limited by the GPU"]
    assert (ratio.measured, ratio.reached) == ("at most 1.05x (a, inference)", True)
    extra = targets["dnnffi allocator, host cost beyond, inference, limited by the host"]
    assert (extra.aim, extra.measured, extra.reached) == ("<= 10 µs", "at most +12.0 µs (b)", False)
    extra = targets["dnnffi allocator, host cost beyond, forward + backward, limited by the host"]
    assert (extra.aim, extra.reached) == ("<= 15 µs", True)
    assert targets["dnnffi torch list, time of a call, limited by the GPU"].reached is False
    jax = targets["dnnffi jax, time of a call, limited by the GPU"]
    assert (jax.measured, jax.reached) == ("not measured", None)


def test_the_table_has_each_entry(capsys):
    head, rows = report.table(record(), "training")
    found = {row[1]: dict(zip(head, row, strict=True)) for row in rows}
    listed = found["dnnffi torch list"]
    assert (listed["ms"], listed["x dnnffi"], listed["extra µs"]) == ("0.220", "1.10", "+18.0")
    assert found["dnnffi"]["extra µs"] == found["empty autograd function"]["extra µs"] == ""
    assert [row[0] for row in rows] == ["a", "", "", ""]
    skipped = {"shape": "a", "model": "dnnffi jax", "phase": "training", "skipped": "no GPU"}
    report.print_record(record() | {"rows": [*record()["rows"], skipped]}, "a name")
    out = capsys.readouterr().out
    assert "Forward + backward" in out
    assert "Not measured: dnnffi jax (no GPU: 1 shape)" in out
    assert "dnnffi torch list, time of a call, limited by the GPU compared with dnnffi, aim" in out
    assert "at most 1.10x (a, inference), missed" in out
