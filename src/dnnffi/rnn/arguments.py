"""The last check of an operation's arrays before their addresses are passed on."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from dnnffi.backends.rnn_interface import (
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import AnyArray, Array, Memory
from dnnffi.device.spans import Span, check_apart, check_writable
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import RNNProblem

BUFFER_ALIGNMENT = 16
"""Bytes: where a workspace or reserve space may begin. Allocators give more."""


class _Field(NamedTuple):
    """An array of an operation: what shape it has, and whether it is written."""

    shape: str  # "x", "y", "h", "c" or "weights"
    written: bool = False


# By operation, the arrays in the order of their addresses.
_FORWARD = {
    "x": _Field("x"),
    "y": _Field("y", written=True),
    "h_0": _Field("h"),
    "h_n": _Field("h", written=True),
    "c_0": _Field("c"),
    "c_n": _Field("c", written=True),
    "weights": _Field("weights"),
}
_BACKWARD_DATA = {
    "y": _Field("y"),
    "h_0": _Field("h"),
    "c_0": _Field("c"),
    "weights": _Field("weights"),
    "dy": _Field("y"),
    "dh_n": _Field("h"),
    "dc_n": _Field("c"),
    "dx": _Field("x", written=True),
    "dh_0": _Field("h", written=True),
    "dc_0": _Field("c", written=True),
}
_BACKWARD_WEIGHTS = {
    "x": _Field("x"),
    "h_0": _Field("h"),
    "y": _Field("y"),
    "out": _Field("weights", written=True),
}


class Arguments:
    """The arrays of a problem's operations on a device: checked, and turned into addresses.

    All are contiguous, aligned to their elements, of the spec's dtype, and have as many elements as
    the problem's shapes; a state may be None. ``weight_size`` is that of the flat weights.
    """

    def __init__(self, problem: RNNProblem, memory: Memory, device: int, weight_size: int) -> None:
        self._ndarray = memory.ndarray
        self._device = device
        self._dtype = memory.dtype(problem.spec.dtype)
        self._several_devices = memory.device_count() > 1
        self._mode, self._has_cell = problem.spec.mode, problem.spec.has_cell
        self._item = ITEM_SIZES[problem.spec.dtype]
        self._sizes = {
            "x": prod(problem.x_shape),
            "y": prod(problem.y_shape),
            "h": prod(problem.h_shape),
            "c": prod(problem.c_shape),
            "weights": weight_size,
        }

    def forward(self, *arrays: Array | None, workspace: Array, min_bytes: int) -> ForwardAddresses:
        """Addresses of x, y, h_0, h_n, c_0, c_n and weights.

        The ``workspace`` has at least ``min_bytes`` bytes. The caller adds the reserve space.
        """
        return ForwardAddresses(*self._checked(_FORWARD, arrays, workspace, min_bytes))

    def backward_data(
        self, *arrays: Array | None, workspace: Array, min_bytes: int, reserve: Span
    ) -> BackwardDataAddresses:
        """Addresses of y, h_0, c_0, weights, dy, dh_n, dc_n, dx, dh_0 and dc_0, likewise."""
        found = self._checked(_BACKWARD_DATA, arrays, workspace, min_bytes, reserve)
        return BackwardDataAddresses(*[*found, reserve.address])

    def backward_weights(
        self, *arrays: Array | None, workspace: Array, min_bytes: int, reserve: Span
    ) -> BackwardWeightsAddresses:
        """Addresses of x, h_0, y and the gradient, likewise."""
        found = self._checked(_BACKWARD_WEIGHTS, arrays, workspace, min_bytes, reserve)
        return BackwardWeightsAddresses(*[*found, reserve.address])

    def _checked(
        self,
        operation: dict[str, _Field],
        arrays: tuple[AnyArray, ...],
        workspace: Array,
        min_bytes: int,
        *reserve: Span,
    ) -> list[int]:
        """Return the addresses of ``arrays`` and the workspace; outputs overlap nothing."""
        addresses: list[int] = []
        written: list[Span] = [*reserve]
        read: list[Span] = []
        for (name, (shape, is_written)), array in zip(operation.items(), arrays, strict=True):
            size = self._sizes[shape]
            address = 0
            if array is not None or shape not in ("h", "c"):
                if shape == "c" and not self._has_cell:
                    raise ValueError(f"{name} must be None: {self._mode} has no cell state")
                address = self.address(name, array, size)
                if is_written:
                    check_writable(name, array)
            addresses.append(address)
            span = Span(name, address, size * self._item if address else 0)
            (written if is_written else read).append(span)
        at = self.buffer("workspace", workspace, min_bytes)
        check_apart((*written, Span("workspace", at, min_bytes)), read)
        return [*addresses, at]

    def weights(self, weights: Array) -> int:
        """Return the address of the flat weights."""
        return self.address("weights", weights, self._sizes["weights"])

    def address(self, name: str, array: Array, size: int) -> int:
        """Return the address of an array of ``size`` elements; errors name the argument."""
        if (
            array.__class__ is not self._ndarray
            or array.size != size
            or array.dtype != self._dtype
            or not array._c_contiguous
            or array.data.ptr % self._item
            or (self._several_devices and array.data.device_id != self._device)
        ):
            raise self._refusal(name, array, size)
        return array.data.ptr

    def buffer(self, name: str, array: Array, min_bytes: int) -> int:
        """Return the address of a buffer of at least ``min_bytes`` bytes, of any dtype."""
        if (
            array.__class__ is not self._ndarray
            or array.nbytes < min_bytes
            or not array._c_contiguous
            or array.data.ptr % BUFFER_ALIGNMENT
            or (self._several_devices and array.data.device_id != self._device)
        ):
            raise self._buffer_refusal(name, array, min_bytes)
        return array.data.ptr

    def _refusal(self, name: str, array: Array, size: int) -> Exception:
        if array.__class__ is self._ndarray:
            if array.dtype != self._dtype:
                return TypeError(f"{name} must have dtype {self._dtype}; got {array.dtype}")
            if array.size != size:
                return ValueError(
                    f"{name} must have {size} elements; got {array.size}, shape {array.shape}"
                )
        return self._placement_refusal(name, array, self._item)

    def _buffer_refusal(self, name: str, array: Array, min_bytes: int) -> Exception:
        if array.__class__ is self._ndarray and array.nbytes < min_bytes:
            return ValueError(f"{name} must have at least {min_bytes} bytes; got {array.nbytes}")
        return self._placement_refusal(name, array, BUFFER_ALIGNMENT)

    def _placement_refusal(self, name: str, array: Array, alignment: int) -> Exception:
        if array.__class__ is not self._ndarray:
            kind = f"{self._ndarray.__module__.partition('.')[0]}.{self._ndarray.__name__}"
            return TypeError(f"{name} must be a {kind}; got {type(array).__name__}")
        if not array._c_contiguous:
            return ValueError(f"{name} must be contiguous; its strides are {array.strides}")
        if array.data.ptr % alignment:
            return ValueError(
                f"{name} must begin at a multiple of {alignment} bytes; it is at "
                f"{array.data.ptr:#x}"
            )
        return ValueError(
            f"{name} must be on device {self._device}; it is on {array.data.device_id}"
        )
