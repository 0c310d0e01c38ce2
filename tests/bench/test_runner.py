"""The runner with a clock and models of the test's own."""

from __future__ import annotations

import itertools

import pytest

from dnnffi.bench import runner
from dnnffi.bench.creator import Creator, Limits
from dnnffi.bench.model import ModelDef
from dnnffi.bench.runner import Row, Runner, Settings
from dnnffi.bench.shapes import Shape

SHAPE = Shape("lstm", "float32", 2, 3, 4, 5)
SETTINGS = Settings(warm_up=6, warm_up_seconds=0.5, rounds=3, seconds=0.02, host_calls=2)


class FakeClock:
    """Every call takes 4 ms and 7 µs of the host; memory is what the log says."""

    def __init__(self):
        self.in_use = 100
        self.freed = 0

    def time(self, call, count):
        for _ in range(count):
            call()
        return 4.0, 7.0

    def used(self):
        return self.in_use

    def peak(self, call):
        call()
        return self.in_use + 50

    def is_out_of_memory(self, error):
        return isinstance(error, MemoryError)

    def free(self):
        self.freed += 1


@pytest.fixture
def clock(monkeypatch):
    made = FakeClock()
    monkeypatch.setattr(runner, "clock_for", lambda library, place: made)
    return made


def creator(name, log, *, fail_at=None, error=RuntimeError, about=None, **keywords):
    """A model that notes its calls; the call number ``fail_at`` raises, 0 when it is made."""

    def create(shape, data, place, training):
        calls = 0

        def forward():
            nonlocal calls
            calls += 1
            if calls == fail_at:
                raise error(f"{name} fails")
            log.append((name, "training" if training else "inference"))

        if fail_at == 0:
            raise error(f"{name} fails")
        return ModelDef(forward, about=about)

    return Creator(name, "array", create, **keywords)


def test_a_row_has_times_memory_and_calls(clock):
    (row, trained) = Runner("cpu", SETTINGS).rows(SHAPE, [creator("a", [])])
    assert row == Row(SHAPE.name, "a", "inference", ms=4.0, host_us=7.0, peak_bytes=50, calls=5)
    assert trained.phase == "training"


def test_a_model_is_made_for_its_phase(clock):
    made = []

    def create(shape, data, place, training):
        made.append((place, training))
        return ModelDef(lambda: None)

    rows = list(Runner("cpu", SETTINGS).rows(SHAPE, [Creator("a", "array", create)]))
    assert [row.phase for row in rows] == ["inference", "training"]
    assert made == [("cpu", False), ("cpu", True)]


def test_figures_are_medians_over_the_turns(clock, monkeypatch):
    milliseconds, host = itertools.cycle([9.0, 4.0, 1.0]), itertools.cycle([70.0, 20.0, 10.0])

    def time(call, count):  # a turn has five calls, and two for the host
        return (next(milliseconds) if count == 5 else 4.0), (next(host) if count == 2 else 7.0)

    monkeypatch.setattr(clock, "time", time)
    rows = list(Runner("cpu", SETTINGS).rows(SHAPE, [creator("a", [])]))
    assert [(row.ms, row.host_us) for row in rows] == [(4.0, 20.0)] * 2


def test_a_model_says_more_of_itself_behind_its_warm_up(clock):
    log = []
    made = creator("a", log, about=lambda: {"calls": len(log)})
    (row, _) = Runner("cpu", SETTINGS).rows(SHAPE, [made])
    assert row.about["calls"] >= SETTINGS.warm_up
    assert row.as_json()["about"] == row.about


def test_models_take_turns(clock):
    log = []
    list(Runner("cpu", SETTINGS).rows(SHAPE, [creator("a", log), creator("b", log)]))
    inference = [name for name, phase in log if phase == "inference"]
    turns = inference[-3 * 2 * 7 :]  # three rounds of 5 timed calls and 2 for the host
    assert turns == (["a"] * 7 + ["b"] * 7) * 3


def test_a_model_that_tunes_has_all_its_warm_up(clock, monkeypatch):
    seconds = iter(range(1000))
    monkeypatch.setattr(runner.time, "perf_counter", lambda: next(seconds))
    log = []
    list(Runner("cpu", SETTINGS).rows(SHAPE, [creator("a", log, tunes=True)]))
    # Warm-up, memory, three to find the calls of a turn, three rounds of 5 + 2.
    assert len(log) == 2 * (6 + 1 + 3 + 3 * 7)


def test_another_stops_warming_up_when_its_time_is_over(clock, monkeypatch):
    seconds = iter(range(1000))
    monkeypatch.setattr(runner.time, "perf_counter", lambda: next(seconds))
    log = []
    list(Runner("cpu", SETTINGS).rows(SHAPE, [creator("a", log)]))
    assert len(log) == 2 * (3 + 1 + 3 + 3 * 7)


def test_inference_alone_where_the_shape_says_so(clock):
    shape = Shape("lstm", "float32", 2, 3, 4, 5, training=False)
    (row,) = Runner("cpu", SETTINGS).rows(shape, [creator("a", [])])
    assert row.phase == "inference"


def test_memory_while_it_is_made_counts_for_what_is_captured(clock, monkeypatch):
    peaks = iter([900, 150, 900, 150])
    monkeypatch.setattr(clock, "peak", lambda call: (call(), next(peaks))[1])
    (row, _) = Runner("cpu", SETTINGS).rows(SHAPE, [creator("a", [], captures=True)])
    assert row.peak_bytes == 800


@pytest.mark.parametrize("fail_at", [0, 1, 8, 20])
def test_one_that_fails_leaves_and_the_others_go_on(clock, fail_at):
    log = []
    bad = creator("bad", log, fail_at=fail_at)
    rows = list(Runner("cpu", SETTINGS).rows(SHAPE, [bad, creator("good", log)]))
    failed = [row for row in rows if row.failed]
    assert [row.model for row in failed] == ["bad", "bad"]
    assert failed[0].failed == "RuntimeError: bad fails"
    assert failed[0].ms is None
    assert [row.ms for row in rows if row.model == "good"] == [4.0, 4.0]


def test_want_of_memory_is_named_and_memory_given_back(clock):
    bad = creator("bad", [], fail_at=0, error=MemoryError)
    (row, _) = Runner("cpu", SETTINGS).rows(SHAPE, [bad])
    assert row.failed == "out of memory"
    assert clock.freed


def test_what_does_not_fit_is_skipped_with_its_reason(clock):
    elsewhere = creator("a", [], fail_at=0, places=("gpu",))
    other = creator("b", [], fail_at=0, limits=Limits(modes=("gru",)))
    rows = list(Runner("cpu", SETTINGS).rows(SHAPE, [elsewhere, other]))
    assert [row.skipped for row in rows] == ["needs a GPU", "gru only"] * 2


def test_rows_in_json_have_only_what_is_known():
    row = Row("s", "m", "inference", ms=0.0, host_us=1.0)
    assert row.as_json() == {
        "shape": "s", "model": "m", "phase": "inference", "ms": 0.0, "host_us": 1.0
    }  # fmt: skip
