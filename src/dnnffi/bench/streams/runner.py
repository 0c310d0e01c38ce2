"""Measure streams: the epochs of all models of a stream in turns, stream after stream."""

from __future__ import annotations

import gc
import os
import shutil
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dnnffi
from dnnffi.bench.creator import Creator
from dnnffi.bench.model import Problem
from dnnffi.bench.runner import Contender, Row, Runner
from dnnffi.bench.streams.model import StreamModel
from dnnffi.bench.streams.problems import NUM_BATCHES
from dnnffi.cache_folder import ENVIRONMENT_VARIABLE, cache_folder
from dnnffi.runtime.kernels import kernel_folder


@dataclass(frozen=True)
class Settings:
    """Length of a measurement.

    rounds : turns of each model; the figures are medians over them
    batches : batches of an epoch
    """

    rounds: int = 3
    batches: int = NUM_BATCHES


QUICK = Settings(rounds=1, batches=16)


@dataclass(frozen=True)
class StreamRow(Row):
    """Figures of one model on one stream; ``ms`` and ``host_us`` are those of the later epoch.

    turns_ms : milliseconds of a batch in each round, of which ``ms`` is the median
    first_ms : milliseconds of a batch in the first epoch, median over the rounds
    first_epoch_s : seconds of the first epoch, median over the rounds
    cold_epoch_s : seconds of the first epoch that the model ran in this process. Models of dnnffi
        compile their kernels in it, unless another model of the same stream did before
    known_ms : milliseconds of a batch in the later epoch run once more, median over the rounds:
        all sizes are known then. Streams of images alone have it
    """

    turns_ms: tuple[float, ...] | None = None
    first_ms: float | None = None
    first_epoch_s: float | None = None
    cold_epoch_s: float | None = None
    known_ms: float | None = None


@dataclass
class _StreamContender(Contender):
    """A model that takes its turns by epochs."""

    model: Any = None
    epochs: Any = None
    cold_epoch_s: float = 0.0
    first_s: list[float] = field(default_factory=list)
    known_ms: list[float] = field(default_factory=list)


class StreamRunner(Runner):
    """Runs streams on ``place``, "cpu" or "gpu".

    A model that tunes itself begins each turn without plans and without tuning results, so that
    each turn has a first epoch. A model that does not tune itself has its first epoch once. dnnffi
    keeps what it compiles and measures in a folder of this run, which is empty when it begins.
    """

    settings: Any

    def prepared(self, shape: Any) -> Any:
        """The stream with the number of batches and turns that is measured."""
        return shape.measured(self.settings.batches, self.settings.rounds)

    def rows(self, shape: Problem, creators: Sequence[Creator]) -> Iterator[Row]:
        """The rows of one stream."""
        with _empty_cache_folder(), _frozen_heap():
            yield from super().rows(shape, creators)

    def phases(self, shape: Problem) -> tuple[str, ...]:
        """The one phase of a stream."""
        return ("training" if shape.training else "inference",)

    def _enter(self, shape: Problem, data: Any, creator: Creator, phase: str) -> Contender:
        """Make the model, and run the first epoch."""
        model: Any = creator.create(shape, data, self.place, shape.training)
        stream: Any = shape
        epochs = stream.epochs(creator.share) if creator.share else data.epochs
        contender = _StreamContender(
            creator, self._clock(creator), lambda: None, None, model=model, epochs=epochs
        )
        self._first_epoch(contender)
        contender.cold_epoch_s = contender.first_s[0]
        if creator.tunes:
            contender.first_s.clear()
        return contender

    def _turn(self, contender: Contender) -> bool:
        assert isinstance(contender, _StreamContender)
        if contender.creator.tunes:
            self._first_epoch(contender)
        batches = contender.epochs.of_turn(len(contender.ms))
        seconds, host = self._epoch(contender, batches)
        contender.ms.append(seconds / len(batches) * 1e3)
        contender.host_us.append(host / len(batches) * 1e6)
        if contender.epochs.is_repeated:
            seconds, _ = self._epoch(contender, batches)
            contender.known_ms.append(seconds / len(batches) * 1e3)
        return True

    def _first_epoch(self, contender: _StreamContender) -> None:
        if contender.creator.tunes:
            dnnffi.clear_plans()
            _remove_tuning_results()
        seconds, _ = self._epoch(contender, contender.epochs.warm_up)
        contender.first_s.append(seconds)

    def _epoch(self, contender: _StreamContender, batches: Sequence[Any]) -> tuple[float, float]:
        model: StreamModel = contender.model
        arrays = [model.load(batch) for batch in batches]
        contender.clock.drain(arrays)
        return contender.clock.loop(model.step, arrays)

    def _row(self, shape: Problem, phase: str, contender: Contender) -> Row:
        assert isinstance(contender, _StreamContender)
        first = statistics.median(contender.first_s)
        return StreamRow(
            shape.name,
            contender.creator.name,
            phase,
            ms=statistics.median(contender.ms),
            host_us=statistics.median(contender.host_us),
            turns_ms=tuple(contender.ms),
            first_ms=first / len(contender.epochs.warm_up) * 1e3,
            first_epoch_s=first,
            cold_epoch_s=contender.cold_epoch_s,
            known_ms=statistics.median(contender.known_ms) if contender.known_ms else None,
        )


@contextmanager
def _frozen_heap() -> Iterator[None]:
    """Keep Python's garbage collector from going through what the libraries imported.

    A collection of everything takes longer than an epoch of small batches.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _empty_cache_folder() -> Iterator[None]:
    """Let dnnffi keep its files in an empty folder, which is removed at the end."""
    before = os.environ.get(ENVIRONMENT_VARIABLE)
    with TemporaryDirectory() as folder:
        os.environ[ENVIRONMENT_VARIABLE] = str(Path(folder) / "dnnffi")
        try:
            yield
        finally:
            if before is None:
                del os.environ[ENVIRONMENT_VARIABLE]
            else:
                os.environ[ENVIRONMENT_VARIABLE] = before


def _remove_tuning_results() -> None:
    """Remove what dnnffi keeps on disk, except compiled kernels."""
    folder = cache_folder()
    if folder is not None and folder.exists():
        for path in folder.iterdir():
            if path.is_dir() and path != kernel_folder():
                shutil.rmtree(path)


RUNNER, DEFAULT = StreamRunner, Settings()
