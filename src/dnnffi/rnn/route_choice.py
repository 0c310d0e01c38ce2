"""Times of candidates, and the choice of the fastest for calls with and without a graph."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

HOST_LIMITED, HOST_MS = 1.2, 1.0
"""The host limits a call that takes less than `HOST_MS` milliseconds, and more than `HOST_LIMITED`
times as long as with a graph. In a longer call a graph may overlap work of the device."""

AS_FAST = 1.1
"""Ratio of two times that the host limits within which they count as the same."""


class Times(NamedTuple):
    """Milliseconds of a call, in training forward and backward; None if not measured.

    ``staged`` is ``replayed`` with the copies that a call with new addresses needs.
    """

    direct: float | None = None
    replayed: float | None = None
    staged: float | None = None

    @property
    def fastest(self) -> float:
        """The shortest of the measured times."""
        return min(ms for ms in self if ms is not None)


class RouteChoice(NamedTuple):
    """Findings about a problem.

    ``direct`` runs calls whose addresses no graph knows; ``replayed`` those that one does, or is
    None where graphs do not pay. ``staged`` says that copies and a graph are faster than
    ``direct``. ``times`` are by candidate; ``refused`` has a reason for each candidate that is not
    eligible. ``source`` is "measured" or "disk".
    """

    direct: str
    replayed: str | None
    times: dict[str, Times]
    refused: dict[str, str]
    source: str = "measured"
    staged: bool = False

    @property
    def used(self) -> list[str]:
        """The candidates that run: ``direct`` and, if there is one, ``replayed``."""
        return [self.direct] if self.replayed is None else [self.direct, self.replayed]

    @property
    def direct_ms(self) -> float:
        """Milliseconds of a call without a graph."""
        return self.times[self.direct].direct or 0.0


def choose(
    times: dict[str, Times], refused: dict[str, str], source: str = "measured"
) -> RouteChoice:
    """Return the fastest of the measured candidates replayed, and directly as `_choose_direct`."""
    direct_ms, direct = _choose_direct(times)
    replays = [
        (t.replayed, inf if t.direct is None else t.direct, name)
        for name, t in times.items()
        if t.replayed is not None
    ]
    replayed_ms, _, replayed = min(replays, default=(inf, inf, ""))
    if replayed_ms >= direct_ms:
        return RouteChoice(direct, None, times, refused, source)
    staged = times[replayed].staged
    least, *_ = least_times(times.values())
    pays = staged is not None and staged < least
    return RouteChoice(direct, replayed, times, refused, source, pays)


def _choose_direct(times: dict[str, Times]) -> tuple[float, str]:
    """Return the time and the name of the candidate for calls without a graph.

    If the host limits the fastest, then candidates that are as fast differ only in the time of the
    device. That time decides: on a faster host, or with more rows, the device limits them.
    """
    least, name = min((t.direct, name) for name, t in times.items() if t.direct is not None)
    replayed = times[name].replayed
    if replayed is None or not HOST_LIMITED * replayed < least < HOST_MS:
        return least, name
    as_fast = [
        (t.replayed, t.direct, name)
        for name, t in times.items()
        if t.direct is not None and t.replayed is not None and t.direct <= AS_FAST * least
    ]
    _, least, name = min(as_fast)
    return least, name


def least_times(times: Iterable[Times]) -> list[float]:
    """Return the least time of each kind (direct, replayed, staged), or infinity for none."""
    kinds = zip(Times(), *times, strict=True)
    return [min((ms for ms in kind if ms is not None), default=inf) for kind in kinds]
