"""libMIOpen: where it is found, its version, its status codes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.status import NOT_IMPLEMENTED, UNSUPPORTED, meaning
from dnnffi.backends.miopen.symbols import SINCE
from dnnffi.backends.vendor.library import LibraryOfProcess, VendorLibrary
from dnnffi.errors import MiopenError
from dnnffi.runtime import loader

OLDEST = (3, 4, 0)
"""The oldest version supported: the first whose header is checked, and the one that what is said
here of MIOpen was seen on."""

ENVIRONMENT_VARIABLE = "DNNFFI_MIOPEN_LIBRARY"
INSTALL = "the package miopen-hip of ROCm 6.4 or newer (on Debian libmiopen1)"
_FILE_NAME = r"libMIOpen\.so(\.\d+)*"
_NAMES = ("libMIOpen.so.1", "libMIOpen.so")


class Library(VendorLibrary):
    """An open libMIOpen.

    Attributes: ``lib`` (the cffi library), ``path``, ``found_via``, ``version`` (major, minor,
    patch), ``memory`` (the arrays it computes on).
    """

    vendor = "MIOpen"
    oldest = OLDEST
    install = INSTALL
    since = SINCE
    kind = "rocm"
    ffi = ffi
    prefix = "miopen"

    def _read_version(self) -> tuple[int, int, int]:
        parts = [ffi.new("size_t *") for _ in range(3)]
        status = self.lib.miopenGetVersion(*parts)
        if status:
            raise self.error(status, "miopenGetVersion")
        major, minor, patch = (int(part[0]) for part in parts)
        return major, minor, patch

    def error(self, status: int, function: str, problem: object = "") -> Exception:
        """Return the exception for ``status`` (not success) of ``function``.

        `MiopenError` with the status's name and, where that says little, what it means;
        `UnsupportedError` where the status says that the library cannot do this.
        """
        name = self.status_name(status)
        if status in (NOT_IMPLEMENTED, UNSUPPORTED):
            return self.unsupported(
                f"{function} does not support {problem or 'this'} ({name}, {status})"
            )
        return MiopenError(status, name, function, str(problem), meaning(status))


def load() -> Library:
    """Return the libMIOpen of this process, opened on the first call.

    Searched in this order: the file that ``DNNFFI_MIOPEN_LIBRARY`` names, a library already loaded
    in the process (so that CuPy and PyTorch share one), the folder ``lib`` of ``ROCM_PATH``, the
    system's loader. Raises `LibraryNotFoundError` or `UnsupportedError` (too old).
    """
    return _process.load()


def loaded() -> Library | None:
    """Return the libMIOpen that `load` has returned, or None while there is none."""
    return _process.current


def using(library: Library) -> AbstractContextManager[Library]:
    """Make ``library`` the one that `load` returns, for the length of a ``with`` block."""
    return _process.using(library)


def _rocm_path() -> Iterator[str]:
    root = os.environ.get("ROCM_PATH")
    if not root:
        raise LookupError("ROCM_PATH is not set")
    for name in _NAMES:
        yield str(Path(root) / "lib" / name)


PLACES = (
    loader.environment(ENVIRONMENT_VARIABLE),
    loader.already_loaded(_FILE_NAME),
    loader.Location("ROCM_PATH", _rocm_path),
    loader.system(*_NAMES),
)

_process = LibraryOfProcess(Library, ffi, "miopenGetVersion", PLACES)
