"""The convolution descriptor: geometry, groups, and which kernels the library may take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors.base import Descriptor
from dnnffi.backends.miopen.descriptors.tensor import TensorDescriptor
from dnnffi.backends.miopen.library import CONVOLUTION_MODES, FIND_MODES
from dnnffi.backends.vendor.descriptors.checks import integers
from dnnffi.backends.vendor.library import VendorLibrary, name_of
from dnnffi.spec.checks import check_choice, check_flag, check_range

_DETERMINISTIC = ffi.integer_const("MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC")
_FP16_ALT = ffi.integer_const("MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL")
_FP16_ALTS = {None: -1, False: 0, True: 1}
_RANKS = (2, 3)


class ConvolutionInfo(NamedTuple):
    """The parameters of a convolution descriptor, to set or as read back.

    ``mode`` is "convolution" or "transpose"; depthwise is a matter of ``groups``. ``fp16_alt`` is
    whether float16 is computed by way of bfloat16, which only gfx90a does, or None for what the
    library chooses. ``find_mode`` is how much the functions of find mode measure, "normal", "fast",
    "hybrid" or "dynamic_hybrid".
    """

    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    mode: str = "convolution"
    deterministic: bool = False
    fp16_alt: bool | None = None
    find_mode: str = "dynamic_hybrid"


class ConvolutionDescriptor(Descriptor):
    """``miopenConvolutionDescriptor_t`` of two or three spatial dimensions.

    ``output_padding`` is for the mode "transpose"; MIOpen does not give it back, but
    `output_shape` has it in it.

    Raises ``ValueError`` or ``TypeError`` naming the argument; `MiopenError` from the setters.
    """

    _kind = "Convolution"

    def __init__(
        self,
        info: ConvolutionInfo,
        output_padding: Sequence[int] | None = None,
        *,
        library: VendorLibrary | None = None,
    ) -> None:
        super().__init__(library, *_check(info, output_padding))

    def set(self, info: ConvolutionInfo, output_padding: Sequence[int] | None = None) -> None:
        """Describe another convolution."""
        self._set(*_check(info, output_padding))

    def _set(self, info: ConvolutionInfo, output_padding: tuple[int, ...]) -> None:
        rank, pointer = len(info.padding), self.pointer
        self._call(
            "miopenInitConvolutionNdDescriptor",
            pointer,
            rank,
            info.padding,
            info.stride,
            info.dilation,
            CONVOLUTION_MODES[info.mode],
            problem=info,
        )
        for function, *values in (
            ("miopenSetConvolutionGroupCount", info.groups),
            ("miopenSetTransposeConvNdOutputPadding", rank, output_padding),
            ("miopenSetConvolutionAttribute", _DETERMINISTIC, int(info.deterministic)),
            ("miopenSetConvolutionAttribute", _FP16_ALT, _FP16_ALTS[info.fp16_alt]),
            ("miopenSetConvolutionFindMode", FIND_MODES[info.find_mode]),
        ):
            self._call(function, pointer, *values, problem=info)

    def read(self) -> ConvolutionInfo:
        """Return all but the output padding (``miopenGetConvolutionNdDescriptor``)."""
        number, pointer = ffi.new("int *"), self.pointer
        self._call("miopenGetConvolutionSpatialDim", pointer, number)
        rank = number[0]
        lists = [ffi.new("int[]", rank) for _ in range(3)]
        mode = ffi.new("miopenConvolutionMode_t *")
        self._call("miopenGetConvolutionNdDescriptor", pointer, rank, number, *lists, mode)
        padding, stride, dilation = map(tuple, lists)
        self._call("miopenGetConvolutionGroupCount", pointer, number)
        groups = int(number[0])
        attributes = []
        for attribute in (_DETERMINISTIC, _FP16_ALT):
            self._call("miopenGetConvolutionAttribute", pointer, attribute, number)
            attributes.append(int(number[0]))
        find_mode = ffi.new("miopenConvolutionFindMode_t *")
        self._call("miopenGetConvolutionFindMode", pointer, find_mode)
        return ConvolutionInfo(
            padding,
            stride,
            dilation,
            groups,
            name_of(CONVOLUTION_MODES, mode[0]),
            bool(attributes[0]),
            {number: name for name, number in _FP16_ALTS.items()}[attributes[1]],
            name_of(FIND_MODES, find_mode[0]),
        )

    def output_shape(self, x: TensorDescriptor, w: TensorDescriptor) -> tuple[int, ...]:
        """Shape of the output (``miopenGetConvolutionNdForwardOutputDim``)."""
        rank, dims = ffi.new("int *"), ffi.new("int[]", 2 + _RANKS[-1])
        self._call(
            "miopenGetConvolutionNdForwardOutputDim", self.pointer, x.pointer, w.pointer, rank, dims
        )
        return tuple(dims[0 : rank[0]])


def _check(
    info: ConvolutionInfo, output_padding: Sequence[int] | None
) -> tuple[ConvolutionInfo, tuple[int, ...]]:
    stride = integers("stride", info.stride, 1)
    rank = len(stride)
    if rank not in _RANKS:
        raise ValueError(f"stride must have 2 or 3 entries, one a spatial dimension; got {rank}")
    mode = check_choice("mode", info.mode, CONVOLUTION_MODES)
    more = (0,) * rank
    if output_padding is not None:
        more = _each("output_padding", output_padding, rank, 0)
    if mode != "transpose" and any(more):
        raise ValueError(f"output_padding: only the mode 'transpose' has one; got {more}")
    if info.fp16_alt not in _FP16_ALTS:
        raise ValueError(f"fp16_alt must be True, False or None; got {info.fp16_alt!r}")
    checked = ConvolutionInfo(
        padding=_each("padding", info.padding, rank, 0),
        stride=stride,
        dilation=_each("dilation", info.dilation, rank, 1),
        groups=check_range("groups", info.groups, 1),
        mode=mode,
        deterministic=check_flag("deterministic", info.deterministic),
        fp16_alt=info.fp16_alt,
        find_mode=check_choice("find_mode", info.find_mode, FIND_MODES),
    )
    return checked, more


def _each(name: str, values: object, rank: int, least: int) -> tuple[int, ...]:
    """One integer from ``least`` for each of ``rank`` dimensions."""
    checked = integers(name, values, least)
    if len(checked) != rank:
        raise ValueError(f"{name} must have {rank} entries, as stride; got {len(checked)}")
    return checked
