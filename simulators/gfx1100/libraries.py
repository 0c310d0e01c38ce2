"""Compile the stand-ins for the HIP runtime and rocBLAS, which the real libMIOpen uses.

Run inside the folder of ``root.py``. The libraries go to ``/usr/local/lib``, under the names that
libMIOpen asks for, so that the loader finds them before any other.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLACE = Path("/usr/local/lib")
STAMP = PLACE / "gfx1100-built-from"
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden")
HIP = ("-D__HIP_PLATFORM_AMD__=1",)


def build() -> None:
    """Compile both libraries if their sources changed."""
    sources = sorted(path for folder in ("device", "blas") for path in (HERE / folder).iterdir())
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in [Path(__file__), *sources]))
    if STAMP.exists() and STAMP.read_text() == digest.hexdigest():
        return
    device, blas = (PLACE / name for name in needed("libamdhip64", "librocblas"))
    exports = f"-Wl,--version-script={HERE / 'device' / 'exports.map'}"
    _compile("device", device, *HIP, exports, "-lpthread")
    _compile("blas", blas, f"-I{HERE / 'device'}", str(device), "-lm")
    subprocess.run(["ldconfig"], check=True)
    STAMP.write_text(digest.hexdigest())


def needed(*names: str) -> list[str]:
    """Return the versioned file names of libraries that libMIOpen depends on."""
    library = next(Path("/usr/lib").glob("*/libMIOpen.so.1"))
    shown = subprocess.run(
        ["objdump", "-p", str(library)], check=True, capture_output=True, text=True
    ).stdout
    asked = re.findall(r"NEEDED\s+(\S+)", shown)
    return [next(file for file in asked if file.startswith(f"{name}.so")) for name in names]


def _compile(folder: str, library: Path, *options: str) -> None:
    sources = sorted(map(str, (HERE / folder).glob("*.c")))
    target = ["-shared", "-o", str(library), f"-Wl,-soname,{library.name}"]
    subprocess.run(["gcc", *FLAGS, *sources, *target, *options], check=True)


if __name__ == "__main__":
    build()
