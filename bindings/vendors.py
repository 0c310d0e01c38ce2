"""The vendors whose C interface is bound: one row each, read by every tool in this folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BINDINGS = Path(__file__).resolve().parent
ROOT = BINDINGS.parent
HEADERS = ROOT / "build" / "headers"

NEWEST = "newest"


@dataclass(frozen=True)
class Wheel:
    """One release of a wheel on the package index that carries the vendor's headers."""

    package: str
    version: str


@dataclass(frozen=True)
class Deb:
    """A package of a Debian suite that carries the vendor's headers. An archive has one version."""

    package: str
    suite: str
    version: str = NEWEST


@dataclass(frozen=True)
class Vendor:
    """One vendor as the tools need it: C text, headers, versions and address types.

    Addresses are C types of values that Python hands over as plain integers. The key is the name
    used in the C text, the value is the real type. For cffi each is a ``uintptr_t``: an integer
    argument costs half of what a pointer argument does. For the compiler each is a macro for the
    real type, so that ``const dev_ptr`` is ``const void *`` there.
    """

    name: str
    topics: tuple[str, ...]
    """C text files of ``bindings/<name>``, in the order in which they build on each other."""
    addresses: Mapping[str, str]
    include: str
    """The header that includes all others."""
    version_macros: tuple[str, str] | None = None
    """Macros for the major and minor version; None if only the package's version says them."""
    wheels: tuple[Wheel, ...] = ()
    """The versions to check, oldest first."""
    debs: tuple[Deb, ...] = ()
    """The versions to check of a vendor whose headers are on no package index of Python."""
    language: str = "c"
    """Language of the headers: "c" or "c++"."""
    also_include: tuple[str, ...] = ()
    """Headers that ``include`` leaves out."""
    defines: tuple[str, ...] = ()
    """Macros that the headers want before they declare everything."""
    subpackage: str = ""
    """The package of dnnffi that uses the C text; by default that of the backend of this name."""

    @property
    def releases(self) -> tuple[Wheel | Deb, ...]:
        """Every release to check."""
        return (*self.wheels, *self.debs)

    @property
    def text(self) -> Path:
        """The folder of the C text."""
        return BINDINGS / self.name

    @property
    def module(self) -> str:
        """Name of the generated module."""
        return f"dnnffi.{self.subpackage or f'backends.{self.name}'}._cdef"

    @property
    def package(self) -> Path:
        """The folder of the Python package that uses the C text."""
        return ROOT / "src" / Path(*self.module.split(".")[:-1])


VENDORS: dict[str, Vendor] = {
    vendor.name: vendor
    for vendor in (
        Vendor(
            name="cudnn",
            topics=("library.h", "tensor.h", "dropout.h", "rnn.h", "graph.h"),
            addresses={
                "dev_ptr": "void *",
                "dev_ptr_int32": "int32_t *",
                "stream_ptr": "cudaStream_t",
            },
            include="cudnn.h",
            version_macros=("CUDNN_MAJOR", "CUDNN_MINOR"),
            wheels=(
                Wheel("nvidia-cudnn-cu12", "8.9.7.29"),
                Wheel("nvidia-cudnn-cu12", "9.1.0.70"),
                Wheel("nvidia-cudnn-cu12", "9.10.2.21"),
                Wheel("nvidia-cudnn-cu13", "9.19.0.56"),
                Wheel("nvidia-cudnn-cu13", NEWEST),
            ),
        ),
        Vendor(
            name="cublas",
            topics=("library.h", "matmul.h"),
            addresses={
                "dev_ptr": "void *",
                "stream_ptr": "cudaStream_t",
                "layout_ptr": "cublasLtMatrixLayout_t",
                "operation_ptr": "cublasLtMatmulDesc_t",
                "preference_ptr": "cublasLtMatmulPreference_t",
            },
            include="cublasLt.h",
            version_macros=("CUBLAS_VER_MAJOR", "CUBLAS_VER_MINOR"),
            wheels=(
                Wheel("nvidia-cublas-cu12", "12.0.1.189"),
                Wheel("nvidia-cublas-cu12", "12.9.0.13"),
                Wheel("nvidia-cublas", NEWEST),
            ),
        ),
        Vendor(
            name="cuda",
            topics=("driver.h", "memory.h", "stream.h"),
            addresses={
                "dev_ptr": "CUdeviceptr",
                "context_ptr": "CUcontext",
                "function_ptr": "CUfunction",
                "stream_ptr": "CUstream",
                "event_ptr": "CUevent",
                "graph_ptr": "CUgraph",
                "graph_exec_ptr": "CUgraphExec",
            },
            include="cuda.h",
            # Declares the functions of older versions too, which every driver has.
            defines=("__CUDA_API_VERSION_INTERNAL",),
            wheels=(
                Wheel("nvidia-cuda-runtime-cu12", "12.0.107"),
                Wheel("nvidia-cuda-runtime-cu12", "12.9.79"),
                Wheel("nvidia-cuda-runtime", NEWEST),
            ),
            subpackage="runtime.cuda",
        ),
        Vendor(
            name="nvrtc",
            topics=("nvrtc.h",),
            addresses={},
            include="nvrtc.h",
            wheels=(
                Wheel("nvidia-cuda-nvrtc-cu12", "12.0.76"),
                Wheel("nvidia-cuda-nvrtc", NEWEST),
            ),
            subpackage="runtime.nvrtc",
        ),
        Vendor(
            name="miopen",
            topics=("library.h", "tensor.h", "dropout.h", "rnn.h", "convolution.h", "fusion.h"),
            addresses={"dev_ptr": "void *", "stream_ptr": "hipStream_t"},
            include="miopen/miopen.h",
            also_include=("miopen/version.h",),
            version_macros=("MIOPEN_VERSION_MAJOR", "MIOPEN_VERSION_MINOR"),
            # No valid C: it has default arguments and uses the name of a struct as a type.
            language="c++",
            defines=("MIOPEN_BETA_API",),
            debs=(Deb("libmiopen-dev", "sid"),),
        ),
    )
}

# Its header comes with jaxlib, and declares structures with functions in them: tests/xla compares.
XLA = Vendor(
    name="xla",
    topics=("ffi.h",),
    addresses={},
    include="xla/ffi/api/c_api.h",
    version_macros=("XLA_FFI_API_MAJOR", "XLA_FFI_API_MINOR"),
    subpackage="jax",
)

GENERATED = (*VENDORS.values(), XLA)
"""All vendors whose C text becomes a module."""
