"""MIOpen handles: one for each thread and device, on the caller's current stream."""

from __future__ import annotations

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.vendor import handle
from dnnffi.backends.vendor.handle import close_handles, handle_for

__all__ = ["Handle", "close_handles", "handle_for"]


class Handle(handle.Handle):
    """A ``miopenHandle_t`` for the current device. Belongs to the thread that made it.

    Raises `MiopenError` where there is no GPU.
    """

    _ffi = ffi
    _prefix = "miopen"
