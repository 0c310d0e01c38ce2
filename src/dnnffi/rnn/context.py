"""Progress of the backward passes of a training forward pass, in the order its space allows."""

from __future__ import annotations

from enum import Enum
from typing import Any, NoReturn

from dnnffi.errors import ContextError, not_picklable


class Phase(Enum):
    """The calls that ran on a context. The reserve space allows only this order.

    cuDNN's backward data changes the reserve space. A call in another order would give wrong
    numbers and no error.
    """

    EMPTY = "no forward pass ran"
    FORWARD = "the forward pass ran"
    DATA = "backward data ran"
    SPENT = "backward data and backward weights ran"


class Context:
    """The reserve space of one training forward pass, by address, and the calls that ran on it.

    ``executor`` ran the forward pass and runs the backward pass. ``owner`` keeps the memory alive.
    A call takes the phase away while it runs. If two threads call at once, one is refused.
    """

    __slots__ = ("_phase", "executor", "owner", "reserve")

    def __init__(
        self, executor: Any, reserve: int, owner: Any = None, phase: Phase = Phase.EMPTY
    ) -> None:
        self.executor = executor
        self.reserve = reserve
        self.owner = owner
        self._phase = [phase]

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self, "run the backward pass in the process of the forward pass")

    @property
    def phase(self) -> Phase:
        """The phase that was reached; `Phase.EMPTY` during a call and after one that failed."""
        try:
            return self._phase[0]
        except IndexError:
            return Phase.EMPTY

    def empty(self) -> None:
        """Discard what an earlier forward pass has left."""
        self._phase.clear()

    def reach(self, phase: Phase) -> None:
        """Record that a call has ended, in ``phase``."""
        self._phase[:] = (phase,)

    def check(self, needed: Phase) -> None:
        """Raise `ContextError` unless the phase is ``needed``."""
        if self.phase is not needed:
            raise self._refusal(needed, self.phase)

    def take(self, needed: Phase) -> None:
        """Leave the phase ``needed`` for a call that begins; raise `ContextError` in another."""
        try:
            found = self._phase.pop()  # one thread alone gets it
        except IndexError:
            found = Phase.EMPTY
        if found is not needed:
            if found is not Phase.EMPTY:
                self._phase.append(found)
            raise self._refusal(needed, found)

    @staticmethod
    def _refusal(needed: Phase, found: Phase) -> ContextError:
        advice = _NEXT[found]
        return ContextError(f"{_NEEDS[needed]}; on this context {found.value}: {advice}")


_NEEDS = {
    Phase.FORWARD: "backward data runs once after each forward pass",
    Phase.DATA: "backward weights runs once after backward data",
}
_NEXT = {
    Phase.EMPTY: "call forward first",
    Phase.FORWARD: "call backward data first",
    Phase.DATA: "call forward again",
    Phase.SPENT: "call forward again",
}


def check_owner(context: object, executor: object) -> Context:
    """Return ``context`` if it belongs to ``executor``; raise an error otherwise."""
    if not isinstance(context, Context):
        raise TypeError(f"context must be a Context; got {type(context).__name__}")
    if context.executor is not executor:
        raise ContextError("this context belongs to another executor")
    return context
