"""cuDNN's status codes in words. Numbers differ between 8.9 and 9, so the library is asked."""

from __future__ import annotations

from typing import Any

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.device import loader

_MESSAGE_SIZE = 1024


def status_name(lib: Any, status: int) -> str:
    """The name of a status (``cudnnGetErrorString``)."""
    return _text(lib.cudnnGetErrorString(status))


def last_error(library: Any) -> str:
    """What the library says of its last error (``cudnnGetLastErrorString``, 9.0 and later)."""
    if not loader.has_symbol(library.lib, "cudnnGetLastErrorString"):
        return ""
    message = ffi.new("char[]", _MESSAGE_SIZE)
    library.lib.cudnnGetLastErrorString(message, _MESSAGE_SIZE)
    return _text(message).strip()


def _text(pointer: Any) -> str:
    raw: bytes = ffi.string(pointer)
    return raw.decode(errors="replace")
