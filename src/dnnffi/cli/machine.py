"""The conditions of a measurement or a test run: device, versions and source."""

from __future__ import annotations

import datetime
import importlib
import platform
import subprocess
from typing import Any

from dnnffi.cli import probe
from dnnffi.cli.sources import part_hashes, source_hash


def machine(place: str, peers: tuple[str, ...]) -> dict[str, Any]:
    """Return the device, the versions of the packages in use and the hashes of the source."""
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": "CPU",
        "python": platform.python_version(),
        "numpy": probe.package("numpy").version,
        "dnnffi": probe.package("dnnffi").version,
        "src_sha256": source_hash(),
        "source": dict(part_hashes()),
    }
    if place == "gpu":
        import cupy

        runtime = cupy.cuda.runtime
        name = runtime.getDeviceProperties(runtime.getDevice())["name"]
        found |= {
            "device": name.decode(errors="replace"),
            "driver": driver_version(),
            "cuda_driver_api": runtime.driverGetVersion(),
            "cudnn": probe.cudnn_library().version,
            "cupy": cupy.__version__,
        }
    if "torchrl" in peers:
        peers = tuple(dict.fromkeys(("torch", *peers, "triton")))  # what it computes with
    for peer in peers:
        found[peer] = probe.package(peer).version
    if "torch" in peers and place == "gpu":
        torch = importlib.import_module("torch")
        found["torch_cudnn"] = str(torch.backends.cudnn.version())
    return found


def driver_version() -> str:
    """Return the version of NVIDIA's driver, or "unknown"."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, errors="replace", check=True)
        return done.stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"
