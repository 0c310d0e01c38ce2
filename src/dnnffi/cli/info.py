"""``dnnffi info``: what works here, what was found and how, and how to get the rest.

The first line says on what dnnffi runs here. The sections after it are for a search that failed
and for bug reports.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dnnffi.cli.probe import Adapters, Devices, Library, Package

NAME = "info"
HELP = "show what works here, which libraries and devices were found, and what to install"
DESCRIPTION = (
    "Show in the first line what works here and what was not found. The lines after it show the "
    "versions of dnnffi and of the packages that it works with, the libraries and how each was "
    "found, the devices and the Vulkan adapters, and how to get what was not found."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="for each library that was not found, show every place that was searched",
    )


def run(options: argparse.Namespace) -> int:
    """Print the report. The exit code is 0, whatever was found."""
    for line in report(is_verbose=options.verbose):
        print(line)
    return 0


class Addition(NamedTuple):
    """Something that was not found: its name, what dnnffi uses it for, and how to get it."""

    name: str
    purpose: str
    install: str


class Found(NamedTuple):
    """The parts of this machine that decide where dnnffi can run."""

    cupy: Package
    cudnn: Library
    nvrtc: Library
    miopen: Library
    devices: Devices
    adapters: list[Adapters]

    def has_gpu(self, kind: str) -> bool:
        """Return whether a GPU of ``kind`` was found: "cuda" or "rocm"."""
        return bool(self.devices.found) and self.devices.kind == kind


def report(*, is_verbose: bool = False) -> Iterator[str]:
    """Yield the lines of the report; ``is_verbose`` adds the places that were searched."""
    from dnnffi.cli import probe

    # CuPy before cuDNN: a CuPy that loads its own libraries decides which one is found.
    cupy = probe.package("cupy")
    found = Found(
        cupy,
        probe.cudnn_library(),
        probe.nvrtc_library(),
        probe.miopen_library(),
        probe.devices(cupy),
        probe.adapters(),
    )
    additions = list(_additions(found))

    yield _first_line(found, additions)
    yield ""
    yield from _versions(cupy)
    for name, purpose, library, kind in (
        ("cuDNN", _BOTH.format("NVIDIA"), found.cudnn, "cuda"),
        ("NVRTC", "dnnffi's own kernels on NVIDIA GPUs", found.nvrtc, "cuda"),
        ("MIOpen", _BOTH.format("AMD"), found.miopen, "rocm"),
    ):
        yield ""
        # Without a GPU for it, a library that was not found is no problem to be examined.
        shows_places = is_verbose or library.is_named or found.has_gpu(kind)
        yield from _library(name, purpose, library, shows_places=shows_places)
    yield ""
    yield from _devices(found.devices)
    for adapters in found.adapters:
        yield ""
        yield from _adapters(adapters)
    yield ""
    yield f"Tuning results and compiled kernels: {probe.kept_on_disk()}"
    if additions:
        yield ""
        yield "To use more of dnnffi"
        yield from (f"  {one.name}, for {one.purpose}: {one.install}" for one in additions)


_BOTH = "RNNs and convolutions on {} GPUs"


def _first_line(found: Found, additions: Iterable[Addition]) -> str:
    """Return what works here, GPUs first, and what was not found."""
    from dnnffi import wheels

    ready, missing = [], []
    gpus = found.devices.found
    # Without CuPy the GPUs of ROCm are not listed, so that MIOpen's library has to be evidence.
    is_rocm = found.devices.kind == "rocm" or not (gpus or found.miopen.problem)
    name, library = ("MIOpen", found.miopen) if is_rocm else ("cuDNN", found.cudnn)
    if library.problem:
        installs = {one.name: one.install for one in additions}
        missing.append(f"{name} (install: {installs[name]})")
    elif gpus:
        ready.append(f"{name} {library.version} on {gpus[0].name}")
    elif is_rocm:
        ready.append(f"{name} {library.version}")
    if not gpus and not is_rocm:
        missing.append("an NVIDIA or AMD GPU")
    for adapters in found.adapters:
        if adapters.found:
            ready.append(f"{adapters.title} on {adapters.found[0]}")
    ready.append("NumPy reference")
    ready += [f"dnnffi.{name}" for name in ("torch", "jax") if wheels.version(name)]
    line = f"Ready: {', '.join(ready)}."
    return f"{line} Not found: {', '.join(missing)}." if missing else line


def _additions(found: Found) -> Iterator[Addition]:
    """Yield what was not found, with install commands that fit the installed packages."""
    from dnnffi import wheels
    from dnnffi.cli import probe
    from dnnffi.installing import install_extra

    major = probe.cuda_major()
    has_cuda, has_rocm = found.has_gpu("cuda"), found.has_gpu("rocm")
    if found.devices.problem:
        how = "an NVIDIA or AMD GPU and its driver"
        yield Addition("a GPU", "the backends cudnn and miopen", how)
    cupy, cudnn = probe.install_cupy(major), probe.install_cudnn(major)
    if has_cuda and major and found.cupy.problem and found.cudnn.problem:
        cupy = cudnn = install_extra(f"cuda{major}")
    if found.cupy.problem:
        yield Addition("CuPy", "arrays on a GPU (not with an allocator)", cupy)
    if found.cudnn.problem and not has_rocm:
        yield Addition("cuDNN", _BOTH.format("NVIDIA"), cudnn)
    if found.nvrtc.problem and not has_rocm:
        install = probe.install_nvrtc(major)
        yield Addition("NVRTC", "dnnffi's own kernels on NVIDIA GPUs", install)
    if found.miopen.problem and not has_cuda:
        yield Addition("MIOpen", _BOTH.format("AMD"), probe.INSTALL_MIOPEN)
    if has_cuda and major and wheels.version("jax") and not wheels.cuda_of_jax():
        yield Addition(
            "JAX's CUDA plugin", "dnnffi.jax on the GPU", f"pip install 'jax[cuda{major}]'"
        )
    for adapters in found.adapters:
        if adapters.install:
            yield Addition(adapters.title, "RNN inference on any GPU", adapters.install)
    if absent := probe.absent("rich", "matplotlib"):
        yield Addition(", ".join(absent), "demo and bench", probe.INSTALL_DEMO)


def _versions(cupy: Package) -> Iterator[str]:
    from dnnffi.cli import probe

    dnnffi, numpy, cffi = map(probe.package, ("dnnffi", "numpy", "cffi"))
    yield f"dnnffi {dnnffi.version}"
    yield from _table(
        [
            ("Python", f"{platform.python_version()} ({sys.executable})"),
            ("NumPy", numpy.version or numpy.problem),
            ("cffi", cffi.version or cffi.problem),
            ("CuPy", cupy.version or cupy.problem),
            ("PyTorch", probe.torch_text()),
            ("JAX", probe.jax_text()),
        ]
    )


def _library(name: str, purpose: str, library: Library, *, shows_places: bool) -> Iterator[str]:
    if library.problem:
        yield f"{name}: {library.problem}"
        if shows_places:
            yield from (f"  searched {place}" for place in library.searched)
    else:
        yield f"{name} {library.version}, for {purpose}"
        yield from _table([("path", library.path), ("found via", library.found_via)])


def _devices(devices: Devices) -> Iterator[str]:
    from dnnffi.cli import probe

    if devices.problem:
        yield f"GPUs: none ({devices.problem})"
        return
    yield "GPUs"
    yield from _table((str(device.index), str(device)) for device in devices.found)
    if devices.kind == "cuda":
        yield ""
        problem = probe.own_kernels_problem()
        own = f"do not run: {problem}" if problem else "run on the current device"
        yield f"dnnffi's own recurrent kernels {own}"


def _adapters(adapters: Adapters) -> Iterator[str]:
    if adapters.problem:
        yield f"{adapters.title}: {adapters.problem}"
    else:
        yield f"{adapters.title}, for RNN inference on any GPU"
        yield from _table((str(number), name) for number, name in enumerate(adapters.found))


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    rows = list(rows)
    width = max(len(label) for label, _ in rows)
    yield from (f"  {label:<{width}}  {text}" for label, text in rows)
