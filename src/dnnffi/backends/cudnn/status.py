"""cuDNN's status codes in words. Numbers differ between 8.9 and 9, so the library is asked."""

from __future__ import annotations

from typing import Any

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.runtime import loader

_MESSAGE_SIZE = 1024


def last_error(library: Any) -> str:
    """Return the message of the library's last error (``cudnnGetLastErrorString``, from 9.0)."""
    if not loader.has_symbol(library.lib, "cudnnGetLastErrorString"):
        return ""
    message = ffi.new("char[]", _MESSAGE_SIZE)
    library.lib.cudnnGetLastErrorString(message, _MESSAGE_SIZE)
    raw: bytes = ffi.string(message)
    return raw.decode(errors="replace").strip()
