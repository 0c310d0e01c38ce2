"""Measure the models of a problem in turns, problem after problem."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dnnffi
from dnnffi.bench.clocks import Clock, clock_for
from dnnffi.bench.creator import Creator
from dnnffi.bench.model import ModelDef, Problem

PHASES = ("inference", "training")
"""Forward pass only, and forward pass with all gradients."""

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Settings:
    """Length of a measurement.

    warm_up : calls of each model before it is timed. A model that does not tune itself makes at
        most the calls that fit in ``warm_up_seconds``, but at least three.
    rounds : turns of each model; the figures are medians over them
    seconds : approximate length of a turn
    host_calls : upper bound on the calls for the host's time, so few that the stream's queue does
        not fill
    """

    warm_up: int = 60
    warm_up_seconds: float = 1.0
    rounds: int = 11
    seconds: float = 0.02
    host_calls: int = 20


QUICK = Settings(rounds=3, seconds=0.005)


@dataclass(frozen=True)
class Row:
    """Figures of one model on one shape in one phase, or why there are none.

    ms : milliseconds of a call in a loop
    host_us : microseconds until a call returns
    peak_bytes : maximum memory in use during a call, minus that before the model was made
    calls : calls of a turn
    about : further facts that the model reports
    skipped : why the model was not run
    failed : how it failed
    """

    shape: str
    model: str
    phase: str
    ms: float | None = None
    host_us: float | None = None
    peak_bytes: int | None = None
    calls: int | None = None
    about: dict[str, Any] | None = None
    skipped: str = ""
    failed: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the fields that have a value, for the record of a run."""
        return {name: value for name, value in vars(self).items() if value not in (None, "")}


@dataclass
class Contender:
    """A model that is measured, and the times of its turns."""

    creator: Creator
    clock: Clock
    call: Callable[[], Any]
    peak_bytes: int | None
    about: dict[str, Any] | None = None
    calls: int = 1
    ms: list[float] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)


class Runner:
    """Measurement of problems on ``place``, "cpu" or "gpu"."""

    def __init__(self, place: str, settings: Settings) -> None:
        self.place = place
        self.settings = settings
        self._clocks: dict[str, Clock] = {}

    def prepared(self, shape: Any) -> Any:
        """Return the problem as the settings change it; here unchanged."""
        return shape

    def rows(self, shape: Problem, creators: Sequence[Creator]) -> Iterator[Row]:
        """Yield the rows of one problem, inference before training."""
        phases = self.phases(shape)
        skipped = {creator: creator.why_not(shape, self.place) for creator in creators}
        able = [creator for creator in creators if not skipped[creator]]
        data = shape.draw() if able else None
        for phase in phases:
            found = {} if data is None else self._race(shape, data, able, phase)
            for creator in creators:
                if creator in found:
                    yield found[creator]
                else:
                    yield Row(shape.name, creator.name, phase, skipped=skipped[creator])
            self._tidy()

    def phases(self, shape: Problem) -> tuple[str, ...]:
        """Return the phases in which a problem is measured."""
        return PHASES if shape.training else PHASES[:1]

    def _clock(self, creator: Creator) -> Clock:
        if creator.library not in self._clocks:
            self._clocks[creator.library] = clock_for(creator.library, self.place)
        return self._clocks[creator.library]

    def _race(
        self, shape: Problem, data: Any, creators: Sequence[Creator], phase: str
    ) -> dict[Creator, Row]:
        """Run ``creators`` on one problem in turns, so that a drift of the machine affects all."""
        rows: dict[Creator, Row] = {}

        def attempt(creator: Creator, work: Callable[[], Any]) -> Any:
            # A model that fails takes no more turns; the others continue.
            try:
                return work()
            except Exception as error:
                clock = self._clock(creator)
                failed = OUT_OF_MEMORY if clock.is_out_of_memory(error) else _one_line(error)
                rows[creator] = Row(shape.name, creator.name, phase, failed=failed)
            self._tidy()
            return None

        race: list[Contender] = []
        for creator in creators:
            entered = attempt(creator, partial(self._enter, shape, data, creator, phase))
            if entered is not None:
                race.append(entered)
        for _ in range(self.settings.rounds):
            for contender in list(race):
                if attempt(contender.creator, partial(self._turn, contender)) is None:
                    race.remove(contender)
        for contender in race:
            rows[contender.creator] = self._row(shape, phase, contender)
        return rows

    def _row(self, shape: Problem, phase: str, contender: Contender) -> Row:
        return Row(
            shape.name,
            contender.creator.name,
            phase,
            ms=statistics.median(contender.ms),
            host_us=statistics.median(contender.host_us),
            peak_bytes=contender.peak_bytes,
            calls=contender.calls,
            about=contender.about,
        )

    def _enter(self, shape: Problem, data: Any, creator: Creator, phase: str) -> Contender:
        """Make the model, warm it up, measure its memory and choose the number of calls."""
        clock, settings = self._clock(creator), self.settings
        before = clock.used()
        made: list[Any] = []

        def make() -> None:
            made.append(creator.create(shape, data, self.place, phase == "training"))

        making = None
        if creator.captures:
            # PyTorch counts the memory of a graph as in use only while it is captured.
            making = clock.peak(make)
        else:
            make()
        model: ModelDef = made[0]
        call = model.step()
        start = time.perf_counter()
        for count in range(settings.warm_up):
            if creator.tunes:
                call()
                continue
            clock.time(call, 1)  # waits until the call is done
            if count >= 2 and time.perf_counter() - start > settings.warm_up_seconds:
                break
        running = clock.peak(call)
        peak = None
        if running is not None and before is not None:
            peak = max(running, making or 0) - before
        ms = clock.time(call, 3)[0]
        calls = min(200, max(1, math.ceil(settings.seconds * 1e3 / max(ms, 1e-3))))
        about = None if model.about is None else model.about()
        return Contender(creator, clock, call, peak, about, calls)

    def _turn(self, contender: Contender) -> bool:
        clock, call = contender.clock, contender.call
        contender.ms.append(clock.time(call, contender.calls)[0])
        few = min(contender.calls, self.settings.host_calls)
        contender.host_us.append(clock.time(call, few)[1])
        return True

    def _tidy(self) -> None:
        # The frames of an error may keep the arrays of a failed model.
        gc.collect()
        dnnffi.clear_plans()  # else their workspaces count as used before the next model is made
        for clock in self._clocks.values():
            clock.free()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


RUNNER, DEFAULT = Runner, Settings()
