"""What does only the CUDA driver know? In which capture a stream is."""

from __future__ import annotations

import ctypes


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
