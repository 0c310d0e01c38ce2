"""What the specs share: argument checks, dtypes, options that are checked once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from numbers import Real
from typing import Any, TypeVar

ITEM_SIZES: dict[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
INT32_MAX = 2**31 - 1

Options = TypeVar("Options")


def check_integer(name: str, value: Any) -> int:
    """``value`` as an int; ``TypeError`` naming the argument if it is none, or a bool."""
    # Arrays have __index__ too, and raise there.
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be an integer; got {type(value).__name__}")
    return number


def check_range(name: str, value: Any, least: int) -> int:
    """``value`` as an int from ``least`` to what 32 bits hold; errors name the argument."""
    number = check_integer(name, value)
    if not least <= number <= INT32_MAX:
        raise ValueError(f"{name} must be from {least} to {INT32_MAX}; got {number}")
    return number


def check_flag(name: str, value: object) -> bool:
    """``value`` as a bool; ``TypeError`` naming the argument if it is not one."""
    if isinstance(value, bool):
        return value
    # NumPy's bool is not a subclass of Python's; pure Python code knows it by its name.
    if type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise TypeError(f"{name} must be True or False; got {value!r}")


def check_number(name: str, value: object) -> float:
    """``value`` as a float; ``TypeError`` naming the argument if it is no real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number; got {type(value).__name__}")
    return float(value)


def check_dtype(value: object) -> str:
    """The name of a dtype that specs know; ``value`` is a name or has one."""
    name = getattr(value, "name", value)
    if name not in tuple(ITEM_SIZES):  # a tuple asks for no hash of what came
        raise ValueError(f"dtype must be one of {', '.join(ITEM_SIZES)}; got {value!r}")
    return str(name)


def checked_options(
    options: object,
    kind: type[Options],
    check: Callable[..., Options],
    *context: str,
    elsewhere: tuple[str, ...] = (),
) -> Options:
    """``options`` of a call through ``check(dict, *context)``; what was seen before is found again.

    ``kind`` is the class of the checked form, a named tuple: its fields are the known keys. Keys
    that are taken out before, ``elsewhere``, are only named to who mistypes one.
    """
    known: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    if isinstance(options, kind):
        # Checked again: perhaps for another context.
        options = dict(zip(known, options, strict=True))  # type: ignore[call-overload]
    if not isinstance(options, Mapping):
        raise TypeError(f"options must be a dict or None; got {type(options).__name__}")
    try:
        # With the types: 1 equals True, and would find its entry in the cache.
        items = ((key, type(value), value) for key, value in options.items())
        checked: Options = _cached(tuple(sorted(items)), known, elsewhere, check, context)
    except TypeError:
        # An unhashable value, or a key that is no string: the slow way names it.
        checked = _check(dict(options), known, elsewhere, check, context)
    return checked


@lru_cache(maxsize=256)
def _cached(
    items: tuple[tuple[str, type, object], ...],
    known: tuple[str, ...],
    elsewhere: tuple[str, ...],
    check: Callable[..., Any],
    context: tuple[str, ...],
) -> Any:
    return _check({key: value for key, _, value in items}, known, elsewhere, check, context)


def _check(
    options: dict[str, object],
    known: tuple[str, ...],
    elsewhere: tuple[str, ...],
    check: Callable[..., Any],
    context: tuple[str, ...],
) -> Any:
    for key in options:
        if key not in known:
            names = ", ".join((*known, *elsewhere))
            raise ValueError(f"options: unknown key {key!r}; known are {names}")
    return check(options, *context)


def option_of_choices(options: dict[str, object], key: str, choices: tuple[str, ...]) -> str:
    """The value of ``key``, one of ``choices``; the first is the default."""
    value = options.get(key, choices[0])
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"options[{key!r}] must be one of {', '.join(choices)}; got {value!r}")
    return value


def option_flag(options: dict[str, object], key: str) -> bool:
    """The value of ``key``, True or False; False is the default."""
    value = options.get(key, False)
    if not isinstance(value, bool):
        raise TypeError(f"options[{key!r}] must be True or False; got {value!r}")
    return value
