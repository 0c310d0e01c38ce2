"""The cuBLASLt handle of each device, shared by all threads of the process.

Functions of cuBLAS "can be called from multiple host threads, even with the same handle"; NVIDIA
warns of that only because settings of a handle and its end concern all of them (cuBLAS, "Thread
Safety", https://docs.nvidia.com/cuda/cublas/#thread-safety). A handle of cuBLASLt has no settings:
streams, workspaces and algorithms are arguments of each call, and nothing in ``cublasLt.h`` sets
anything of one. It is tied to the device that was current when it was made
(https://docs.nvidia.com/cuda/cublas/#cublasltcreate), and ends with its library.
"""

from __future__ import annotations

from collections.abc import Callable

from dnnffi.backends.cublas.library import Library
from dnnffi.backends.vendor.resource import Resource
from dnnffi.execution.cache import OnceCell, WeakRegistry
from dnnffi.execution.fork import refuse_after_fork
from dnnffi.operating_system import register_at_fork


class Handle(Resource):
    """A handle of cuBLASLt for the current device. Raises `CublasError` if there is none.

    ``address`` is its pointer, for calls: a handle lives as long as its library.
    """

    def __init__(self, library: Library) -> None:
        out = library.ffi.new("cublasLtHandle_t *")
        super().__init__(library, "cublasLtCreate", "cublasLtDestroy", out)
        self.address = self.pointer


def handle_of(library: Library, device: int) -> Handle:
    """Return the handle for ``device``, which must be current.

    Raises `DnnffiError` in a forked process whose parent had one.
    """
    _used.add(library)
    return library.handles.get(device, lambda: Handle(library))


_used: WeakRegistry[Library] = WeakRegistry()


class _Forked(OnceCell[int, Handle]):
    """Stand-in for the handles of a library in a forked process; each access raises."""

    def __init__(self) -> None:
        super().__init__()
        self.find = lambda device: refuse_after_fork()

    def get(self, key: int, make: Callable[[], Handle]) -> Handle:
        handle: Handle = refuse_after_fork()
        return handle


def _refuse_in_child() -> None:
    for library in _used.snapshot():
        library.handles = _Forked()


register_at_fork(after_in_child=_refuse_in_child)
