"""Compile the C core, once for each state of its sources and of the tables."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from .opcodes import generated_files
from .records import I32, U32, U64, Instruction

SOURCES = Path(__file__).resolve().parent / "core"
CACHE = Path(os.environ.get("GFX1100_CACHE", "/var/cache/gfx1100"))
FLAGS = (
    *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
    *("-fvisibility=hidden", "-fno-strict-aliasing"),
    "-ffp-contract=off",  # a * b + c rounds twice, as the device does
)


class Program(ctypes.Structure):
    """Instructions of a code object; ``struct program`` of ``core/run.c``."""

    _fields_ = (
        ("instructions", ctypes.POINTER(Instruction)),
        ("count", U32),
        ("base", U64),
        ("index", ctypes.POINTER(I32)),
        ("index_count", U32),
    )


class Grid(ctypes.Structure):
    """Size and arguments of a launch; ``struct grid`` of ``core/run.c``."""

    _fields_ = (
        ("global_size", U32 * 3),
        ("local_size", U32 * 3),
        *((name, U32) for name in ("entry", "lds_bytes", "scratch_bytes")),
        *((name, U32) for name in ("user_data_count", "group_ids")),
        ("user_data", ctypes.POINTER(U32)),
    )


@cache
def library() -> ctypes.CDLL:
    """Load the C core, compiling it if necessary."""
    opened = ctypes.CDLL(str(_build()))
    opened.interpreter_error.restype = ctypes.c_char_p
    opened.interpreter_record_size.restype = ctypes.c_size_t
    opened.interpreter_run.argtypes = (
        ctypes.POINTER(Program),
        ctypes.POINTER(Grid),
        ctypes.POINTER(U64),
    )
    assert opened.interpreter_record_size() == ctypes.sizeof(Instruction)
    return opened


def _build() -> Path:
    generated = generated_files()
    sources = sorted(SOURCES.iterdir())
    parts = [path.read_bytes() for path in sources]
    parts += [text.encode() for text in (*generated.values(), *FLAGS)]
    fingerprint = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    made = CACHE / f"interpreter-{fingerprint}.so"
    if made.exists():
        return made
    CACHE.mkdir(parents=True, exist_ok=True)
    # Several test processes may build it: each writes a file of its own and renames it.
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        for name, text in generated.items():
            Path(folder, name).write_text(text)
        files = [str(path) for path in sources if path.suffix == ".c"]
        aside = Path(folder, "core.so")
        command = ["gcc", *FLAGS, f"-I{folder}", f"-I{SOURCES}", *files, "-lm", "-o", str(aside)]
        subprocess.run(command, check=True)
        os.replace(aside, made)
    return made
