"""The runner of streams with models and a clock of the test's own."""

from __future__ import annotations

import gc
import os
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from bench.stream_models import STREAMS

import dnnffi
from dnnffi.bench import runner as calls
from dnnffi.bench.clocks import Clock
from dnnffi.bench.creator import Creator
from dnnffi.bench.streams import images, runner
from dnnffi.bench.streams.model import StreamModel
from dnnffi.bench.streams.runner import Settings, StreamRunner

STREAM = STREAMS["ragged"]
SETTINGS = Settings(rounds=3, batches=5)


class FakeClock(Clock):
    """Epochs take the seconds of a list, and half of them on the host."""

    def __init__(self, seconds):
        self._seconds = iter(seconds)

    def loop(self, call, arguments):
        for argument in arguments:
            call(argument)
        taken = next(self._seconds)
        return taken, taken / 2


@pytest.fixture
def use(monkeypatch):
    def install(clock):
        monkeypatch.setattr(calls, "clock_for", lambda library, place: clock)

    return install


def creator(name, log, **keywords):
    """A model that notes what it makes and runs."""

    def create(stream, data, place, training):
        log.append((name, "made", data.epochs))

        def load(batch):
            log.append((name, "load", batch))
            return batch

        def step(batch):
            log.append((name, "step", batch))

        return StreamModel(load, step)

    return Creator(name, "array", create, **keywords)


def rows(creators, settings=SETTINGS):
    made = StreamRunner("cpu", settings)
    return list(made.rows(made.prepared(STREAM), creators))


def test_an_epoch_is_loaded_before_it_is_run(use):
    use(Clock())
    log = []
    rows([creator("a", log)])
    epochs = log[0][2]
    assert [len(epoch) for epoch in epochs] == [5, 5]
    (warm_up, later) = epochs
    expected = [("a", kind, batch) for kind in ("load", "step") for batch in warm_up]
    expected += [("a", kind, batch) for kind in ("load", "step") for batch in later] * 3
    assert log[1:] == expected


def test_a_model_that_tunes_has_a_first_epoch_in_each_turn_without_plans(use, monkeypatch):
    use(Clock())
    log = []
    monkeypatch.setattr(dnnffi, "clear_plans", lambda: log.append(("", "clear", None)))
    rows([creator("a", log, tunes=True)])
    kinds = [kind for _, kind, _ in log]
    first = ["clear", *["load"] * 5, *["step"] * 5]
    later = first[1:]
    assert kinds[:-1] == ["made", *first, *(first + later) * 3]


def test_images_run_a_later_epoch_once_more_on_the_sizes_of_their_share(use):
    use(FakeClock([9.0, 1.0, 0.5, 3.0, 0.25, 2.0, 0.75]))
    log = []
    runner = StreamRunner("cpu", SETTINGS)
    stream = runner.prepared(images.TINY[0])
    (row,) = runner.rows(stream, [creator("a", log, share=1)])
    epochs = stream.epochs(share=1)
    expected = [epochs.warm_up, *(later for later in epochs.later for _ in range(2))]
    assert [batch for _, kind, batch in log if kind == "step"] == list(chain(*expected))
    assert row.turns_ms == (200.0, 600.0, 400.0)
    assert row.known_ms == 100.0


def test_models_take_turns(use):
    use(Clock())
    log = []
    rows([creator("a", log), creator("b", log)])
    steps = "".join(name for name, kind, _ in log if kind == "step")
    assert steps == "a" * 5 + "b" * 5 + ("a" * 5 + "b" * 5) * 3


def test_figures_are_medians_of_a_batch(use):
    use(FakeClock([9.0, 1.0, 3.0, 2.0]))
    (row,) = rows([creator("a", [])])
    assert row.phase == "training"
    assert (row.ms, row.host_us) == (400.0, 200_000.0)
    assert row.turns_ms == (200.0, 600.0, 400.0)
    assert (row.cold_epoch_s, row.first_epoch_s, row.first_ms) == (9.0, 9.0, 1800.0)


def test_first_epochs_of_a_model_that_tunes_are_medians_without_the_cold_one(use):
    use(FakeClock([9.0, 2.0, 1.0, 5.0, 3.0, 4.0, 2.0]))
    (row,) = rows([creator("a", [], tunes=True)])
    assert row.turns_ms == (200.0, 600.0, 400.0)
    assert (row.cold_epoch_s, row.first_epoch_s, row.first_ms) == (9.0, 4.0, 800.0)


def test_what_is_kept_on_disk_is_in_an_empty_folder_without_tuning_results(use, monkeypatch):
    use(Clock())
    monkeypatch.setenv("DNNFFI_CACHE_DIR", "elsewhere")
    seen = []

    def create(stream, data, place, training):
        def step(batch):
            folder = Path(os.environ["DNNFFI_CACHE_DIR"])
            seen.append(sorted(path.name for path in folder.glob("*")))
            for name in ("kernels", "networks"):
                (folder / name).mkdir(parents=True, exist_ok=True)
                (folder / name / "file").touch()

        return StreamModel(lambda batch: batch, step)

    rows([Creator("a", "array", create, tunes=True)])
    assert os.environ["DNNFFI_CACHE_DIR"] == "elsewhere"
    first, later = seen[:5], seen[10:15]
    assert first == [[], *[["kernels", "networks"]] * 4]
    assert later == [["kernels", "networks"]] * 5
    turns = [seen[start] for start in range(5, 35, 10)]
    assert turns == [["kernels"]] * 3


def test_the_folder_of_the_user_is_named_again_after_a_failure(use, monkeypatch):
    use(Clock())
    monkeypatch.delenv("DNNFFI_CACHE_DIR", raising=False)
    with pytest.raises(KeyboardInterrupt):
        rows([Creator("a", "array", lambda *_: interrupt())])
    assert "DNNFFI_CACHE_DIR" not in os.environ


def interrupt():
    raise KeyboardInterrupt


def test_a_model_that_fails_is_named_and_the_others_go_on(use):
    use(Clock())

    def create(*_):
        raise ValueError("odd")

    failed, row = rows([Creator("bad", "array", create), creator("good", [])])
    assert failed.failed == "ValueError: odd"
    assert row.ms is not None


def test_a_clock_counts_the_host_until_the_last_call_and_the_rest_until_all_is_done(monkeypatch):
    seconds = iter([0.0, 1.0, 3.0])
    monkeypatch.setattr("dnnffi.bench.clocks.time.perf_counter", lambda: next(seconds))
    drained = []
    clock = Clock()
    clock.drain = drained.append
    assert clock.loop(lambda value: value + 1, [1, 2]) == (3.0, 1.0)
    assert drained == [None, 3]


def test_the_garbage_collector_leaves_out_what_was_there_before(use):
    use(Clock())
    counts = []

    def create(stream, data, place, training):
        return StreamModel(lambda batch: batch, lambda batch: counts.append(gc.get_freeze_count()))

    rows([Creator("a", "array", create)])
    assert min(counts) > 1000
    assert gc.get_freeze_count() == 0


def test_json_has_the_turns(use):
    use(FakeClock([9.0, 1.0, 3.0, 2.0]))
    (row,) = rows([creator("a", [])])
    assert row.as_json()["turns_ms"] == (200.0, 600.0, 400.0)
    assert np.isclose(row.as_json()["first_epoch_s"], 9.0)
    assert "peak_bytes" not in row.as_json()


def test_quick_is_shorter():
    assert runner.QUICK.batches < runner.DEFAULT.batches
    assert runner.QUICK.rounds < runner.DEFAULT.rounds
