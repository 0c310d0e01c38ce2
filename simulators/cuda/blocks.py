"""CUDA kernels without a cooperative launch, compiled for the host: one block after the other."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from simulators.errors import UnavailableError

EMULATED = Path(__file__).resolve().parent / "emulated"

STACKS = (ctypes.c_char * (1024 * 2**16))()
"""The stacks of all threads of a block, shared by the kernels, each a library without stacks."""


@cache
def kernel(text: str, name: str, headers: tuple[tuple[str, str], ...]) -> ctypes.CDLL:
    """Return a CUDA kernel as C++: ``run_block`` runs the threads of a block in turns."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(compiler[0]) is None:
        raise UnavailableError("compiler", f"there is no C++ compiler {compiler[0]}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for header, content in headers:
            (folder / header).write_text(content, "utf-8")
        library = folder / "kernels.so"
        launch = f"using namespace dnnffi; call({name}, arguments);"
        source = (
            f'#include "{EMULATED / "blocks.h"}"\nnamespace dnnffi {{}}\n{text}\n'
            f"static void launch(const void *arguments) {{ {launch} }}\n"
        )
        # Hidden: shared memory of a template would be one for all libraries of the process.
        flags = ["-O1", "-std=c++17", "-w", "-shared", "-fPIC", "-fvisibility=hidden"]
        command = [*compiler, *flags, f"-I{folder}", "-xc++", "-", "-o", str(library)]
        subprocess.run(command, input=source, text=True, check=True)
        return ctypes.CDLL(str(library))
