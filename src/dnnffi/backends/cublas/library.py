"""libcublasLt: where it is found, of which CUDA it is, its version, its status codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dnnffi import wheels
from dnnffi.backends.cublas._cdef import ffi
from dnnffi.backends.vendor.library import LibraryOfProcess, VendorLibrary
from dnnffi.device.interface import Memory
from dnnffi.errors import CublasError, UnsupportedError
from dnnffi.execution.cache import OnceCell
from dnnffi.runtime import loader

if TYPE_CHECKING:
    from dnnffi.backends.cublas.handle import Handle

OLDEST = (12, 0, 1)
"""The oldest version supported: the first whose header is checked."""

ENVIRONMENT_VARIABLE = "DNNFFI_CUBLASLT_LIBRARY"
INSTALL = "pip install nvidia-cublas (CUDA 12: nvidia-cublas-cu12)"
_FILE_NAME = r"libcublasLt\.so(\.\d+)*"
_OF_CUDA = r"lib(?:cudart|nvrtc|cublasLt)\.so\.(\d+)(?:\.\d+)*"
_NOT_SUPPORTED = ffi.integer_const("CUBLAS_STATUS_NOT_SUPPORTED")


class Library(VendorLibrary):
    """An open libcublasLt. ``handles`` has those of its devices (`dnnffi.backends.cublas.handle`).

    Raises `UnsupportedError` where it is too old, or of another CUDA than the process computes
    with.
    """

    vendor = "cuBLAS"
    oldest = OLDEST
    install = INSTALL
    kind = "cuda"
    ffi = ffi
    prefix = "cublasLt"

    def __init__(
        self, lib: Any, path: str, found_via: str, *, memory: Memory | None = None
    ) -> None:
        super().__init__(lib, path, found_via, memory=memory)
        self.handles: OnceCell[int, Handle] = OnceCell()
        majors = cuda_majors()
        if majors and self.version[0] not in majors:
            raise UnsupportedError(
                self.vendor,
                self.version_text,
                f"this process computes with CUDA {' and '.join(map(str, majors))}; {path} was "
                f"found via {found_via}. Install: {wheels.fitting_installed(self.install)}",
            )

    def _read_version(self) -> tuple[int, int, int]:
        number = self.lib.cublasLtGetVersion()
        return number // 10000, number // 100 % 100, number % 100

    def status_name(self, status: int) -> str:
        return self._text("cublasLtGetStatusName", status)

    def _text(self, function: str, status: int) -> str:
        raw: bytes = ffi.string(getattr(self.lib, function)(status))
        return raw.decode(errors="replace")

    def error(self, status: int, function: str, problem: object = "") -> Exception:
        """Return the exception for ``status`` (not success) of ``function``.

        `CublasError` with the status's name and description; `UnsupportedError` where the status
        says that the library cannot do this.
        """
        name, detail = self.status_name(status), self._text("cublasLtGetStatusString", status)
        if status == _NOT_SUPPORTED:
            limit = f"{function} does not support {problem or 'this'} ({name}, {status})"
            return UnsupportedError(self.vendor, self.version_text, limit)
        return CublasError(status, name, function, str(problem), detail)


def cuda_majors() -> list[int]:
    """Return the major versions of CUDA that this process may compute with; empty if unknown.

    CuPy knows its own. Without it they are those of the CUDA libraries that are loaded.
    """
    # A module that another thread is importing does not have this yet.
    cuda = getattr(sys.modules.get("cupy"), "cuda", None)
    if cuda is not None:
        return [cuda.runtime.runtimeGetVersion() // 1000]
    return sorted({_major(path) for path in loader.mapped_libraries(_OF_CUDA)})


def _major(path: str) -> int:
    """Return the version in a file name: 13 for ``libcublasLt.so.13``, ``cublasLt64_13.dll``."""
    found = re.search(r"(?:\.so\.|64_)(\d+)(?:\.\d+)*(?:\.dll)?$", path)
    return int(found[1]) if found else 0


def _of_cuda(location: loader.Location) -> loader.Location:
    """Restrict a location to files whose names have a CUDA version of this process."""

    def candidates() -> Iterator[str]:
        found, majors = list(location.candidates()), cuda_majors()
        fitting = [path for path in found if not majors or _major(path) in majors]
        if found and not fitting:
            wanted = " or ".join(map(str, majors))
            raise LookupError(f"{', '.join(found)}: not of CUDA {wanted}, which this process uses")
        yield from fitting

    return replace(location, candidates=candidates)


def load() -> Library:
    """Return the libcublasLt of this process, opened on the first call.

    Searched in this order: the file that ``DNNFFI_CUBLASLT_LIBRARY`` names, a library already
    loaded in the process, as CuPy's and cuDNN's is, cuda-pathfinder, the system's loader; of the
    CUDA that the process computes with. Raises `LibraryNotFoundError` or `UnsupportedError`.
    """
    return _process.load()


PLACES = (
    loader.environment(ENVIRONMENT_VARIABLE),
    _of_cuda(loader.already_loaded(_FILE_NAME)),
    _of_cuda(loader.pathfinder("cublasLt")),
    _of_cuda(
        loader.system(
            *("libcublasLt.so.13", "libcublasLt.so.12"),
            dlls=("cublasLt64_13.dll", "cublasLt64_12.dll"),
        )
    ),
)

_process = LibraryOfProcess(Library, ffi, "cublasLtGetVersion", PLACES)
