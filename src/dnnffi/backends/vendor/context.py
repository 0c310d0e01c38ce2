"""What a training forward leaves for backward, and the one order in which it can be used."""

from __future__ import annotations

from enum import Enum

from dnnffi.device.interface import Array
from dnnffi.errors import ContextError


class Phase(Enum):
    """How far a context has come. The reserve space allows only this order."""

    EMPTY = "no forward has filled it"
    FORWARD = "forward ran"
    DATA = "backward data ran"
    SPENT = "backward data and backward weights ran"


class Context:
    """The reserve space of one training forward, and what ran on it.

    Made by an executor's ``context``, for that executor. A new forward may fill it again.
    """

    __slots__ = ("executor", "phase", "reserve")

    def __init__(self, executor: object, reserve: Array) -> None:
        self.executor = executor
        self.reserve = reserve
        self.phase = Phase.EMPTY

    def copy(self) -> Context:
        """The same state on a copy of the reserve space, to go back over a forward again."""
        copied = Context(self.executor, self.reserve.copy())
        copied.phase = self.phase
        return copied


def check_owner(context: Context, executor: object) -> None:
    """Raise unless ``context`` is one of ``executor``."""
    if not isinstance(context, Context):
        raise TypeError(f"context must be a Context; got {type(context).__name__}")
    if context.executor is not executor:
        raise ContextError("this context belongs to another executor")


def check_before_data(context: Context, executor: object) -> None:
    """Raise `ContextError` unless backward data may run now."""
    check_owner(context, executor)
    if context.phase is not Phase.FORWARD:
        raise ContextError(
            f"backward data needs a forward that was not yet gone back over; "
            f"{context.phase.value} on this context"
        )


def check_before_weights(context: Context, executor: object) -> None:
    """Raise `ContextError` unless backward weights may run now."""
    check_owner(context, executor)
    if context.phase is not Phase.DATA:
        raise ContextError(
            f"backward weights runs once, after backward data; {context.phase.value} on this "
            f"context"
        )
