"""Calls that only the CUDA driver has: identify a stream's capture, allow other work during it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


def capture_id(stream: int) -> int:
    """The number of the CUDA graph capture that a stream is in, 0 where it is in none."""
    # CuPy tells whether a stream is captured, not in which capture; the driver does.
    driver = ctypes.CDLL("libcuda.so.1")
    status, number = ctypes.c_int(), ctypes.c_ulonglong()
    result = driver.cuStreamGetCaptureInfo_v2(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
    )
    if result:
        raise RuntimeError(f"cuStreamGetCaptureInfo_v2 returned {result}")
    return number.value if status.value else 0


@contextmanager
def beside_capture() -> Iterator[None]:
    """Let this thread make and allocate things while it captures a stream for somebody else.

    They are not in the graph. CUDA else refuses, and ends the capture. Nothing changes where there
    is no driver.
    """
    mode = ctypes.c_int(_RELAXED)
    try:
        exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        exchange = None
    if exchange is None or exchange(ctypes.byref(mode)):
        yield
        return
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))  # which has what was before
