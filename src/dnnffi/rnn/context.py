"""Progress of the backward passes of a training forward pass, in the order its space allows."""

from __future__ import annotations

from enum import Enum
from typing import Any, NoReturn

from dnnffi.errors import ContextError, not_picklable


class Phase(Enum):
    """How far a context has come. The reserve space allows only this order.

    cuDNN's backward data changes it, and a call in another order gives wrong numbers and no error.
    """

    EMPTY = "no forward pass has filled it"
    FORWARD = "forward ran"
    DATA = "backward data ran"
    SPENT = "backward data and backward weights ran"


class Context:
    """The reserve space of one training forward pass, by address, and what ran on it.

    ``executor`` ran the forward pass and runs the backward passes. ``owner`` keeps the memory
    alive. A call takes the phase away while it runs, so that of two threads that ask at once one is
    refused.
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
        raise not_picklable(
            self, "call the backward passes in the process whose memory it is about"
        )

    @property
    def phase(self) -> Phase:
        """How far it has come; during a call, and after one that failed, `Phase.EMPTY`."""
        try:
            return self._phase[0]
        except IndexError:
            return Phase.EMPTY

    def empty(self) -> None:
        """Whatever happens now, what an earlier forward pass left is gone."""
        self._phase.clear()

    def reach(self, phase: Phase) -> None:
        """A call has come to its end."""
        self._phase[:] = (phase,)

    def check(self, needed: Phase) -> None:
        """Raise `ContextError` unless it has come as far as ``needed``."""
        if self.phase is not needed:
            raise self._refusal(needed, self.phase)

    def take(self, needed: Phase) -> None:
        """Leave ``needed`` for a call that begins now; `ContextError` where it is not there."""
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
        return ContextError(f"{_NEEDS[needed]}; {found.value} on this context")


_NEEDS = {
    Phase.FORWARD: "backward data needs a forward pass whose backward data has not run",
    Phase.DATA: "backward weights runs once, after backward data",
}


def check_owner(context: object, executor: object) -> Context:
    """``context`` if it is one of ``executor``."""
    if not isinstance(context, Context):
        raise TypeError(f"context must be a Context; got {type(context).__name__}")
    if context.executor is not executor:
        raise ContextError("this context belongs to another executor")
    return context
