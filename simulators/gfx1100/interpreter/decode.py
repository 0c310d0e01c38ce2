"""Convert the text of an instruction to its record."""

from __future__ import annotations

import re

from . import memory, scalar, vector
from .opcodes import OPCODES
from .operands import Modifiers, operands_and_modifiers, register, source
from .records import EXEC, NULL, Instruction, Kind, UnknownInstructionError

HAS_OFFSET, HAS_INDEX = 1, 2
"""Flags of buffer instructions."""


def decode(mnemonic: str, rest: str, address: int, size: int, base: int, word: int) -> Instruction:
    """Return the record of an instruction at ``base + address``; ``word`` is its first 32 bits.

    ``target`` of a branch is an address, not yet an index. Raise `UnknownInstructionError` if the
    tables do not have the instruction.
    """
    operands, modifiers = operands_and_modifiers(rest)
    prefix, _, name = mnemonic.partition("_")
    try:
        reader = _READERS[prefix]
    except KeyError:
        raise UnknownInstructionError(mnemonic) from None
    result = Instruction(next=base + address + size)
    reader(result, name, operands, modifiers)
    if prefix == "s" and name in scalar.BRANCHES:
        words = word & 0xFFFF
        result.target = address + 4 + 4 * (words - 0x10000 if words & 0x8000 else words)
    return result


def _opcode(mnemonic: str) -> int:
    try:
        return OPCODES[mnemonic]
    except KeyError:
        raise UnknownInstructionError(mnemonic) from None


# Scalar instructions.

_SCALAR_ALONE = {"endpgm": "endpgm", "barrier": "barrier"}
_PROGRAM_COUNTER = {"getpc_b64": "get_pc", "setpc_b64": "set_pc", "swappc_b64": "swap_pc"}


