"""Measure: the models of one problem side by side, problem after problem."""

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
"""Forward alone, and forward with both backwards."""

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Settings:
    """How long is measured.

    warm_up : calls of each model before its time counts; of one that does not tune itself no more
        than fit into ``warm_up_seconds``, but at least three
    rounds : times that each model has its turn; the figures are medians over them
    seconds : about how long a turn is
    host_calls : calls in a row for the time of the host, so few that no queue fills
    """

    warm_up: int = 60
    warm_up_seconds: float = 1.0
    rounds: int = 11
    seconds: float = 0.02
    host_calls: int = 20


QUICK = Settings(rounds=3, seconds=0.005)


@dataclass(frozen=True)
class Row:
    """What was measured of one model, on one shape, in one phase; or why nothing was.

    ms : milliseconds of a call in a loop
    host_us : microseconds until a call returns
    peak_bytes : the most memory in use during a call, above that before the model was made
    calls : in a turn
    about : what the model says of itself
    skipped : why it was not tried
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
        """The fields that say something, for the record of a run."""
        return {name: value for name, value in vars(self).items() if value not in (None, "")}


@dataclass
class Contender:
    """A model that takes its turns, and what its turns took."""

    creator: Creator
    clock: Clock
    call: Callable[[], Any]
    peak_bytes: int | None
    about: dict[str, Any] | None = None
    calls: int = 1
    ms: list[float] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)


class Runner:
    """Runs problems on ``place``, "cpu" or "gpu"."""

    def __init__(self, place: str, settings: Settings) -> None:
        self.place = place
        self.settings = settings
        self._clocks: dict[str, Clock] = {}

    def prepared(self, shape: Any) -> Any:
        """The problem with what the settings say of it."""
        return shape

    def rows(self, shape: Problem, creators: Sequence[Creator]) -> Iterator[Row]:
        """The rows of one problem, inference before training."""
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
        """The phases in which a problem is measured."""
        return PHASES if shape.training else PHASES[:1]

    def _clock(self, creator: Creator) -> Clock:
        if creator.library not in self._clocks:
            self._clocks[creator.library] = clock_for(creator.library, self.place)
        return self._clocks[creator.library]

    def _race(
        self, shape: Problem, data: Any, creators: Sequence[Creator], phase: str
    ) -> dict[Creator, Row]:
        """All of ``creators`` on one problem, in turns, so that drift hits all alike."""
        rows: dict[Creator, Row] = {}

        def attempt(creator: Creator, work: Callable[[], Any]) -> Any:
            # A model that fails leaves the race; the others go on.
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
        """Make the model, warm it up, measure its memory, and find how many calls fill a turn."""
        clock, settings = self._clock(creator), self.settings
        before = clock.used()
        made: list[Any] = []

        def make() -> None:
            made.append(creator.create(shape, data, self.place, phase == "training"))

        making = None
        if creator.captures:
            # What a graph of PyTorch's uses counts as in use only while it is captured.
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
        # A failed model's arrays may hang in the frames of its error.
        gc.collect()
        dnnffi.clear_plans()  # their workspaces would count as used before the next model
        for clock in self._clocks.values():
            clock.free()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


RUNNER, DEFAULT = Runner, Settings()
