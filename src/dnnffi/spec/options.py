"""Options of an RNN call: algorithm, math, clipping of the LSTM cell, tuning, validation."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from numbers import Real
from typing import NamedTuple, TypedDict, get_args

from dnnffi.errors import UnsupportedError
from dnnffi.spec.checks import as_float, brief, checked_options, option_flag, option_of_choices
from dnnffi.spec.names import (
    Algorithm,
    ClipNan,
    CudnnAlgorithm,
    Math,
    MiopenAlgorithm,
    Tune,
    VulkanAlgorithm,
)

VENDOR_ALGORITHMS: dict[str, tuple[str, ...]] = {
    "cudnn": get_args(CudnnAlgorithm),
    "miopen": get_args(MiopenAlgorithm),
    "vulkan": get_args(VulkanAlgorithm),
}
"""The names of the algorithms of each backend; "auto" is one of every backend."""
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
MATHS: tuple[str, ...] = get_args(Math)
CLIP_NANS: tuple[str, ...] = get_args(ClipNan)
TUNES: tuple[str, ...] = get_args(Tune)


class EmbeddingDict(TypedDict, total=False):
    """Options of any call that are about arrays without CuPy; see `dnnffi.foreign`."""

    allocator: Callable[[tuple[int, ...], str], object]
    stream: int | Callable[[], int]


class RNNOptionsDict(EmbeddingDict, total=False):
    """``options`` of an RNN, as a caller writes them; `RNNOptions` says what they mean."""

    algorithm: Algorithm
    math: Math
    clip: tuple[float, float] | None
    clip_nan: ClipNan
    validate: bool
    tune: Tune


class RNNOptions(NamedTuple):
    """The checked form of ``options``.

    algorithm : "auto" (a rule picks), or one of the backend's in `VENDOR_ALGORITHMS`
    math : "default" (float32 may use TF32, as PyTorch does), "strict" (no reduced precision),
        "fast" (float32 may be converted down for the tensor cores)
    clip : (low, high) for the cell state of an LSTM, or None
    clip_nan : "propagate" or "clip": what clipping does to NaN
    validate : run the reference too, and compare
    tune : as `check_tune` describes; with "auto" a network that is called repeatedly is measured
    """

    algorithm: str = "auto"
    math: str = "default"
    clip: tuple[float, float] | None = None
    clip_nan: str = "propagate"
    validate: bool = False
    tune: str = "auto"


DEFAULTS = RNNOptions()
EMBEDDING = tuple(EmbeddingDict.__annotations__)
"""Options of a call that are no part of its problem; see `dnnffi.foreign`."""


def check_algorithm(backend: str, vendor: str, version: str, options: RNNOptions) -> str:
    """Return the algorithm asked for, if ``backend`` has it; `UnsupportedError` naming who does."""
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
    tune = check_tune(options)
    validate = option_flag(options, "validate")
    clip = _clip(options.get("clip"))
    if clip is not None and mode != "lstm":
        raise ValueError(f"options['clip']: only an LSTM has a cell to clip; mode is {mode!r}")
    return RNNOptions(algorithm, math, clip, clip_nan, validate, tune)


def check_tune(options: dict[str, object]) -> str:
    """Return when candidates are measured: "auto", "off" or "now".

    "auto" uses results that are known, and dnnffi decides when to measure. "now" measures before
    the first call runs, unless a result is known. "off" follows the rule alone: nothing is
    measured, looked up or captured.

    Raises ``TypeError`` or ``ValueError`` for another value.
    """
    tune = options.get("tune", TUNES[0])
    if isinstance(tune, bool):
        meant = "'now' measures before the first call" if tune else "'auto' is the default"
        raise TypeError(
            f"options['tune'] must be one of {', '.join(TUNES)}; got {tune}: {meant}, "
            f"'off' never measures"
        )
    return option_of_choices(options, "tune", TUNES)


def _clip(clip: object) -> tuple[float, float] | None:
    if clip is None:
        return None
    if not isinstance(clip, tuple | list) or len(clip) != 2:
        raise TypeError(f"options['clip'] must be (low, high) or None; got {brief(clip)}")
    if not all(isinstance(bound, Real) for bound in clip):
        raise TypeError(f"options['clip'] must be two numbers; got {brief(clip)}")
    low, high = (as_float("options['clip']", bound) for bound in clip)
    if isnan(low) or isnan(high) or low > high:
        raise ValueError(f"options['clip'] must be (low, high) with low <= high; got {brief(clip)}")
    return low, high
