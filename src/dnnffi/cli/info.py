"""``dnnffi info``: what was found and how, and what is missing with the install command."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterable, Iterator

NAME = "info"
HELP = "show which libraries and devices are found, and what is missing"
DESCRIPTION = (
    "Show the versions of dnnffi and of the packages it uses, the libraries cuDNN and MIOpen and "
    "how each was found, the devices, the adapters of Vulkan, and what is missing with the "
    "command that installs it. The reference needs NumPy alone."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(options: argparse.Namespace) -> int:
    """Print the report. Missing parts are no failure: the exit code is 0."""
    for line in report():
        print(line)
    return 0


def report() -> Iterator[str]:
    """The lines of the report."""
    from dnnffi.cli import probe
    from dnnffi.device.cupy import INSTALL_CUPY

    dnnffi, numpy, cffi = probe.package("dnnffi"), probe.package("numpy"), probe.package("cffi")
    # CuPy before cuDNN: a CuPy that brings its libraries into the process decides which is found.
    cupy = probe.package("cupy")
    both = "RNNs and convolutions"
    libraries = [
        ("cuDNN", f"{both} on NVIDIA GPUs", probe.cudnn_library(), probe.INSTALL_CUDNN),
        ("NVRTC", "own kernels on NVIDIA GPUs", probe.nvrtc_library(), probe.INSTALL_NVRTC),
        ("MIOpen", f"{both} on AMD GPUs", probe.miopen_library(), probe.INSTALL_MIOPEN),
    ]
    devices = probe.devices(cupy)
    missing = []

    yield f"dnnffi {dnnffi.version}"
    yield from _table(
        [
            ("Python", f"{platform.python_version()} ({sys.executable})"),
            ("NumPy", f"{numpy.version or numpy.problem}, for the reference"),
            ("cffi", cffi.version or cffi.problem),
            ("CuPy", cupy.version or cupy.problem),
        ]
    )
    if cupy.problem:
        missing.append(("CuPy, for arrays on a GPU (not with an allocator)", INSTALL_CUPY))

    for name, purpose, library, install in libraries:
        yield ""
        if library.problem:
            yield f"{name}: {library.problem}"
            yield from (f"  searched {place}" for place in library.searched)
            missing.append((f"{name}, for {purpose}", install))
        else:
            yield f"{name} {library.version}, for {purpose}"
            yield from _table([("path", library.path), ("found via", library.found_via)])

    yield ""
    if devices.problem:
        yield f"Devices: none ({devices.problem})"
        missing.append(
            ("a GPU, for the backends cudnn and miopen", "an NVIDIA or AMD GPU and its driver")
        )
    else:
        yield "Devices"
        yield from _table(
            (
                str(device.index),
                f"{device.name}, compute capability {device.capability}, "
                f"{device.memory / 2**30:.1f} GiB",
            )
            for device in devices.found
        )
        yield ""
        own = probe.own_kernels_problem() or "on the current device"
        yield f"Recurrent kernels of our own: {own}"

    for adapters in probe.adapters():
        yield ""
        if adapters.problem:
            yield f"{adapters.title}: {adapters.problem}"
            if adapters.install:
                what = f"{adapters.title}, for RNN inference on any GPU"
                missing.append((what, adapters.install))
        else:
            yield f"{adapters.title}, for RNN inference on any GPU"
            yield from _table((str(number), name) for number, name in enumerate(adapters.found))

    yield ""
    yield f"Tuning results and compiled kernels: {probe.kept_on_disk()}"

    if absent := probe.absent("rich", "matplotlib"):
        missing.append((f"{', '.join(absent)}, for demo and bench", probe.INSTALL_DEMO))
    if missing:
        yield ""
        yield "Missing"
        yield from (f"  {what}: {how}" for what, how in missing)


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    rows = list(rows)
    width = max(len(label) for label, _ in rows)
    yield from (f"  {label:<{width}}  {text}" for label, text in rows)
