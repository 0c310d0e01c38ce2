"""Bindings of the device library: HIP's functions and those of ``device/control.h``."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path

CONTROL = Path(__file__).resolve().parent / "device" / "control.h"
_TYPES = {
    "void": None,
    "bool": ctypes.c_bool,
    "int": ctypes.c_int,
    "uint8_t": ctypes.c_uint8,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "const char *": ctypes.c_char_p,
    "const void *": ctypes.c_void_p,
    "gfx1100_executor": ctypes.c_void_p,
}
_PROTOTYPE = re.compile(r"GFX1100_API ((?:const )?\w+ \*?)(gfx1100_\w+)\(([^)]*)\);")


@cache
def device() -> ctypes.CDLL:
    """Load the stand-in of the HIP runtime and set the types of its control functions."""
    (path,) = Path("/usr/local/lib").glob("libamdhip64.so.*")
    library = ctypes.CDLL(str(path))
    for result, name, parameters in _PROTOTYPE.findall(CONTROL.read_text()):
        function = getattr(library, name)
        function.restype = _TYPES[result.strip()]
        if parameters != "void":
            function.argtypes = [_type_of(parameter) for parameter in parameters.split(",")]
    return library


def _type_of(parameter: str) -> type:
    return _TYPES[re.sub(r"\w+$", "", parameter.strip()).strip()]
