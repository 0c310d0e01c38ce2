"""Arguments of a call that say what its rows are, as arrays: resets, and lengths on the device."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from dnnffi.device.arrays import to_host
from dnnffi.device.dtypes import DLPACK_HOST
from dnnffi.device.external import DeviceArray
from dnnffi.device.interface import AnyArray
from dnnffi.errors import PerformanceWarning, UnsupportedError, caller_level
from dnnffi.rnn.resets import check_given


class RowArrays(NamedTuple):
    """The arguments resets and reset_to of a call, and lengths [B] that are in device memory."""

    resets: Any
    reset_to: Any
    lengths: Any


def row_arrays(lengths: Any, resets: Any, reset_to: Any) -> RowArrays | None:
    """Return the arguments of a call that are arrays about rows; None if there are none.

    Raises ``ValueError`` for the state of resets without resets.
    """
    check_given(resets, reset_to)
    on_device = lengths if lengths is not None and is_on_device(lengths) else None
    if resets is None and on_device is None:
        return None
    return RowArrays(resets, reset_to, on_device)


def is_on_device(lengths: Any) -> bool:
    """Whether lengths are an array in device memory, and no sequence on the host."""
    kind = lengths.__class__
    if kind is tuple or kind is list or kind is np.ndarray:
        return False
    if kind is DeviceArray or hasattr(lengths, "__cuda_array_interface__"):
        return True
    device_of = getattr(lengths, "__dlpack_device__", None)
    return device_of is not None and device_of()[0] not in DLPACK_HOST


def lengths_on_host(array: AnyArray, steps: int, *, is_strict: bool = False) -> tuple[int, ...]:
    """Return a copy of lengths on the host, from 0 to T: others count as the nearest of these.

    With ``is_strict`` they raise ``ValueError``.
    """
    found = to_host(array)
    clamped = np.clip(found, 0, steps)
    if is_strict and (wrong := np.flatnonzero(clamped != found)).size:
        row = int(wrong[0])
        raise ValueError(
            f"lengths[{row}] must be from 0 to {steps} (T); got {found[row]}, which counts as "
            f"{clamped[row]} without options['validate']"
        )
    return tuple(map(int, clamped))


def warn_of_copy(error: UnsupportedError) -> None:
    """Warn once that lengths on the device are copied to the host, since ``error`` refuses them."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"lengths on the device are copied to the host in every call, which waits for the "
            f"device: {error}",
            PerformanceWarning,
            stacklevel=caller_level(),
        )


_warned = False
