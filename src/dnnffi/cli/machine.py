"""What the figures of a run belong to: the device and the versions."""

from __future__ import annotations

import datetime
import importlib
import platform
import subprocess
from typing import Any

from dnnffi.cli import probe


def machine(place: str, peers: tuple[str, ...]) -> dict[str, Any]:
    """Device and versions, of the packages in use alone."""
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": "CPU",
        "python": platform.python_version(),
        "numpy": probe.package("numpy").version,
        "dnnffi": probe.package("dnnffi").version,
    }
    if place == "gpu":
        import cupy

        runtime = cupy.cuda.runtime
        found |= {
            "device": runtime.getDeviceProperties(runtime.getDevice())["name"].decode(),
            "driver": driver_version(),
            "cuda_driver_api": runtime.driverGetVersion(),
            "cudnn": probe.cudnn_library().version,
            "cupy": cupy.__version__,
        }
    for peer in peers:
        found[peer] = probe.package(peer).version
    if "torch" in peers and place == "gpu":
        torch = importlib.import_module("torch")
        found["torch_cudnn"] = str(torch.backends.cudnn.version())
    return found


def driver_version() -> str:
    """The version of NVIDIA's driver, or "unknown"."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"
