"""cuda-pathfinder, run as on Windows, finds the DLLs of NVIDIA's wheels for dnnffi.

The functions of Windows that it calls are stand-ins, and the DLLs are files with the header of one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dnnffi

FIND = """
import ctypes, os, site, sys, sysconfig
from types import SimpleNamespace

class Function:
    def __init__(self, call):
        self._call = call
    def __call__(self, *arguments):
        return self._call(*arguments)

kernel32 = SimpleNamespace(
    GetModuleHandleW=Function(lambda name: 0),
    LoadLibraryExW=Function(lambda path, file, flags: int(os.path.isabs(path))),
    GetModuleFileNameW=Function(lambda handle, buffer, size: 0),
    GetLastError=Function(lambda: 126),
)
ctypes.windll = SimpleNamespace(kernel32=kernel32)
os.add_dll_directory = lambda path: None
site.getsitepackages = lambda: [sys.argv[1]]
site.getusersitepackages = lambda: sys.argv[1]
sysconfig.get_platform = lambda: "win-amd64"
sys.platform = "win32"

from dnnffi.runtime import loader

for name in ("cudnn", "cublasLt", "nvrtc"):
    for path in loader.pathfinder(name).candidates():
        print(os.path.relpath(path, sys.argv[1]))
"""
CUDA_12 = (
    "nvidia/cudnn/bin/cudnn64_9.dll",
    "nvidia/cublas/bin/cublasLt64_12.dll",
    "nvidia/cuda_nvrtc/bin/nvrtc64_120_0.dll",
)
CUDA_13 = (
    "nvidia/cudnn/bin/cudnn64_9.dll",
    "nvidia/cu13/bin/x86_64/cublasLt64_13.dll",
    "nvidia/cu13/bin/x86_64/nvrtc64_130_0.dll",
)


def write_dll(path):
    """Write the header of a DLL for x64: the offset of the PE header is at 0x3C."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = b"MZ".ljust(0x3C, b"\0") + (0x40).to_bytes(4, "little")
    path.write_bytes(header + b"PE\0\0" + (0x8664).to_bytes(2, "little"))


@pytest.mark.parametrize("dlls", [CUDA_12, CUDA_13], ids=["12", "13"])
def test_the_dlls_of_a_cuda_are_found_by_their_names(dlls, tmp_path):
    for dll in dlls:
        write_dll(tmp_path / dll)
    done = subprocess.run(
        [sys.executable, "-c", FIND, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(Path(dnnffi.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == list(dlls)


NAMES = """
import sys
sys.path.insert(0, sys.argv[1])
import simulated_platform
simulated_platform.simulate("win32")
from dnnffi.backends.cublas import library as cublas
from dnnffi.backends.cudnn import library as cudnn
from dnnffi.runtime.cuda import driver
from dnnffi.runtime.nvrtc import compiler
for places in (cudnn.PLACES, cublas.PLACES, driver._PLACES, compiler.PLACES):
    print(*places[-1].candidates())
"""


def test_the_loader_of_windows_is_asked_for_dlls():
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", NAMES, str(folder)],
        env=os.environ | {"PYTHONPATH": str(Path(dnnffi.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "cudnn64_9.dll cudnn64_8.dll",
        "cublasLt64_13.dll cublasLt64_12.dll",
        "nvcuda.dll",
        "nvrtc64_130_0.dll nvrtc64_120_0.dll",
    ]
