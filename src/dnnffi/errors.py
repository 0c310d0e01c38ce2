"""The exceptions of dnnffi. Wrong arguments are plain ``ValueError`` and ``TypeError``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


class DnnffiError(Exception):
    """Base of every error that is dnnffi's own."""

    def __reduce__(self) -> tuple[object, ...]:
        # Not by calling the class with the text, as exceptions are: a pool of processes waits for
        # ever, or breaks, where the error of a worker cannot be made anew.
        state = dict(self.__dict__)
        if isinstance(self, ImportError):
            state["msg"] = self.msg  # its text, which is not in the dictionary
        return _unpickled, (type(self), self.args, state)


def _unpickled(
    kind: type[DnnffiError], args: tuple[object, ...], state: dict[str, object]
) -> DnnffiError:
    made = kind.__new__(kind, *args)
    for name, value in state.items():
        setattr(made, name, value)
    return made


class LibraryNotFoundError(DnnffiError, ImportError):
    """A vendor library could not be loaded; names every place searched and the install command."""

    def __init__(self, library: str, searched: Sequence[str], install: str) -> None:
        self.library = library
        self.searched = tuple(searched)
        self.install = install
        places = "\n".join(f"  - {place}" for place in self.searched)
        super().__init__(f"{library} could not be loaded. Searched:\n{places}\nInstall: {install}")


class UnsupportedError(DnnffiError, NotImplementedError):
    """The vendor's library cannot do this; names the vendor, its version and the limit."""

    def __init__(self, vendor: str, version: str, limit: str) -> None:
        self.vendor = vendor
        self.version = version
        self.limit = limit
        super().__init__(f"{vendor} {version}: {limit}" if version else f"{vendor}: {limit}")


class StatusError(DnnffiError, RuntimeError):
    """A vendor function returned a status other than success.

    Attributes: ``status`` (number), ``status_name``, ``function`` (the C function), ``problem``
    (spec and shapes) and ``detail`` (the library's own message, empty if it gave none).
    """

    vendor = ""

    def __init__(
        self, status: int, status_name: str, function: str, problem: str = "", detail: str = ""
    ) -> None:
        self.status = status
        self.status_name = status_name
        self.function = function
        self.problem = problem
        self.detail = detail
        text = f"{function} returned {status_name} ({status})"
        if problem:
            text += f" for {problem}"
        if detail:
            text += f": {detail}"
        super().__init__(text)


class CudnnError(StatusError):
    """A cuDNN function failed."""

    vendor = "cuDNN"


class CublasError(StatusError):
    """A function of cuBLASLt failed."""

    vendor = "cuBLAS"


class CudaError(StatusError):
    """A function of CUDA's driver (libcuda) failed."""

    vendor = "CUDA"


class CompileError(StatusError):
    """NVRTC, CUDA's compiler, failed on one of dnnffi's kernels; ``detail`` is its log."""

    vendor = "NVRTC"


class MiopenError(StatusError):
    """A MIOpen function failed."""

    vendor = "MIOpen"


class VulkanError(DnnffiError, RuntimeError):
    """The backend "vulkan": wgpu or the driver failed, or the device was lost; says what it did."""


class CaptureError(DnnffiError):
    """A signal handler or a callback called dnnffi while the same thread captured a CUDA graph."""


class ContextError(DnnffiError, RuntimeError):
    """A backward call in an order, or with a context, that the reserve space does not allow."""


class ValidationError(DnnffiError, AssertionError):
    """``options={"validate": True}``: a result differs from the reference beyond rounding.

    ``deviations`` maps each output's name to ``(deviation, allowed)``, both relative to the
    reference's largest magnitude.
    """

    def __init__(self, deviations: dict[str, tuple[float, float]]) -> None:
        self.deviations = deviations
        rows = ", ".join(
            f"{name} {found:.3g} (allowed {allowed:.3g})"
            for name, (found, allowed) in deviations.items()
        )
        super().__init__(f"results differ from the reference; relative deviation: {rows}")


def not_picklable(thing: object, advice: str) -> TypeError:
    """Return the error for pickling or copying what belongs to a process."""
    return TypeError(
        f"{type(thing).__name__} cannot be pickled or copied: it is about memory and a library of "
        f"this process. Instead {advice}"
    )


class PerformanceWarning(UserWarning):
    """A call is right, but slower than the caller could make it."""


def caller_level() -> int:
    """``stacklevel`` of the first frame outside dnnffi, seen from the function that asks."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] == "dnnffi":
        level, frame = level + 1, frame.f_back
    return level
