"""The points of a call at which Python may run a signal handler, or let another thread run.

CPython does so where a function begins, and where a call of a function written in C is over. There
its profiler is called too, so that one can be had at every such point, one after the other: no
signals are sent, and nothing is left to chance.

Where a native object is destroyed is left out. Python's own finalizers have such points, and who is
interrupted in one is told so and goes on.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import dnnffi

_SOURCE = str(Path(dnnffi.__file__).parent)
_TESTS = str(Path(__file__).parents[1])


class _Reached:
    """A profile function that counts the points, and acts at one of them.

    They are in dnnffi's own code; ``everywhere`` adds the modules of Python that it uses, which are
    no places for an exception.
    """

    def __init__(self, number: int, does: Callable[[], object], everywhere: bool) -> None:
        self.number = number
        self.does = does
        self.everywhere = everywhere
        self.count = 0

    def __call__(self, frame, event, argument) -> None:
        if event in ("call", "c_return") and self._counts(frame, event):
            self.count += 1
            if self.count == self.number:
                sys.setprofile(None)
                self.does()

    def _counts(self, frame, event) -> bool:
        code = frame.f_code
        if self.everywhere:
            return not code.co_filename.startswith(_TESTS)
        if not code.co_filename.startswith(_SOURCE):
            return False
        if frame.f_back is not None and frame.f_back.f_code.co_filename == weakref.__file__:
            return False
        # When a generator resumes, an exception would be raised in its caller.
        return event == "c_return" or not code.co_flags & inspect.CO_GENERATOR


def points_of(call: Callable[[], object], *, everywhere: bool = False) -> int:
    """Return the number of points of a call."""
    reached = _Reached(-1, lambda: None, everywhere)
    sys.setprofile(reached)
    try:
        call()
    finally:
        sys.setprofile(None)
    return reached.count


def at_point(
    number: int,
    does: Callable[[], object],
    call: Callable[[], object],
    *,
    everywhere: bool = False,
) -> object:
    """The result of ``call()``, at point ``number`` of which, from 1, ``does()`` runs."""
    sys.setprofile(_Reached(number, does, everywhere))
    try:
        return call()
    finally:
        sys.setprofile(None)
