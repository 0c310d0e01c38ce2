"""NVRTC: compiles CUDA C++ to code for one architecture."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from dnnffi.errors import CompileError
from dnnffi.runtime import loader
from dnnffi.runtime.kernel_cache import Headers
from dnnffi.runtime.nvrtc._cdef import ffi

ENVIRONMENT_VARIABLE = "DNNFFI_NVRTC_LIBRARY"
INSTALL = "pip install nvidia-cuda-nvrtc (CUDA 12: nvidia-cuda-nvrtc-cu12)"

PLACES = (
    loader.environment(ENVIRONMENT_VARIABLE),
    loader.already_loaded(r"libnvrtc\.so(\.\d+)*"),
    loader.pathfinder("nvrtc"),
    loader.system(
        *("libnvrtc.so.13", "libnvrtc.so.12"),
        dlls=("nvrtc64_130_0.dll", "nvrtc64_120_0.dll"),
    ),
)

_NEWEST_FUNCTION = "nvrtcGetSupportedArchs"  # since CUDA 11.2


class Target(NamedTuple):
    """A target of NVRTC: machine code of ``arch`` "sm_90", or PTX of "compute_90"."""

    arch: str
    is_ptx: bool


class Compiler:
    """An open libnvrtc.

    Attributes: ``path``, ``found_via``, ``version`` (major, minor), ``architectures``, each
    10 * major + minor of the compute capability, in increasing order.
    """

    def __init__(self, lib: Any, path: str, found_via: str) -> None:
        self.lib = lib
        self.path = path
        self.found_via = found_via
        major, minor, count = ffi.new("int *"), ffi.new("int *"), ffi.new("int *")
        self._check(lib.nvrtcVersion(major, minor), "nvrtcVersion")
        self.version = major[0], minor[0]
        self._check(lib.nvrtcGetNumSupportedArchs(count), "nvrtcGetNumSupportedArchs")
        listed = ffi.new("int[]", count[0])
        self._check(lib.nvrtcGetSupportedArchs(listed), "nvrtcGetSupportedArchs")
        self.architectures: tuple[int, ...] = tuple(listed)

    @property
    def version_text(self) -> str:
        """The version as "13.0"."""
        return ".".join(map(str, self.version))

    def target(self, compute_capability: tuple[int, int]) -> Target:
        """Return the target for a device.

        That is its own machine code, or, for a device that is newer than this NVRTC, PTX of the
        newest architecture known, which the driver then compiles.
        """
        major, minor = compute_capability
        wanted = 10 * major + minor
        if wanted in self.architectures:
            return Target(f"sm_{wanted}", False)
        older = [known for known in self.architectures if known < wanted]
        if not older:
            raise CompileError(
                *(0, "no architecture", "nvrtcGetSupportedArchs"),
                f"compute capability {major}.{minor}",
                f"NVRTC {self.version_text} at {self.path} compiles for "
                f"{self.architectures[0] / 10:.1f} or newer. Install: {INSTALL}",
            )
        return Target(f"compute_{older[-1]}", True)

    def compile(
        self,
        source: str,
        name: str,
        target: Target,
        options: Sequence[str],
        headers: Headers = (),
    ) -> bytes:
        """Compile ``source``; return its machine code or PTX.

        Raises `CompileError` with the compiler's log. ``name`` is what the log calls the source.
        ``headers`` must be all headers that are included: NVRTC looks for any other one in the
        current folder of the process.
        """
        return self.compile_with_log(source, name, target, options, headers)[0]

    def compile_with_log(
        self,
        source: str,
        name: str,
        target: Target,
        options: Sequence[str],
        headers: Headers = (),
    ) -> tuple[bytes, str]:
        """Do the same as `compile`, and return the log, too."""
        program = ffi.new("nvrtcProgram *")
        names, texts = ([_c_string(header[i]) for header in headers] for i in range(2))
        status = self.lib.nvrtcCreateProgram(
            *(program, source.encode(), name.encode(), len(headers)),
            *(texts or ffi.NULL, names or ffi.NULL),
        )
        self._check(status, "nvrtcCreateProgram", name)
        try:
            given = [_c_string(one) for one in (f"-arch={target.arch}", *options)]
            status = self.lib.nvrtcCompileProgram(program[0], len(given), given)
            log = self._output(program[0], "nvrtcGetProgramLog").decode(errors="replace")
            if status:
                self._check(status, "nvrtcCompileProgram", name, log)
            found = self._output(program[0], "nvrtcGetPTX" if target.is_ptx else "nvrtcGetCUBIN")
            return found, log.rstrip("\0\n")
        finally:
            self.lib.nvrtcDestroyProgram(program)

    def _output(self, program: Any, function: str) -> bytes:
        size = ffi.new("size_t *")
        self._check(getattr(self.lib, f"{function}Size")(program, size), f"{function}Size")
        text = ffi.new("char[]", size[0])
        self._check(getattr(self.lib, function)(program, text), function)
        return bytes(ffi.buffer(text))

    def _check(self, status: int, function: str, problem: str = "", log: str = "") -> None:
        if status:
            name = ffi.string(self.lib.nvrtcGetErrorString(status)).decode(errors="replace")
            raise CompileError(status, name, function, problem, log.rstrip("\0\n"))


def _c_string(text: str) -> Any:
    """Return a string that C can read while the result lives."""
    return ffi.new("char[]", text.encode())


@cache
def load_compiler() -> Compiler:
    """Return the NVRTC of this process, opened at the first call.

    Searched in this order: the file that ``DNNFFI_NVRTC_LIBRARY`` names, a library that is loaded
    already, cuda-pathfinder, the system's loader. Raises `LibraryNotFoundError` naming all of them.
    """
    found = loader.load("NVRTC", PLACES, ffi.dlopen, _NEWEST_FUNCTION, INSTALL)
    return Compiler(found.lib, found.path, found.found_via)
