"""Helpers of the specs: argument checks, dtypes, options that are checked once."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Set
from functools import lru_cache
from math import prod
from numbers import Real
from typing import Any, TypeGuard, TypeVar, get_args

from dnnffi.spec.names import DType

ITEM_SIZES: dict[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
DTYPES: tuple[DType, ...] = get_args(DType)
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

MAX_LISTED_ITEMS = 8
"""Items of a list that an error message shows; it counts the others."""

MAX_TEXT_CHARS = 200
"""Characters of one value that an error message shows."""

Options = TypeVar("Options")
Choice = TypeVar("Choice", bound=str)


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


def check_range(name: str, value: Any, minimum: int, maximum: int = INT32_MAX) -> int:
    """``value`` as an int from ``minimum`` to ``maximum``; errors name the argument."""
    number = check_integer(name, value)
    if not minimum <= number <= maximum:
        raise ValueError(f"{name} must be from {minimum} to {maximum}; got {shown(number)}")
    return number


def shown(number: int) -> str:
    """Return an integer as a message shows it: Python writes none of more than 4,300 digits."""
    bits = number.bit_length()
    return str(number) if bits <= 128 else f"an integer of {bits} bits"


class _BriefRepr(reprlib.Repr):
    """`repr` of bounded length, whatever the value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = MAX_TEXT_CHARS
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = MAX_LISTED_ITEMS
        self.maxfrozenset = self.maxdeque = self.maxarray = MAX_LISTED_ITEMS

    def repr_int(self, x: int, level: int) -> str:
        return shown(x)


_brief_repr = _BriefRepr()


def brief(value: object) -> str:
    """``repr(value)`` as an error message shows it: nested values and long text are cut short.

    The result has at most some thousand characters, also for a value that a caller made to be long.
    """
    text = _brief_repr.repr(value)
    return text if len(text) <= 5 * MAX_TEXT_CHARS else f"{text[: 5 * MAX_TEXT_CHARS]}..."


def clipped(text: str) -> str:
    """``text`` as an error message shows it: the middle of a long one is left out."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    return f"{text[:half]}...{text[-half:]}"


def listed(values: Iterable[object], separator: str = ", ") -> str:
    """Return the first ``values`` as an error message lists them, and how many more there are."""
    items = list(values)
    parts = [
        clipped(item if isinstance(item, str) else brief(item)) for item in items[:MAX_LISTED_ITEMS]
    ]
    if len(items) > MAX_LISTED_ITEMS:
        parts.append(f"{len(items) - MAX_LISTED_ITEMS:,} more")
    return separator.join(parts)


def check_bytes(name: str, shape: tuple[int, ...], dtype: str) -> None:
    """Raise ``ValueError`` for an array of more bytes than 64 bits count: there is none."""
    if prod(shape) * ITEM_SIZES[dtype] > INT64_MAX:
        raise ValueError(
            f"{name} must have at most {INT64_MAX} bytes; got shape {brief(shape)}, {dtype}"
        )


def is_ordered(values: object) -> TypeGuard[Iterable[Any]]:
    """Whether the position of an entry has a meaning: in a list, not in a set, dict or text."""
    return isinstance(values, Iterable) and not isinstance(
        values, Set | Mapping | str | bytes | bytearray
    )


def is_peculiar(array_class: type) -> bool:
    """Whether its arrays mean more than their elements: NumPy's masked arrays and matrices."""
    # By name: pure Python code does not import NumPy.
    return any(
        one.__name__ in ("MaskedArray", "matrix") and one.__module__.partition(".")[0] == "numpy"
        for one in array_class.__mro__
    )


def check_problem(value: object, kind: type, made_by: str) -> None:
    """Raise ``TypeError`` unless ``value`` is a problem of the class ``kind``.

    ``made_by`` is a call that makes a problem.
    """
    if not isinstance(value, kind):
        article = "an" if kind.__name__.startswith("RNN") else "a"
        raise TypeError(
            f"problem must be {article} {kind.__name__}; got {type(value).__name__}; use {made_by}"
        )


