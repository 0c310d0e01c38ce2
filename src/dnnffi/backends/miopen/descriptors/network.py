"""The RNN descriptor: the network but for its input size, and how it is computed."""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors.base import Descriptor
from dnnffi.backends.miopen.descriptors.dropout import DropoutDescriptor
from dnnffi.backends.miopen.library import ALGORITHMS, MODES, RNN_DATA_TYPES
from dnnffi.backends.vendor.descriptors.checks import data_type
from dnnffi.backends.vendor.library import VendorLibrary, name_of
from dnnffi.spec.checks import check_choice, check_flag, check_range

_LINEAR_INPUT = ffi.integer_const("miopenRNNlinear")  # the first layer has an input matrix


class RNNInfo(NamedTuple):
    """The parameters of an RNN descriptor, to set or as read back."""

    mode: str
    hidden_size: int
    num_layers: int = 1
    bidirectional: bool = False
    bias: bool = True
    dtype: str = "float32"
    algorithm: str = "default"
    padded_io: bool = False


class RNNDescriptor(Descriptor):
    """``miopenRNNDescriptor_t``, set by ``miopenSetRNNDescriptor`` or, with dropout, its ``_V2``.

    ``dropout`` is kept alive and must not be closed before this; None without dropout.
    The input size is not part of it: the descriptors of ``x`` have it. ``padded_io`` tells the
    functions on sequence descriptors that ``x`` and ``y`` have padding. MIOpen leaks about
    100 bytes for each that was made and destroyed (3.4.0).

    Raises ``ValueError`` or ``TypeError`` naming the argument; `MiopenError` from the setters.
    """

    _kind = "RNN"

    def __init__(
        self,
        info: RNNInfo,
        dropout: DropoutDescriptor | None = None,
        *,
        library: VendorLibrary | None = None,
    ) -> None:
        super().__init__(library, _check(info), dropout)

    def set(self, info: RNNInfo, dropout: DropoutDescriptor | None = None) -> None:
        """Describe another network."""
        self._set(_check(info), dropout)

    def _set(self, info: RNNInfo, dropout: DropoutDescriptor | None) -> None:
        self._call(
            "miopenSetRNNDescriptor" if dropout is None else "miopenSetRNNDescriptor_V2",
            self.pointer,
            info.hidden_size,
            info.num_layers,
            *(() if dropout is None else (dropout.pointer,)),
            _LINEAR_INPUT,
            int(info.bidirectional),
            MODES[info.mode],
            int(info.bias),
            ALGORITHMS[info.algorithm],
            RNN_DATA_TYPES[info.dtype],
            problem=info,
        )
        self._dropout = dropout
        # The setters turn padding off.
        self._call("miopenSetRNNPaddingMode", self.pointer, int(info.padded_io), problem=info)

    def read(self) -> RNNInfo:
        """Return the parameters (``miopenGetRNNDescriptor_V2`` and ``miopenGetRNNPaddingMode``)."""
        sizes = [ffi.new("int *") for _ in range(2)]
        dropout = ffi.new("miopenDropoutDescriptor_t *")
        enums = [
            ffi.new(f"{name} *")
            for name in (
                "miopenRNNInputMode_t",
                "miopenRNNDirectionMode_t",
                "miopenRNNMode_t",
                "miopenRNNBiasMode_t",
                "miopenRNNAlgo_t",
                "miopenDataType_t",
            )
        ]
        self._call("miopenGetRNNDescriptor_V2", self.pointer, *sizes, dropout, *enums)
        padding = ffi.new("miopenRNNPaddingMode_t *")
        self._call("miopenGetRNNPaddingMode", self.pointer, padding)
        _, direction, mode, bias, algorithm, dtype = (int(enum[0]) for enum in enums)
        return RNNInfo(
            mode=name_of(MODES, mode),
            hidden_size=int(sizes[0][0]),
            num_layers=int(sizes[1][0]),
            bidirectional=bool(direction),
            bias=bool(bias),
            dtype=name_of(RNN_DATA_TYPES, dtype),
            algorithm=name_of(ALGORITHMS, algorithm),
            padded_io=bool(padding[0]),
        )


def _check(info: RNNInfo) -> RNNInfo:
    # MIOpen itself takes sizes of 0 and any number for an algorithm.
    return RNNInfo(
        mode=check_choice("mode", info.mode, MODES),
        hidden_size=check_range("hidden_size", info.hidden_size, 1),
        num_layers=check_range("num_layers", info.num_layers, 1),
        bidirectional=check_flag("bidirectional", info.bidirectional),
        bias=check_flag("bias", info.bias),
        dtype=data_type("dtype", info.dtype, RNN_DATA_TYPES),
        algorithm=check_choice("algorithm", info.algorithm, ALGORITHMS),
        padded_io=check_flag("padded_io", info.padded_io),
    )
