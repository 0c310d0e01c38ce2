"""What the figures of a run belong to: the device, the versions and the source."""

from __future__ import annotations

import datetime
import hashlib
import importlib
import platform
import subprocess
from pathlib import Path
from typing import Any

from dnnffi.cli import probe

PACKAGE = Path(__file__).resolve().parents[1]


def source_hash(package: Path = PACKAGE) -> str:
    """SHA-256 over the names and contents of the package's sources, in order; kernels are some."""
    digest = hashlib.sha256()
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.cuh")]):
        # Named as in the repository, so that an installed package of the same source has its hash.
        digest.update(b"src/dnnffi/" + path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def machine(place: str, peers: tuple[str, ...]) -> dict[str, Any]:
    """Device and versions, of the packages in use alone, and the hash of the source."""
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": "CPU",
        "python": platform.python_version(),
        "numpy": probe.package("numpy").version,
        "dnnffi": probe.package("dnnffi").version,
        "src_sha256": source_hash(),
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
