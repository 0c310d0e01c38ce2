"""The struct that a launch passes by value, from a Python class with the same fields."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from struct import Struct
from typing import Any, get_type_hints


def struct_of(params: Any) -> bytes:
    """Return the struct of a dataclass or a named tuple, which has its fields in the same order.

    Each field has 8 bytes: an address or an integer, or a ``float`` as a double. A last field that
    is ``bytes`` is a struct of its own, and follows as it is. ``AttributeError`` names a field
    that was not set.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> class Fill(NamedTuple):
    ...     target: int
    ...     value: float
    >>> struct_of(Fill(target=1, value=2.0)).hex(" ", 8)
    '0100000000000000 0000000000000040'
    """
    return _packer(params.__class__)(params)


@cache
def _packer(kind: type) -> Callable[[Any], bytes]:
    hints = get_type_hints(kind)
    last = next((name for name, hint in hints.items() if hint is bytes), "")
    numbers = [name for name in hints if name != last]
    read = attrgetter(*numbers)
    pack = Struct("<" + "".join("d" if hints[name] is float else "q" for name in numbers)).pack
    if issubclass(kind, tuple) and not last:
        return lambda params: pack(*params)
    if not last:
        return lambda params: pack(*read(params))
    return lambda params: pack(*read(params)) + getattr(params, last)