def _scalar(n: Instruction, name: str, operands: list[str], modifiers: Modifiers) -> None:
    if name in scalar.NOTHING:
        n.op = _opcode("nop")
        return
    if found := re.fullmatch(r"load_b(\d+)", name):
        _scalar_load(n, int(found[1]) // 8, operands, modifiers)
        return
    modifiers.done()
    if name in _SCALAR_ALONE:
        n.op = _opcode(_SCALAR_ALONE[name])
    elif name in scalar.BRANCHES:
        n.op = _opcode(f"s_{name}")
    elif name in _PROGRAM_COUNTER:
        n.op = _opcode(_PROGRAM_COUNTER[name])
        if name != "setpc_b64":
            n.destination = register(operands[0])
        if name != "getpc_b64":
            n.sources[0] = source(operands[-1], "u64")
    else:
        n.op = _opcode(f"s_{name}")
        if name in scalar.WITH_RESULT:
            n.destination = register(operands[0])
            operands = operands[1:]
        for i, operand in enumerate(operands):
            n.sources[i] = source(operand, "u64" if scalar.reads_64(name, i) else "u32")


def _scalar_load(n: Instruction, size: int, operands: list[str], modifiers: Modifiers) -> None:
    n.op = _opcode("scalar_load")
    n.bytes = size
    n.destination = register(operands[0])
    n.sources[0] = source(operands[1])
    n.offset = modifiers.number("offset")
    modifiers.done()
    if len(operands) < 3:
        return
    offset = source(operands[2])
    if offset.kind == Kind.SCALAR and offset.reg != NULL:
        n.sources[1] = offset
    elif offset.kind == Kind.CONSTANT:
        value = offset.value & 0xFFFFFFFF
        n.offset += value - 2**32 if value >= 2**31 else value


# Vector instructions.

_LANES = {
    "readfirstlane_b32": "read_first_lane",
    "readlane_b32": "read_lane",
    "writelane_b32": "write_lane",
}


def _vector(n: Instruction, name: str, operands: list[str], modifiers: Modifiers) -> None:
    name = re.sub(r"_e(32|64)$", "", name).removeprefix("dual_")
    if name == "nop":
        n.op = _opcode("nop")
        return
    if name in _LANES:
        modifiers.done()
        n.op = _opcode(_LANES[name])
        n.destination = register(operands[0])
        for i, operand in enumerate(operands[1:]):
            n.sources[i] = source(operand)
        return
    writes_exec = name.startswith("cmpx_")
    name = name.replace("cmpx_", "cmp_", 1)
    group = vector.group_of(name)
    if group is None:
        raise UnknownInstructionError(f"v_{name}")
    n.op = _opcode(f"v_{name}")
    if writes_exec:
        n.destination = EXEC
    else:
        destination = source(operands[0])
        n.destination, n.high_half = destination.reg, destination.half
        operands = operands[1:]
    if name in vector.CARRY_NAMES:
        n.carry_out = register(operands[0])
        operands = operands[1:]
    if name == "cndmask_b32" and len(operands) == 2:
        operands = [*operands, "vcc_lo"]
    for i, operand in enumerate(operands):
        n.sources[i] = source(operand, group.source(i))
    _vector_modifiers(n, name, group, operands, modifiers)


def _vector_modifiers(
    n: Instruction,
    name: str,
    group: vector.Group,
    operands: list[str],
    modifiers: Modifiers,
) -> None:
    if group.result in ("f16", "f32", "packed"):
        n.clamp = modifiers.flag("clamp")
    if group.sources == ("packed",):
        low, high = modifiers.bits("op_sel", 0), modifiers.bits("op_sel_hi", 1)
        minus_low, minus_high = modifiers.bits("neg_lo", 0), modifiers.bits("neg_hi", 0)
        for i in range(len(operands)):
            bits = low[i], high[i], minus_low[i], minus_high[i]
            n.sources[i].half = sum(bit << at for at, bit in enumerate(bits))
            n.sources[i].negate = 0
    elif group.sources == ("mixed",):
        n.high_half = "mixhi" in name
        is_half, is_high = modifiers.bits("op_sel_hi", 0), modifiers.bits("op_sel", 0)
        for i in range(3):
            n.flags |= is_half[i] << i
            n.sources[i].half = is_half[i] & is_high[i]
    named_halves = n.high_half or re.search(r"\.[lh]\b", " ".join(operands))
    # The .l and .h of the registers say the same as op_sel.
    modifiers.done(*(["op_sel"] if named_halves else []))


# Memory instructions.


def _lds(n: Instruction, name: str, operands: list[str], modifiers: Modifiers) -> None:
    if f"ds_{name}" in memory.EXCHANGES:
        n.op, n.access = _opcode("memory"), memory.EXCHANGES[f"ds_{name}"]
        n.offset = modifiers.number("offset")
        modifiers.done()
        n.destination = register(operands[0])
        n.sources[0], n.sources[2] = source(operands[1]), source(operands[2])
        return
    meaning = _memory(n, "ds", name)
    if meaning.is_pair:
        unit = meaning.bytes * (64 if "stride64" in name else 1)
        n.offset, n.second_offset = (unit * modifiers.number(f"offset{i}") for i in (0, 1))
        modifiers.done()
        if meaning.is_store:
            n.sources[0], n.sources[2], n.sources[3] = map(source, operands)
        else:
            n.destination, n.sources[0] = register(operands[0]), source(operands[1])
        return
    n.offset = modifiers.number("offset")
    modifiers.done()
    _address_and_data(n, meaning, operands)


def _addressed(prefix: str):
    def read(n: Instruction, name: str, operands: list[str], modifiers: Modifiers) -> None:
        meaning = _memory(n, prefix, name)
        n.offset = modifiers.number("offset")
        n.returns_old = meaning.is_atomic and modifiers.flag("glc")
        modifiers.done()
        _address_and_data(n, meaning, operands)

    return read


def _address_and_data(n: Instruction, meaning: memory.Meaning, operands: list[str]) -> None:
    if n.returns_old:
        n.destination = register(operands[0])
        operands = operands[1:]
    if meaning.is_store or meaning.is_atomic:
        n.sources[0], n.sources[2] = source(operands[0]), source(operands[1])
    else:
        _set_destination(n, operands[0])
        n.sources[0] = source(operands[1])
    if operands[2:]:
        n.sources[1] = source(operands[2])


def _buffer(n: Instruction, name: str, operands: list[str], modifiers: Modifiers) -> None:
    if name in ("gl0_inv", "gl1_inv"):
        n.op = _opcode("nop")
        return
    meaning = _memory(n, "buffer", name)
    n.offset = modifiers.number("offset")
    n.flags = HAS_OFFSET * modifiers.flag("offen") | HAS_INDEX * modifiers.flag("idxen")
    n.returns_old = meaning.is_atomic and modifiers.flag("glc")
    modifiers.done()
    if meaning.is_store or meaning.is_atomic:
        n.sources[2] = source(operands[0])
    if not meaning.is_store:
        _set_destination(n, operands[0])
    for i, operand in zip((0, 1, 3), operands[1:], strict=True):
        n.sources[i] = source(operand)


def _memory(n: Instruction, prefix: str, name: str) -> memory.Meaning:
    try:
        meaning = memory.MEANINGS[name]
    except KeyError:
        raise UnknownInstructionError(f"{prefix}_{name}") from None
    n.op = _opcode("memory")
    n.space, n.access, n.bytes = memory.SPACES[prefix], meaning.access, meaning.bytes
    n.high_half = meaning.high_half
    return meaning


def _set_destination(n: Instruction, operand: str) -> None:
    destination = source(operand)
    n.destination = destination.reg
    n.high_half |= destination.half


_READERS = {
    "s": _scalar,
    "v": _vector,
    "ds": _lds,
    "buffer": _buffer,
    **{prefix: _addressed(prefix) for prefix in ("global", "flat", "scratch")},
}
