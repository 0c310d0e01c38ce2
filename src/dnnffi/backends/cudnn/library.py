"""libcudnn: where it is found, its version, which functions it has, its status codes."""

from __future__ import annotations

from contextlib import AbstractContextManager

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.status import last_error
from dnnffi.backends.cudnn.symbols import SINCE
from dnnffi.backends.vendor.library import LibraryOfProcess, VendorLibrary
from dnnffi.errors import CudnnError
from dnnffi.runtime import loader

OLDEST = (8, 9, 7)
"""The oldest version supported: the first whose headers are checked, and from 8.9 on
``cudnnRNNForward`` needs no lengths in device memory."""

ENVIRONMENT_VARIABLE = "DNNFFI_CUDNN_LIBRARY"
INSTALL = "pip install nvidia-cudnn-cu13 (CUDA 12: nvidia-cudnn-cu12)"
_FILE_NAME = r"libcudnn\.so(\.\d+)*"


class Library(VendorLibrary):
    """An open libcudnn.

    Attributes: ``lib`` (the cffi library), ``path``, ``found_via``, ``version`` (major, minor,
    patch), ``memory`` (the arrays it computes on).
    """

    vendor = "cuDNN"
    oldest = OLDEST
    install = INSTALL
    since = SINCE
    kind = "cuda"
    ffi = ffi
    prefix = "cudnn"

    def _read_version(self) -> tuple[int, int, int]:
        return version_tuple(self.lib.cudnnGetVersion())

    def error(self, status: int, function: str, problem: object = "") -> Exception:
        """Return the exception for ``status`` (not success) of ``function``.

        `CudnnError` with the status's name and the library's own message; `UnsupportedError`
        where the status says that the library cannot do this.
        """
        # A call that fails may leave the handle on a stream of cuDNN's own (seen on 9.19 where
        # backward data was refused): the next call has to set it again.
        self.forget_streams()
        name = self.status_name(status)
        detail = last_error(self)
        if name.startswith("CUDNN_STATUS_NOT_SUPPORTED"):
            limit = f"{function} does not support {problem or 'this'} ({name}, {status})"
            return self.unsupported(f"{limit}: {detail}".rstrip(": "))
        return CudnnError(status, name, function, str(problem), detail)


def version_tuple(number: int) -> tuple[int, int, int]:
    """``cudnnGetVersion``'s number as (major, minor, patch): 91900 and 8907 are 9.19.0, 8.9.7."""
    thousand = 10000 if number >= 90000 else 1000
    return number // thousand, number % thousand // 100, number % 100


def load() -> Library:
    """Return the libcudnn of this process, opened on the first call.

    Searched in this order: the file that ``DNNFFI_CUDNN_LIBRARY`` names, a library already loaded
    in the process (so that CuPy, JAX and PyTorch share one), cuda-pathfinder, NVIDIA's wheel of
    cuDNN 8, the system's loader. Raises `LibraryNotFoundError` or `UnsupportedError` (too old).
    """
    return _process.load()


def loaded() -> Library | None:
    """Return the libcudnn that `load` has returned, or None while there is none."""
    return _process.current


def using(library: Library) -> AbstractContextManager[Library]:
    """Make ``library`` the one that `load` returns, for the length of a ``with`` block."""
    return _process.using(library)


PLACES = (
    loader.environment(ENVIRONMENT_VARIABLE),
    loader.already_loaded(_FILE_NAME),
    loader.pathfinder("cudnn"),
    loader.wheel("nvidia.cudnn", "libcudnn.so.8"),  # cuda-pathfinder searches for libcudnn.so.9
    loader.system(
        *("libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"),
        dlls=("cudnn64_9.dll", "cudnn64_8.dll"),
    ),
)

_process = LibraryOfProcess(Library, ffi, "cudnnGetVersion", PLACES)
