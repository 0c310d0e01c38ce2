"""Executable code: the records of a code object's instructions, by LLVM's disassembler."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from . import build
from .decode import decode
from .opcodes import OPCODES, UNKNOWN
from .records import I32, U32, U64, Instruction, UnknownInstructionError
from .scalar import BRANCHES

PROCESSOR = "gfx1100"
_LINE = re.compile(r"\t(\S+)\s*(.*?)\s*// ([0-9A-F]+): ([0-9A-F ]+)")
_BRANCH_OPCODES = frozenset(OPCODES[f"s_{name}"] for name in BRANCHES)


class ExecutionError(Exception):
    """A launch that could not be run to its end."""


@cache
def llvm(tool: str) -> str:
    """Return the path of a tool of the newest installed LLVM."""
    found = Path("/usr/lib").glob(f"llvm-*/bin/{tool}")
    return str(max(found, key=lambda path: int(path.parts[-3].removeprefix("llvm-"))))


class Code:
    """The instructions of a code object that lies at ``base`` in memory.

    ``span`` limits them to the addresses of one kernel. An instruction that the
    tables do not have is an error only when it is executed; ``unknown`` has its text by its index.
    """

    def __init__(self, image: bytes, base: int, span: tuple[int, int] | None = None) -> None:
        self.base = base
        self.unknown: dict[int, str] = {}
        self._record_index: dict[int, int] = {}  # by address
        records: list[Instruction] = []
        for line in _disassemble(image, span).splitlines():
            if found := _LINE.match(line):
                self._add(records, *found.groups())
        for record in records:
            if record.op in _BRANCH_OPCODES:
                record.target = self._record_index.get(record.target, -1)
        self._records = (Instruction * len(records))(*records)
        self._index = (I32 * (max(self._record_index, default=0) // 4 + 1))(-1)
        self._index[:] = [self._record_index.get(4 * i, -1) for i in range(len(self._index))]
        self._program = build.Program(
            self._records, len(records), base, self._index, len(self._index)
        )

    def _add(
        self, records: list[Instruction], mnemonic: str, rest: str, at: str, words: str
    ) -> None:
        address, encoding = int(at, 16), words.split()
        self._record_index[address] = len(records)
        halves = [f"{mnemonic} {rest}"]
        if "::" in rest:  # a dual instruction
            first, second = rest.split("::")
            halves = [f"{mnemonic} {first}", second.strip()]
        for i, text in enumerate(halves):
            name, _, operands = text.partition(" ")
            size, word = 4 * len(encoding), int(encoding[0], 16)
            try:
                record = decode(name, operands, address, size, self.base, word)
            except (UnknownInstructionError, IndexError, ValueError) as error:
                record = Instruction(op=UNKNOWN)
                self.unknown[len(records)] = f"{text.strip()} ({error})"
            record.dual = len(halves) == 2 and i == 0
            records.append(record)

    def __len__(self) -> int:
        return len(self._records)

    def run(
        self,
        entry: int,
        global_size: Sequence[int],
        local_size: Sequence[int],
        *,
        lds_bytes: int = 0,
        scratch_bytes: int = 0,
        user_data: Sequence[int] = (),
        group_ids: int = 0,
    ) -> int:
        """Run a kernel whose first instruction is at ``base + entry``.

        ``user_data`` are the first scalar registers; ``group_ids`` is a bit mask of the group ids
        that follow them. Return the number of instructions that all waves executed. Raise
        `ExecutionError` if the launch fails.
        """
        grid = build.Grid(
            (U32 * 3)(*global_size),
            (U32 * 3)(*local_size),
            self._record_index[entry],
            lds_bytes,
            scratch_bytes,
            len(user_data),
            group_ids,
            (U32 * max(len(user_data), 1))(*user_data),
        )
        count = U64(0)
        library = build.library()
        if library.interpreter_run(self._program, grid, ctypes.byref(count)):
            raise ExecutionError(self._explained(library.interpreter_error().decode()))
        return count.value

    def _explained(self, error: str) -> str:
        if found := re.fullmatch(r"unknown instruction (\d+)", error):
            return f"unknown instruction {self.unknown[int(found[1])]}"
        return error


def _disassemble(image: bytes, span: tuple[int, int] | None) -> str:
    limits = []
    if span is not None:
        limits = [f"--start-address={span[0]}", f"--stop-address={span[1]}"]
    with tempfile.NamedTemporaryFile(suffix=".co") as file:
        file.write(image)
        file.flush()
        command = [llvm("llvm-objdump"), "-d", *limits, f"--mcpu={PROCESSOR}", file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def assemble(text: str) -> bytes:
    """Assemble a text into an object file whose first instruction is at address 0."""
    command = [llvm("llvm-mc"), "-triple=amdgcn-amd-amdhsa", f"-mcpu={PROCESSOR}", "-filetype=obj"]
    done = subprocess.run(command, input=text.encode(), capture_output=True)
    if done.returncode:
        raise ValueError(done.stderr.decode())
    return done.stdout
