"""The device runtime of this process, by the kind of memory: "cuda" or "rocm"."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol

from dnnffi.runtime import hip, loader
from dnnffi.runtime.cuda.driver import load_driver
from dnnffi.runtime.cuda.runtime import CudaRuntime

_FILE_NAMES = {"cuda": r"lib(cuda|cudart)\.so(\.\d+)*", "rocm": hip.FILE_NAME}


class DeviceRuntime(Protocol):
    """Methods that the runtimes of CUDA and ROCm both have."""

    kind: str

    def current_device(self) -> int:
        """Return the current device of the thread."""

    def device_count(self) -> int:
        """Return the number of devices."""

    def use(self, device: int) -> AbstractContextManager[None]:
        """Make ``device`` the current one for the length of a ``with`` block."""

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueue a copy between any two addresses, of devices or the host."""

    def copy_rows(
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        stream: int,
    ) -> None:
        """Enqueue a copy of rows of ``width`` bytes; pitches are from row to row."""

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Enqueue the writing of zeros."""

    def synchronize(self, stream: int) -> None:
        """Wait until all work on ``stream`` is done."""

    def new_event(self) -> Any:
        """Return a new event that orders streams."""

    def record(self, event: Any, stream: int) -> None:
        """Record ``event`` on ``stream``."""

    def wait(self, stream: int, event: Any) -> None:
        """Let ``stream`` wait for ``event``, without the host waiting."""

    def is_capturing(self, stream: int) -> bool:
        """Return whether a stream other than the default stream is being captured."""

    def capture_id(self, stream: int) -> int:
        """Return the number of the capture that a stream is in; 0 if it is in none."""

    def beside_capture(self) -> AbstractContextManager[None]:
        """Let this thread allocate and make objects while it captures a stream."""


@cache
def device_runtime(kind: str) -> DeviceRuntime:
    """Return the runtime of "cuda" or "rocm", opened at the first call.

    Raises `LibraryNotFoundError` without its library, `CudaError` where CUDA finds no device.
    """
    return CudaRuntime(load_driver()) if kind == "cuda" else hip.open_hip()


def kind_in_process() -> str:
    """Return the kind of runtime that this process has loaded: for arrays that do not tell theirs.

    Raises ``TypeError`` if it has loaded none, or both.
    """
    found = [kind for kind, name in _FILE_NAMES.items() if loader.mapped_libraries(name)]
    if len(found) != 1:
        raise TypeError(
            "an array with __cuda_array_interface__ alone does not tell CUDA from ROCm, and this "
            f"process has loaded {'both runtimes' if found else 'neither runtime'}"
        )
    return found[0]
