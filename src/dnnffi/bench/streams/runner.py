"""Measure streams: the models of a stream run their epochs in turns."""

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
from dnnffi.bench.streams.comparison import Comparison
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
    cold_epoch_s : seconds of the model's first epoch in this process. A model of dnnffi compiles
        its kernels in it, unless another model of the same stream or the comparison of results
        compiled them before
    known_ms : milliseconds of a batch in the later epoch run once more, when all sizes are known,
        median over the rounds; None for streams of sequences
    """

    turns_ms: tuple[float, ...] | None = None
    first_ms: float | None = None
    first_epoch_s: float | None = None
    cold_epoch_s: float | None = None
    known_ms: float | None = None


@dataclass
class _StreamContender(Contender):
    """A model whose turns are epochs."""

    model: Any = None
    epochs: Any = None
    cold_epoch_s: float = 0.0
    first_s: list[float] = field(default_factory=list)
    known_ms: list[float] = field(default_factory=list)


class StreamRunner(Runner):
    """Measurement of streams on ``place``, "cpu" or "gpu".

    A model that tunes itself begins each turn without plans and without tuning results, so that
    each turn has a first epoch. Other models have one first epoch. dnnffi stores compiled kernels
    and tuning results in a folder of the stream, which is empty at the start.

    If the results of a stream's models are compared, each model runs one batch before its first
    epoch. A model with different results fails.
    """

    settings: Any
    _comparison: Comparison

    def prepared(self, shape: Any) -> Any:
        """Return the stream with the numbers of batches and turns in the settings."""
        return shape.measured(self.settings.batches, self.settings.rounds)

    def rows(self, shape: Problem, creators: Sequence[Creator]) -> Iterator[Row]:
        """Yield the rows of one stream."""
        self._comparison = Comparison()
        with _empty_cache_folder(), _frozen_heap():
            yield from super().rows(shape, creators)

    def phases(self, shape: Problem) -> tuple[str, ...]:
        """Return the only phase of a stream."""
        return ("training" if shape.training else "inference",)

    def _enter(self, shape: Problem, data: Any, creator: Creator, phase: str) -> Contender:
        """Make the model, compare its results if that is due, and run the first epoch."""
        model: Any = creator.create(shape, data, self.place, shape.training)
        stream: Any = shape
        epochs = stream.epochs(creator.share) if creator.share else data.epochs
        contender = _StreamContender(
            creator, self._clock(creator), lambda: None, None, model=model, epochs=epochs
        )
        if shape.is_compared:
            self._comparison.check(creator.name, model, epochs.warm_up[0])
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
    """Exclude the objects of the imported libraries from Python's garbage collection.

    A full collection takes longer than an epoch of small batches.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _empty_cache_folder() -> Iterator[None]:
    """Let dnnffi store its files in an empty folder, which is removed at the end."""
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
    """Remove the files that dnnffi stored, except compiled kernels."""
    folder = cache_folder()
    if folder is not None and folder.exists():
        for path in folder.iterdir():
            if path.is_dir() and path != kernel_folder():
                shutil.rmtree(path)


RUNNER, DEFAULT = StreamRunner, Settings()
