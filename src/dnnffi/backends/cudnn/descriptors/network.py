"""The RNN descriptor: the network, how it is computed, the clipping of its cell."""

from __future__ import annotations

from numbers import Real
from typing import NamedTuple

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.descriptors.base import Descriptor
from dnnffi.backends.cudnn.descriptors.dropout import DropoutDescriptor
from dnnffi.backends.cudnn.library import (
    ALGORITHMS,
    BIAS_MODES,
    DATA_TYPES,
    MATH_TYPES,
    MODES,
    NAN_MODES,
    Library,
)
from dnnffi.backends.vendor.descriptors.checks import data_type
from dnnffi.backends.vendor.library import name_of
from dnnffi.spec.checks import (
    as_float,
    brief,
    check_choice,
    check_flag,
    check_range,
    is_ordered,
)

_LINEAR_INPUT = ffi.integer_const("CUDNN_LINEAR_INPUT")  # the first layer has an input matrix


class RNNInfo(NamedTuple):
    """The parameters of an RNN descriptor, to set or as read back."""

    mode: str
    input_size: int
    hidden_size: int
    num_layers: int = 1
    bidirectional: bool = False
    bias_mode: str = "double"
    proj_size: int = 0
    dtype: str = "float32"
    algorithm: str = "standard"
    math: str = "default"
    math_precision: str = "float32"
    padded_io: bool = True


class ClipInfo(NamedTuple):
    """The clipping of an RNN descriptor's cell; ``clip`` is None where it is off."""

    clip: tuple[float, float] | None
    nan: str


class RNNDescriptor(Descriptor):
    """``cudnnRNNDescriptor_t``, set by ``cudnnSetRNNDescriptor_v8``.

    ``dropout`` is kept alive and must not be closed before this; None without dropout. A
    projection size of 0 is passed on as the hidden size, which is how cuDNN says that there is
    none.

    Raises ``ValueError`` or ``TypeError`` naming the argument; `UnsupportedError` where this
    version has no such combination (a persistent algorithm with other than two biases, with a
    projection, or in float64 say).
    """

    _kind = "RNN"

    def __init__(
        self,
        info: RNNInfo,
        dropout: DropoutDescriptor | None = None,
        *,
        library: Library | None = None,
    ) -> None:
        super().__init__(library, _check(info), dropout)

    def set(self, info: RNNInfo, dropout: DropoutDescriptor | None = None) -> None:
        """Describe another network. This turns clipping off."""
        self._set(_check(info), dropout)

    def _set(self, info: RNNInfo, dropout: DropoutDescriptor | None) -> None:
        self._call(
            "cudnnSetRNNDescriptor_v8",
            self.pointer,
            ALGORITHMS[info.algorithm],
            MODES[info.mode],
            BIAS_MODES[info.bias_mode],
            int(info.bidirectional),
            _LINEAR_INPUT,
            DATA_TYPES[info.dtype],
            DATA_TYPES[info.math_precision],
            MATH_TYPES[info.math],
            info.input_size,
            info.hidden_size,
            info.proj_size or info.hidden_size,
            info.num_layers,
            ffi.NULL if dropout is None else dropout.pointer,
            int(info.padded_io),
            problem=info,
        )
        self._dropout = dropout

    def read(self) -> RNNInfo:
        """Return the parameters (``cudnnGetRNNDescriptor_v8``)."""
        enums = [
            ffi.new(f"{name} *")
            for name in (
                "cudnnRNNAlgo_t",
                "cudnnRNNMode_t",
                "cudnnRNNBiasMode_t",
                "cudnnDirectionMode_t",
                "cudnnRNNInputMode_t",
                "cudnnDataType_t",
                "cudnnDataType_t",
                "cudnnMathType_t",
            )
        ]
        sizes = [ffi.new("int32_t *") for _ in range(4)]
        dropout = ffi.new("cudnnDropoutDescriptor_t *")
        flags = ffi.new("uint32_t *")
        self._call("cudnnGetRNNDescriptor_v8", self.pointer, *enums, *sizes, dropout, flags)
        algorithm, mode, bias, direction, _, dtype, precision, math = (int(e[0]) for e in enums)
        input_size, hidden_size, proj_size, num_layers = (int(size[0]) for size in sizes)
        return RNNInfo(
            mode=name_of(MODES, mode),
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            bidirectional=bool(direction),
            bias_mode=name_of(BIAS_MODES, bias),
            proj_size=0 if proj_size == hidden_size else proj_size,
            dtype=name_of(DATA_TYPES, dtype),
            algorithm=name_of(ALGORITHMS, algorithm),
            math=name_of(MATH_TYPES, math),
            math_precision=name_of(DATA_TYPES, precision),
            padded_io=bool(flags[0]),
        )

    def set_clip(self, clip: tuple[float, float] | None, nan: str = "propagate") -> None:
        """Clip the LSTM cell to (low, high), or not (``cudnnRNNSetClip_v8``).

        ``nan``: "propagate" keeps NaN, "clip" clips it too.
        """
        check_choice("nan", nan, NAN_MODES)
        low, high = (0.0, 0.0) if clip is None else _limits(clip)
        self._call(
            "cudnnRNNSetClip_v8",
            self.pointer,
            int(clip is not None),
            NAN_MODES[nan],
            low,
            high,
            problem=f"clip {clip}, nan {nan}",
        )

    def read_clip(self) -> ClipInfo:
        """Return the clipping (``cudnnRNNGetClip_v8``)."""
        mode = ffi.new("cudnnRNNClipMode_t *")
        nan = ffi.new("cudnnNanPropagation_t *")
        low, high = ffi.new("double *"), ffi.new("double *")
        self._call("cudnnRNNGetClip_v8", self.pointer, mode, nan, low, high)
        clip = (float(low[0]), float(high[0])) if mode[0] else None
        return ClipInfo(clip, name_of(NAN_MODES, nan[0]))

    def _compared(self) -> object:
        clip = self.read_clip()
        # What NaN would become does not tell two descriptors apart that clip nothing.
        return self.read(), None if clip.clip is None else clip


