"""Find the packages, vendor libraries and devices of this machine, without raising."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from dnnffi.backends.cudnn import library as cudnn
from dnnffi.backends.miopen import library as miopen
from dnnffi.backends.registry import BACKENDS
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.cache_folder import ENVIRONMENT_VARIABLE, cache_folder
from dnnffi.errors import CudaError, LibraryNotFoundError
from dnnffi.runtime.cuda.driver import load_driver
from dnnffi.runtime.nvrtc import compiler as nvrtc

INSTALL_CUDNN = cudnn.INSTALL
INSTALL_MIOPEN = miopen.INSTALL
INSTALL_NVRTC = nvrtc.INSTALL
INSTALL_DEMO = "pip install rich matplotlib"


@dataclass(frozen=True)
class Package:
    """A Python package: its module and version, or why it cannot be imported."""

    name: str
    module: ModuleType | None = None
    version: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Library:
    """A vendor's library as the loader found it, or why not and where it was sought."""

    version: str = ""
    path: str = ""
    found_via: str = ""
    problem: str = ""
    searched: tuple[str, ...] = ()


@dataclass(frozen=True)
class Device:
    """A device; ``memory`` in bytes."""

    index: int
    name: str
    capability: str
    memory: int


@dataclass(frozen=True)
class Devices:
    """The devices that are seen, or why none is."""

    found: tuple[Device, ...] = ()
    problem: str = ""


def package(name: str) -> Package:
    """Import the package ``name``."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = "not installed" if error.name == name else f"needs {error.name}"
        return Package(name, problem=missing)
    except Exception as error:  # a broken installation fails in ways of its own
        return Package(name, problem=one_line(error))
    version = getattr(module, "__version__", "")
    if not version:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "unknown version"
    return Package(name, module, str(version))


def absent(*names: str) -> list[str]:
    """Those of the packages ``names`` that are not installed; none is imported."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def cudnn_library() -> Library:
    """libcudnn, opened in this process if it is found."""
    return _library(cudnn.load)


def miopen_library() -> Library:
    """libMIOpen, opened in this process if it is found."""
    return _library(miopen.load)


def nvrtc_library() -> Library:
    """libnvrtc, which compiles dnnffi's own kernels, opened in this process if it is found."""
    return _library(nvrtc.load_compiler)


def _library(load: Callable[[], VendorLibrary | nvrtc.Compiler]) -> Library:
    try:
        library = load()
    except LibraryNotFoundError as error:
        return Library(problem="not found", searched=error.searched)
    except Exception as error:  # too old, or the search itself failed
        return Library(problem=one_line(error))
    return Library(library.version_text, library.path, library.found_via)


@dataclass(frozen=True)
class Adapters:
    """What a backend with devices of its own finds, or why nothing and what to install."""

    title: str
    found: tuple[str, ...] = ()
    problem: str = ""
    install: str = ""


def adapters() -> list[Adapters]:
    """The devices of each backend that has its own."""
    listed = []
    for record in BACKENDS.values():
        if record.adapters is not None:
            try:
                listed.append(Adapters(record.title, tuple(map(str, record.adapters()))))
            except LibraryNotFoundError as error:
                listed.append(Adapters(record.title, (), "not found", error.install))
            except Exception as error:  # drivers fail in ways of their own
                listed.append(Adapters(record.title, (), one_line(error)))
    return listed


def devices(cupy: Package) -> Devices:
    """Return the devices that CuPy sees, or without it CUDA's driver. No context is made."""
    if cupy.module is None:
        return _devices_of_cuda()
    runtime = cupy.module.cuda.runtime
    try:
        found = []
        for index in range(runtime.getDeviceCount()):
            properties = runtime.getDeviceProperties(index)
            found.append(
                Device(
                    index,
                    properties["name"].decode(errors="replace"),
                    f"{properties['major']}.{properties['minor']}",
                    int(properties["totalGlobalMem"]),
                )
            )
    except Exception as error:  # without a driver CuPy's errors have no common base
        return Devices(problem=one_line(error))
    return Devices(tuple(found), "" if found else "the driver reports no device")


def _devices_of_cuda() -> Devices:
    try:
        driver = load_driver()
        found = tuple(
            Device(
                index,
                driver.device_name(index),
                "{}.{}".format(*driver.attributes(index).compute_capability),
                driver.total_bytes(index),
            )
            for index in range(driver.device_count())
        )
    except LibraryNotFoundError as error:
        return Devices(problem=f"{error.library} was not found")
    except CudaError as error:
        return Devices(problem=one_line(error))
    return Devices(found, "" if found else "the driver reports no device")


def cudnn_problem() -> str:
    """Why CuPy with cuDNN cannot be used here; empty if it can."""
    cupy = package("cupy")
    if cupy.module is None:
        return f"CuPy: {cupy.problem}"
    if cupy.module.cuda.runtime.is_hip:
        return "this CuPy is for ROCm"
    seen = devices(cupy)
    if seen.problem:
        return f"GPU: {seen.problem}"
    library = cudnn_library()
    return f"cuDNN: {library.problem}" if library.problem else ""


def kept_on_disk() -> str:
    """Return the folder that dnnffi keeps between processes, or why there is none."""
    folder = cache_folder()
    return f"not kept ({ENVIRONMENT_VARIABLE}=off)" if folder is None else str(folder)


def own_kernels_problem() -> str:
    """Return why own recurrent kernels cannot run on the current device; empty if they can."""
    from dnnffi.backends.own.recurrent.candidates import why_not_here
    from dnnffi.device.external import ExternalMemory

    try:
        return " ".join(why_not_here(ExternalMemory("cuda")).split())
    except LibraryNotFoundError as error:
        return f"{error.library} was not found"
    except Exception as error:  # a driver that does not work
        return one_line(error)


def one_line(error: Exception) -> str:
    """The message of an error on one line, its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
