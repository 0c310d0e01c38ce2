"""The last check of arrays before their addresses go to a vendor's library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dnnffi.device.interface import Array, Memory


class Span(NamedTuple):
    """An argument's memory: first address and bytes. No bytes for an argument that is None."""

    name: str
    address: int
    nbytes: int


class ArrayCheck:
    """Knows which arrays an executor can take: contiguous, of its dtype, on its device."""

    def __init__(self, memory: Memory, device: int, dtype: str) -> None:
        self._ndarray = memory.ndarray
        self._device = device
        self._dtype = memory.dtype(dtype)
        self._several_devices = memory.device_count() > 1

    def address(self, name: str, array: Array, size: int) -> int:
        """The address of an array of ``size`` elements, else an error naming the argument."""
        if (
            array.__class__ is not self._ndarray
            or array.size != size
            or array.dtype != self._dtype
            or not array._c_contiguous
            or (self._several_devices and array.data.device_id != self._device)
        ):
            raise self._refusal(name, array, size)
        pointer: int = array.data.ptr
        return pointer

    def buffer(self, name: str, array: Array, least: int) -> int:
        """The address of a buffer of at least ``least`` bytes, of any dtype."""
        if (
            array.__class__ is not self._ndarray
            or array.nbytes < least
            or not array._c_contiguous
            or (self._several_devices and array.data.device_id != self._device)
        ):
            raise self._buffer_refusal(name, array, least)
        pointer: int = array.data.ptr
        return pointer

    def _refusal(self, name: str, array: Array, size: int) -> Exception:
        if array.__class__ is self._ndarray:
            if array.dtype != self._dtype:
                return TypeError(f"{name} must have dtype {self._dtype}; got {array.dtype}")
            if array.size != size:
                return ValueError(
                    f"{name} must have {size} elements; got {array.size}, shape {array.shape}"
                )
        return self._placement_refusal(name, array)

    def _buffer_refusal(self, name: str, array: Array, least: int) -> Exception:
        if array.__class__ is self._ndarray and array.nbytes < least:
            return ValueError(f"{name} must have at least {least} bytes; got {array.nbytes}")
        return self._placement_refusal(name, array)

    def _placement_refusal(self, name: str, array: Array) -> Exception:
        if array.__class__ is not self._ndarray:
            kind = f"{self._ndarray.__module__.partition('.')[0]}.{self._ndarray.__name__}"
            return TypeError(f"{name} must be a {kind}; got {type(array).__name__}")
        if not array._c_contiguous:
            return ValueError(f"{name} must be contiguous; its strides are {array.strides}")
        return ValueError(
            f"{name} must be on device {self._device}; it is on {array.data.device_id}"
        )


def check_apart(written: Iterable[Span], read: Iterable[Span]) -> None:
    """Raise ``ValueError`` where memory that is written is also another argument's."""
    spans = [(*span, True) for span in written] + [(*span, False) for span in read]
    spans.sort(key=lambda span: span[1])
    last_name, last_end, last_written = "", 0, False
    for name, start, nbytes, is_written in spans:
        if not nbytes:
            continue
        if start < last_end and (is_written or last_written):
            raise ValueError(f"{name} and {last_name} must not share memory: one is written")
        if start + nbytes > last_end:
            last_name, last_end, last_written = name, start + nbytes, is_written