def _check(info: RNNInfo) -> RNNInfo:
    checked = RNNInfo(
        mode=check_choice("mode", info.mode, MODES),
        input_size=check_range("input_size", info.input_size, 1),
        hidden_size=check_range("hidden_size", info.hidden_size, 1),
        num_layers=check_range("num_layers", info.num_layers, 1),
        bidirectional=check_flag("bidirectional", info.bidirectional),
        bias_mode=check_choice("bias_mode", info.bias_mode, BIAS_MODES),
        proj_size=check_range("proj_size", info.proj_size, 0),
        dtype=data_type("dtype", info.dtype, DATA_TYPES),
        algorithm=check_choice("algorithm", info.algorithm, ALGORITHMS),
        math=check_choice("math", info.math, MATH_TYPES),
        math_precision=data_type("math_precision", info.math_precision, DATA_TYPES),
        padded_io=check_flag("padded_io", info.padded_io),
    )
    if checked.proj_size and checked.mode != "lstm":
        raise ValueError(f"proj_size: only an LSTM has a projection; mode is {checked.mode!r}")
    if checked.proj_size >= checked.hidden_size:
        raise ValueError(
            f"proj_size must be smaller than hidden_size ({checked.hidden_size}); "
            f"got {checked.proj_size}"
        )
    return checked


def _limits(clip: tuple[float, float]) -> tuple[float, float]:
    limits = tuple(clip) if is_ordered(clip) else ()
    if len(limits) != 2 or not all(isinstance(limit, Real) for limit in limits):
        raise TypeError(f"clip must be two numbers or None; got {brief(clip)}")
    low, high = (as_float("clip", limit) for limit in limits)
    if not low <= high:
        raise ValueError(f"clip must be (low, high) with low <= high; got {brief(clip)}")
    return low, high