def check_flag(name: str, value: object) -> bool:
    """``value`` as a bool; ``TypeError`` naming the argument if it is not one."""
    if isinstance(value, bool):
        return value
    # NumPy's bool is not a subclass of Python's; pure Python code knows it by its name.
    if type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise TypeError(f"{name} must be True or False; got {brief(value)}")


def check_choice(
    name: str, value: object, choices: Iterable[Choice], *, or_none: bool = False
) -> Choice:
    """``value`` as one of ``choices``, which are names; errors name the argument.

    ``ValueError`` for another name, ``TypeError`` for what cannot be one: arrays, lists, dicts.
    ``or_none`` is for the message alone, where the caller has a meaning for None.
    """
    known = tuple(choices)
    # The class first: an array would compare by its elements, and a list has no hash.
    if isinstance(value, str) and value in known:
        return known[known.index(value)]
    expected = f"{name} must be one of {', '.join(known)}{' or None' * or_none}"
    if hasattr(type(value), "__array__"):
        raise TypeError(f"{expected}; got {type(value).__name__}")
    error = TypeError if getattr(value, "__hash__", None) is None else ValueError
    raise error(f"{expected}; got {brief(value)}")


def check_number(name: str, value: object) -> float:
    """``value`` as a float; ``TypeError`` naming the argument if it is no real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number; got {type(value).__name__}")
    return as_float(name, value)


def as_float(name: str, value: Real) -> float:
    """Return a number as a float. Raises ``ValueError`` where no float comes near."""
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be a number that float64 holds; got a larger one") from None


def check_dtype(value: object) -> DType:
    """Return the name of a dtype that specs know; ``value`` is a name, or any library's dtype.

    Dtypes of NumPy and ml_dtypes have a ``name``, their scalar types and those of JAX a
    ``__name__``; those of PyTorch are written "torch.float32".
    """
    name = value
    if not isinstance(value, str):
        names = getattr(value, "name", None), getattr(value, "__name__", None)
        name = next((one for one in names if isinstance(one, str)), str(value).rpartition(".")[2])
    for known in DTYPES:
        if name == known:
            return known
    raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {brief(value)}")


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
        items = ((key, type(value), value) for key, value in options.items())
        checked = _cached.__wrapped__(tuple(items), known, elsewhere, check, context)
    return checked


@lru_cache(maxsize=256)
def _cached(
    items: tuple[tuple[str, type, object], ...],
    known: tuple[str, ...],
    elsewhere: tuple[str, ...],
    check: Callable[..., Any],
    context: tuple[str, ...],
) -> Any:
    for key, _, value in items:
        if key in elsewhere:
            raise ValueError(
                f"options[{key!r}] is for the functions, whose options are a dict then; "
                f"for plans and executors see dnnffi.foreign.using"
            )
        if key == "find":  # of cudnnFind and miopenFind; what it asks for is "tune"
            raise ValueError(
                f"options: unknown key 'find'; write 'tune': 'now' to measure the candidates of "
                f"any backend at the first call; got {brief(value)}"
            )
        if key not in known:
            names = ", ".join((*known, *elsewhere))
            raise ValueError(f"options: unknown key {brief(key)}; known are {names}")
    return check({key: value for key, _, value in items}, *context)


def option_of_choices(options: dict[str, object], key: str, choices: tuple[str, ...]) -> str:
    """Return the value of ``key``, one of ``choices``; the first is the default."""
    return check_choice(f"options[{key!r}]", options.get(key, choices[0]), choices)


def option_flag(options: dict[str, object], key: str) -> bool:
    """Return the value of ``key``, True or False; False is the default."""
    value = options.get(key, False)
    if not isinstance(value, bool):
        raise TypeError(f"options[{key!r}] must be True or False; got {brief(value)}")
    return value
