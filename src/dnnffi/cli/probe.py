"""Find the packages, vendor libraries and devices of this machine, without raising."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from tempfile import TemporaryDirectory
from types import ModuleType

from dnnffi import wheels
from dnnffi.backends.cudnn import library as cudnn
from dnnffi.backends.miopen import library as miopen
from dnnffi.backends.registry import BACKENDS
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.cache_folder import ENVIRONMENT_VARIABLE, cache_folder
from dnnffi.device.cupy import INSTALL_CUPY
from dnnffi.errors import CudaError, LibraryNotFoundError
from dnnffi.runtime.cuda.driver import load_driver
from dnnffi.runtime.nvrtc import compiler as nvrtc

INSTALL_MIOPEN = miopen.INSTALL
INSTALL_DEMO = "pip install rich matplotlib"

NOT_FOUND = "not found"
"""The problem of a library or of an adapter whose search failed at every place."""

NO_DRIVER = "CUDA's driver was not found"
NO_DEVICE = "the driver reports no device"
"""The problems of `Devices` on a machine without NVIDIA's driver or without a GPU."""


@dataclass(frozen=True)
class Package:
    """A Python package: its module and version, or why it cannot be imported."""

    name: str
    module: ModuleType | None = None
    version: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Library:
    """A vendor's library as the loader found it, or why it was not and every place searched.

    ``is_named`` says whether an environment variable names its file.
    """

    version: str = ""
    path: str = ""
    found_via: str = ""
    problem: str = ""
    searched: tuple[str, ...] = ()
    is_named: bool = False


@dataclass(frozen=True)
class Device:
    """A GPU.

    capability : NVIDIA's compute capability, such as "9.0"; of an AMD GPU what CuPy reports, or
        empty without CuPy
    memory : in bytes
    """

    index: int
    name: str
    capability: str
    memory: int

    def __str__(self) -> str:
        capability = f"compute capability {self.capability}, " if self.capability else ""
        return f"{self.name}, {capability}{self.memory / 2**30:.1f} GiB"


@dataclass(frozen=True)
class Devices:
    """The GPUs that were found, or why none was; ``kind`` is "cuda" or "rocm"."""

    found: tuple[Device, ...] = ()
    problem: str = ""
    kind: str = "cuda"


def package(name: str) -> Package:
    """Import the package ``name``."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = "not installed" if error.name == name else f"needs {error.name}"
        return Package(name, problem=missing)
    except Exception as error:  # a broken installation fails in ways of its own
        return Package(name, problem=one_line(error))
    if _is_plain_folder(getattr(module, "__spec__", None)):
        return Package(name, problem="not installed")
    version = getattr(module, "__version__", "")
    if not version:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "unknown version"
    return Package(name, module, str(version))


def absent(*names: str) -> list[str]:
    """Return the packages out of ``names`` that are not installed. Nothing is imported."""
    specs = {name: importlib.util.find_spec(name) for name in names}
    return [name for name, spec in specs.items() if spec is None or _is_plain_folder(spec)]


def _is_plain_folder(spec: ModuleSpec | None) -> bool:
    """Return whether Python takes a folder without code for a package, as a clone's is."""
    return spec is not None and spec.origin is None


def torch_text() -> str:
    """Return the version of PyTorch and what it is built for, or "not installed"."""
    return _built_for(wheels.version("torch"), wheels.cuda_of_torch())


def jax_text() -> str:
    """Return the version of JAX and what its plugin is for, or "not installed"."""
    return _built_for(wheels.version("jax"), wheels.cuda_of_jax())


def _built_for(version: str, major: int | None) -> str:
    if not version:
        return "not installed"
    if "rocm" in version:
        return f"{version}, for ROCm"
    return f"{version}, for CUDA {major}" if major else f"{version}, for the CPU"


def cudnn_library() -> Library:
    """Open libcudnn in this process if it is found."""
    return _library(cudnn.load, cudnn.ENVIRONMENT_VARIABLE)


def miopen_library() -> Library:
    """Open libMIOpen in this process if it is found."""
    return _library(miopen.load, miopen.ENVIRONMENT_VARIABLE)


