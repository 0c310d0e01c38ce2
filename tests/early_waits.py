"""Find recurrent kernels that wait for a word of an exchange before other loads are issued.

    python tests/early_waits.py

A block asks for words that other blocks send, loads its inputs meanwhile, and waits for the words
last. Where a later instruction needs elements of a word in neighbouring registers, the compiler may
copy an element right after the load of the word. Instructions are issued in order, so the inputs
are then loaded only when the word has arrived. The compiler's log does not show that, so this reads
the machine code of the kernels that the tuner measures for `NETWORKS` in `KINDS`, compiled for one
architecture. It fails for every such copy but those in `KNOWN`.

A warp waits for loads by six counters. Which counter an instruction sets, and for which ones it
waits, is in the upper half of its 128 bits on Volta and newer, as found by Jia et al., "Dissecting
the NVIDIA Volta GPU Architecture via Microbenchmarking" (arXiv:1804.06826), section 2.1.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from os import cpu_count
from pathlib import Path
from typing import NamedTuple

from chips import H200

from dnnffi.backends.own.recurrent import kernels, search
from dnnffi.backends.own.recurrent.config import KernelConfig, Kind, Layer
from dnnffi.runtime.kernels import OPTIONS
from dnnffi.runtime.nvrtc.compiler import Compiler, Target, load_compiler

ARCHITECTURE = "sm_90"

NETWORKS = (
    ("gru", "float32", 512, 64),
    ("rnn_relu", "float32", 1059, 39),
    ("lstm", "float16", 256, 64),
    ("lstm", "float32", 512, 64),
    ("lstm", "float16", 1024, 64),
    ("gru", "float16", 256, 32),
    ("lstm", "bfloat16", 512, 16),
    ("rnn_tanh", "float32", 256, 16),
    ("gru", "float32", 1024, 128),
)
"""Modes, dtypes, hidden sizes and numbers of rows."""

KINDS = (
    *("", "ragged", "ragged packed", "training", "training ragged", "resets"),
    *("training backward", "training ragged backward", "training ragged packed backward"),
)
"""Fields of a `Kind` that are true."""

KNOWN = {
    "gru float32 512 64 training backward 2": "found when backward passes were added to this check",
    "gru float32 512 64 training ragged backward 2": "the same kernel, of ragged rows",
    "gru float32 512 64 training ragged packed backward 2": "the same kernel, of packed rows",
}
"""Kernels with early copies that are not mended yet, with a remark."""

NO_COUNTER = 7

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.+?;)\s*/\* 0x[0-9a-f]{16} \*/$")
_UPPER_HALF = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/$")
_WORD = re.compile(r"\bLDG\.E\.128\.STRONG\.GPU R(\d+),")
_COPY = re.compile(r"\b(?:MOV R\d+, |IMAD\.MOV\.U32 R\d+, RZ, RZ, )R(\d+)\b")


class Instruction(NamedTuple):
    """An instruction, the counter that it sets or `NO_COUNTER`, and those that it waits for."""

    text: str
    counter: int
    waits: frozenset[int]


def instructions(listing: str) -> Iterator[Instruction]:
    """Yield the instructions of the output of ``nvdisasm -hex``."""
    text = ""
    for line in listing.splitlines():
        if found := _INSTRUCTION.match(line):
            text = found[1]
        elif text and (found := _UPPER_HALF.match(line)):
            control = int(found[1], 16) >> 41
            waits = frozenset(one for one in range(6) if control >> 11 + one & 1)
            yield Instruction(text, control >> 5 & 7, waits)
            text = ""


def early_copies(code: Sequence[Instruction]) -> list[str]:
    """Return the copies that are the first to wait for a word, of one of its elements.

    Raises ``ValueError`` if no load of a word is found: it is printed in another way then.
    """
    loads = [
        (place, int(word[1]), load.counter)
        for place, load in enumerate(code)
        if (word := _WORD.search(load.text)) and load.counter != NO_COUNTER
    ]
    if not loads:
        raise ValueError(f"none of {len(code)} instructions is the load of a word")
    copies = []
    for place, register, counter in loads:
        first = next((one.text for one in code[place + 1 :] if counter in one.waits), "")
        copy = _COPY.search(first)
        if copy is not None and 0 <= int(copy[1]) - register < 4:
            copies.append(first)
    return copies


def configurations() -> dict[str, KernelConfig]:
    """Return the kernels of `KINDS` by name: those whose blocks gather words through L2.

    Kernels with a ring of streamed weights are left out: some have such copies, and were faster.
    """
    found = {}
    for network, of_kind in product(NETWORKS, KINDS):
        mode, dtype, hidden, batch = network
        kind = Kind(mode, hidden, dtype, **dict.fromkeys(of_kind.split(), True))
        for number, one in enumerate(search.select_configs(kind, Layer(batch, 1, H200)), 1):
            if not one.cluster and not one.scatter and not one.stream_ring:
                words = mode, dtype, hidden, batch, *of_kind.split(), number
                found[" ".join(map(str, words))] = one
    return found


def found_in(compiler: Compiler, nvdisasm: str, config: KernelConfig) -> list[str]:
    """Compile a kernel; return its `early_copies`."""
    source = kernels.layer_kernel(config)
    target, name = Target(ARCHITECTURE, False), f"{source.name}.cu"
    machine_code = compiler.compile(source.text, name, target, OPTIONS, source.headers)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(machine_code)
        command = [nvdisasm, "-c", "-hex", file.name]
        listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return early_copies(list(instructions(listing)))


def main() -> int:
    nvdisasm = shutil.which("nvdisasm")
    if nvdisasm is None:
        print("nvdisasm is missing. Install: pip install nvidia-cuda-nvdisasm, and add it to PATH")
        return 1
    chosen = configurations()
    with ThreadPoolExecutor(cpu_count()) as pool:
        found = pool.map(partial(found_in, load_compiler(), nvdisasm), chosen.values())
        copies = {name: some for name, some in zip(chosen, found, strict=True) if some}
    for name, some in copies.items():
        remark = f" ({KNOWN[name]})" if name in KNOWN else ""
        print(f"{name}: waits for a word too early: {some[0]}{remark}")
    print(f"{len(copies)} of {len(chosen)} kernels wait for a word before other loads are issued")
    mended = KNOWN.keys() - copies.keys()
    if mended:
        print(f"remove from KNOWN: {', '.join(sorted(mended))}")
    return 1 if mended or copies.keys() - KNOWN.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
