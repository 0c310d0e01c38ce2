"""Options of an RNN call: algorithm, math, clipping of the LSTM cell, tuning, validation."""

from __future__ import annotations

from math import isnan
from numbers import Real
from typing import NamedTuple

from dnnffi.errors import UnsupportedError
from dnnffi.spec.checks import as_float, checked_options, option_flag, option_of_choices

VENDOR_ALGORITHMS = {
    "cudnn": ("standard", "persist_static", "persist_dynamic", "persist_static_small_h", "own"),
    "miopen": ("default", "fundamental"),
    "vulkan": ("stepwise", "persistent"),
}
"""The names of the algorithms of each backend; "auto" is one of every backend."""
ALGORITHMS = ("auto", *(name for names in VENDOR_ALGORITHMS.values() for name in names))
MATHS = ("default", "strict", "fast")
CLIP_NANS = ("propagate", "clip")
TUNES = ("auto", "off", "now")


class RNNOptions(NamedTuple):
    """The checked form of ``options``.

    algorithm : "auto" (a rule picks), or one of the backend's in `VENDOR_ALGORITHMS`
    math : "default" (float32 may use TF32, as PyTorch does), "strict" (no reduced precision),
        "fast" (float32 may be converted down for the tensor cores)
    clip : (low, high) for the cell state of an LSTM, or None
    clip_nan : "propagate" or "clip": what clipping does to NaN
    validate : run the reference too, and compare
    tune : "auto" (a problem that is called again and again is measured once), "off" (the rule of
        ``algorithm`` alone), "now" (measured before the first call)
    """

    algorithm: str = "auto"
    math: str = "default"
    clip: tuple[float, float] | None = None
    clip_nan: str = "propagate"
    validate: bool = False
    tune: str = "auto"


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
    return checked_options(options, RNNOptions, _check, mode, elsewhere=EMBEDDING)


def _check(options: dict[str, object], mode: str) -> RNNOptions:
    algorithm = option_of_choices(options, "algorithm", ALGORITHMS)
    math = option_of_choices(options, "math", MATHS)
    clip_nan = option_of_choices(options, "clip_nan", CLIP_NANS)
    tune = option_of_choices(options, "tune", TUNES)
    validate = option_flag(options, "validate")
    clip = _clip(options.get("clip"))
    if clip is not None and mode != "lstm":
        raise ValueError(f"options['clip']: only an LSTM has a cell to clip; mode is {mode!r}")
    return RNNOptions(algorithm, math, clip, clip_nan, validate, tune)


def _clip(clip: object) -> tuple[float, float] | None:
    if clip is None:
        return None
    if not isinstance(clip, tuple | list) or len(clip) != 2:
        raise TypeError(f"options['clip'] must be (low, high) or None; got {clip!r}")
    if not all(isinstance(bound, Real) for bound in clip):
        raise TypeError(f"options['clip'] must be two numbers; got {clip!r}")
    low, high = (as_float("options['clip']", bound) for bound in clip)
    if isnan(low) or isnan(high) or low > high:
        raise ValueError(f"options['clip'] must be (low, high) with low <= high; got {clip!r}")
    return low, high
