"""Calls of handlers as text: what the texts of all families share.

The text of a call is part of a program, which may have been exported, changed and sent by anybody.
So it is read as the arguments of a public function are checked: each field has its type and range,
there are no others, and what is wrong is named. The exceptions are those of `ERRORS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dnnffi.jax.xla_ffi import Buffer, Buffers

WORKSPACE = "workspace"
"""The name of the last result: bytes that are scratch of a call."""

ERRORS = (ValueError, TypeError, RecursionError)
"""The exceptions of a wrong text; the last comes from JSON that is nested too deeply."""

Kinds = Mapping[str, type | tuple[type, ...]]
"""Names of fields, and the classes that JSON gives them."""


class Call(Protocol):
    """The meaning of a call's text, in each family."""

    def buffers(self, kind: str) -> Buffers:
        """Return the operands and results of a handler of ``kind``. Raises ``ValueError``."""


def read(text: bytes, kinds: Kinds) -> dict[str, Any]:
    """Return the fields of a text, a JSON object with exactly the fields ``kinds``."""
    return checked_fields("the text", json.loads(text), kinds)


def checked_fields(name: str, value: object, kinds: Kinds) -> dict[str, Any]:
    """``value``, a dict with exactly the fields ``kinds``, each of one of its classes."""
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be a JSON object; got {type(value).__name__}")
    for field in sorted({*kinds} ^ {*value}):
        raise ValueError(f"{name} has {'no' if field in kinds else 'an unknown'} field {field!r}")
    for field, classes in kinds.items():
        allowed = classes if isinstance(classes, tuple) else (classes,)
        if type(value[field]) not in allowed:  # a bool is no integer here
            names = " or ".join(one.__name__ for one in allowed)
            raise TypeError(f"{field} must be {names}; got {type(value[field]).__name__}")
    return value


def read_names(field: str, values: Sequence[object]) -> tuple[str, ...]:
    """Return the names of arrays; ``TypeError`` if one is not a string."""
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{field} must be names of arrays; got {type(value).__name__}")
    return tuple(map(str, values))


def without_marks(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names without the "*" of an operand that all problems share."""
    return tuple(name.removesuffix("*") for name in names)


def check_arrays(
    kind: str,
    operands: Sequence[str],
    results: Sequence[str],
    expected: tuple[Sequence[str], Sequence[str]],
) -> None:
    """Raise ``ValueError`` unless a call of ``kind`` has the ``expected`` operands and results."""
    given = without_marks(operands), results
    for what, found, wanted in zip(("operands", "results"), given, expected, strict=True):
        if tuple(found) != tuple(wanted):
            raise ValueError(
                f"{what} of {kind} must be {', '.join(wanted)}; got {', '.join(found) or 'none'}"
            )


def buffers_of(call: Any, array: Callable[[str], tuple[str, tuple[int, ...]]]) -> Buffers:
    """Return the buffers of a call: ``operands``, ``results``, ``problems``, ``workspace``.

    ``array`` gives the dtype and the shape of an array of one problem, by name. The number of
    problems is in front: 1 for an operand that all problems share, whose name ends with "*".
    """

    def buffer(marked: str) -> Buffer:
        name = marked.removesuffix("*")
        if name == WORKSPACE:
            return Buffer(name, "uint8", (call.workspace,))
        dtype, shape = array(name)
        return Buffer(name, dtype, (1 if marked != name else call.problems, *shape))

    return Buffers([*map(buffer, call.operands)], [*map(buffer, call.results)])