def nvrtc_library() -> Library:
    """Open libnvrtc, which compiles dnnffi's own kernels, in this process if it is found."""
    return _library(nvrtc.load_compiler, nvrtc.ENVIRONMENT_VARIABLE)


def _library(load: Callable[[], VendorLibrary | nvrtc.Compiler], variable: str) -> Library:
    is_named = bool(os.environ.get(variable))
    try:
        library = load()
    except LibraryNotFoundError as error:
        return Library(problem=NOT_FOUND, searched=error.searched, is_named=is_named)
    except Exception as error:  # too old, or the search itself failed
        return Library(problem=one_line(error), is_named=is_named)
    return Library(library.version_text, library.path, library.found_via, is_named=is_named)


@dataclass(frozen=True)
class Adapters:
    """The devices of a backend that finds its own, or why there are none and what to install."""

    title: str
    found: tuple[str, ...] = ()
    problem: str = ""
    install: str = ""


def adapters() -> list[Adapters]:
    """Return the devices of each backend that finds its own."""
    listed = []
    for record in BACKENDS.values():
        if record.adapters is not None:
            try:
                with _runtime_folder():
                    listed.append(Adapters(record.title, tuple(map(str, record.adapters()))))
            except LibraryNotFoundError as error:
                listed.append(Adapters(record.title, (), NOT_FOUND, error.install))
            except Exception as error:  # drivers fail in ways of their own
                listed.append(Adapters(record.title, (), one_line(error)))
    return listed


@contextmanager
def _runtime_folder() -> Iterator[None]:
    """Name an empty folder for the sockets of a user's session if the environment names none.

    Without one, Mesa's Vulkan drivers write errors to stderr, although they find their devices.
    """
    if "XDG_RUNTIME_DIR" in os.environ:
        yield
        return
    with TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["XDG_RUNTIME_DIR"]


def devices(cupy: Package) -> Devices:
    """Return the devices that CuPy finds, or those of CUDA's driver without CuPy.

    No context is made.
    """
    if cupy.module is None:
        return _devices_of_cuda()
    runtime = cupy.module.cuda.runtime
    kind = "rocm" if runtime.is_hip else "cuda"
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
    except Exception as error:  # CuPy's errors have no common base
        # Without a driver CuPy says that it is too old (cudaErrorInsufficientDriver).
        without = kind == "cuda" and _devices_of_cuda().problem == NO_DRIVER
        return Devices(problem=NO_DRIVER if without else one_line(error), kind=kind)
    return Devices(tuple(found), "" if found else NO_DEVICE, kind)


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
    except LibraryNotFoundError:
        return Devices(problem=NO_DRIVER)
    except CudaError as error:
        return Devices(problem=one_line(error))
    return Devices(found, "" if found else NO_DEVICE)


def cudnn_problem() -> str:
    """Return why CuPy with cuDNN cannot be used here; empty if it can."""
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


def install_cudnn(major: int | None) -> str:
    """Return how to install cuDNN for a major version of CUDA; for all versions if it is None."""
    return wheels.fitting(cudnn.INSTALL, major)


def install_nvrtc(major: int | None) -> str:
    """Return how to install NVRTC, as `install_cudnn`."""
    return wheels.fitting(nvrtc.INSTALL, major)


def install_cupy(major: int | None) -> str:
    """Return how to install CuPy, as `install_cudnn`."""
    return wheels.fitting(INSTALL_CUPY, major)


def cuda_major() -> int | None:
    """Return the major version of CUDA that wheels must be for; None if nothing tells it.

    It is that of the installed wheels, or else the newest one that the driver runs.
    """
    newest = wheels.cuda_major() or _cuda_of_driver()
    return None if newest is None else min(newest, wheels.CUDA_MAJORS[0])


def _cuda_of_driver() -> int | None:
    try:
        return load_driver().version[0]
    except (LibraryNotFoundError, CudaError):
        return None


def kept_on_disk() -> str:
    """Return the folder that dnnffi keeps between processes, or why there is none."""
    folder = cache_folder()
    why = f"{ENVIRONMENT_VARIABLE}=off, or no home directory"
    return f"not kept ({why})" if folder is None else str(folder)


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
    """Return the message of an error on one line, or its type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__
