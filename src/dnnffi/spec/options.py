"""Options of an RNN call: algorithm, math, clipping of the LSTM cell, validation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import isnan
from numbers import Real
from typing import NamedTuple

from dnnffi.errors import UnsupportedError

VENDOR_ALGORITHMS = {
    "cudnn": ("standard", "persist_static", "persist_dynamic", "persist_static_small_h"),
    "miopen": ("default", "fundamental"),
}
"""The names of the algorithms of each backend; "auto" is one of every backend."""
ALGORITHMS = ("auto", *(name for names in VENDOR_ALGORITHMS.values() for name in names))
MATHS = ("default", "strict", "fast")
CLIP_NANS = ("propagate", "clip")


class RNNOptions(NamedTuple):
    """The checked form of ``options``.

    algorithm : "auto" (a rule picks), or one of the backend's in `VENDOR_ALGORITHMS`
    math : "default" (float32 may use TF32, as PyTorch does), "strict" (no reduced precision),
        "fast" (float32 may be converted down for the tensor cores)
    clip : (low, high) for the cell state of an LSTM, or None
    clip_nan : "propagate" or "clip": what clipping does to NaN
    validate : run the reference too, and compare
    """

    algorithm: str = "auto"
    math: str = "default"
    clip: tuple[float, float] | None = None
    clip_nan: str = "propagate"
    validate: bool = False


DEFAULTS = RNNOptions()
EMBEDDING = ("allocator", "stream")
"""Options of a call that are no part of its problem; see `dnnffi.foreign`."""


def check_algorithm(backend: str, vendor: str, version: str, options: RNNOptions) -> str:
    """The algorithm asked for, if ``backend`` has it; `UnsupportedError` naming who does."""
    algorithm, own = options.algorithm, VENDOR_ALGORITHMS[backend]
    if algorithm != "auto" and algorithm not in own:
        (owner,) = (name for name, names in VENDOR_ALGORITHMS.items() if algorithm in names)
        raise UnsupportedError(
            vendor,
            version,
            f"has no algorithm {algorithm!r}, which is one of backend {owner!r}; it has "
            f"auto, {', '.join(own)}",
        )
    return algorithm


def rnn_options(options: object, mode: str) -> RNNOptions:
    """``options`` of a call, checked. ``None`` means the defaults.

    Raises ``TypeError`` or ``ValueError`` naming the key, what came and what was expected.
    """
    if options is None:
        return DEFAULTS
    if isinstance(options, RNNOptions):
        options = options._asdict()  # checked again: perhaps for another mode
    if not isinstance(options, Mapping):
        raise TypeError(f"options must be a dict or None; got {type(options).__name__}")
    try:
        # With the types: 1 equals True, and would find its entry in the cache.
        items = ((key, type(value), value) for key, value in options.items())
        return _checked(tuple(sorted(items)), mode)
    except TypeError:
        # An unhashable value, or a key that is no string: the slow way names it.
        return _check(dict(options), mode)


@lru_cache(maxsize=256)
def _checked(items: tuple[tuple[str, type, object], ...], mode: str) -> RNNOptions:
    return _check({key: value for key, _, value in items}, mode)


def _check(options: dict[str, object], mode: str) -> RNNOptions:
    known = RNNOptions._fields
    for key in options:
        if key not in known:
            names = ", ".join((*known, *EMBEDDING))
            raise ValueError(f"options: unknown key {key!r}; known are {names}")
    for key, choices in (("algorithm", ALGORITHMS), ("math", MATHS), ("clip_nan", CLIP_NANS)):
        value = options.get(key, choices[0])
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"options[{key!r}] must be one of {', '.join(choices)}; got {value!r}")
    if not isinstance(options.get("validate", False), bool):
        raise TypeError(f"options['validate'] must be True or False; got {options['validate']!r}")
    clip = _clip(options.get("clip"))
    if clip is not None and mode != "lstm":
        raise ValueError(f"options['clip']: only an LSTM has a cell to clip; mode is {mode!r}")
    return RNNOptions(
        algorithm=str(options.get("algorithm", "auto")),
        math=str(options.get("math", "default")),
        clip=clip,
        clip_nan=str(options.get("clip_nan", "propagate")),
        validate=bool(options.get("validate", False)),
    )


def _clip(clip: object) -> tuple[float, float] | None:
    if clip is None:
        return None
    if not isinstance(clip, tuple | list) or len(clip) != 2:
        raise TypeError(f"options['clip'] must be (low, high) or None; got {clip!r}")
    if not all(isinstance(bound, Real) for bound in clip):
        raise TypeError(f"options['clip'] must be two numbers; got {clip!r}")
    low, high = float(clip[0]), float(clip[1])
    if isnan(low) or isnan(high) or low > high:
        raise ValueError(f"options['clip'] must be (low, high) with low <= high; got {clip!r}")
    return low, high
