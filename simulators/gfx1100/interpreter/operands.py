"""Parse operands and modifiers in the syntax of LLVM's disassembler."""

from __future__ import annotations

import re
import struct

from .records import EXEC, M0, NULL, VCC, Kind, Source, UnknownInstructionError

NAMED = {
    "vcc": VCC,
    "vcc_lo": VCC,
    "vcc_hi": VCC + 1,
    "m0": M0,
    "null": NULL,
    "exec": EXEC,
    "exec_lo": EXEC,
    "exec_hi": EXEC + 1,
    **{f"ttmp{i}": 108 + i for i in range(16)},
}

_REGISTER = re.compile(r"([sv])(?:\[(\d+)(?::\d+)?\]|(\d+))")
_INTEGER = re.compile(r"-?(?:0x[0-9a-f]+|\d+)")
_FLOAT = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")
_PACKED_FORMATS = {"f16": "<e", "u16": "<e", "i16": "<e", "packed": "<e", "f64": "<d"}
ONE_OVER_TWO_PI = "0.15915494"  # its bits are not those of the decimal number


def split(text: str) -> list[str]:
    """Split at the commas that are not within brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def source(text: str, kind: str = "u32") -> Source:
    """Parse an operand that is read as ``kind``, one of the types of ``vector.py``."""
    result = Source()
    text = text.strip()
    if text.startswith("-") and not re.match(r"-[\d.]", text):
        result.negate, text = 1, text[1:]
    if found := re.fullmatch(r"\|(.*)\|", text):
        result.absolute, text = 1, found[1]
    if text.endswith((".h", ".l")):
        result.half, text = text.endswith(".h"), text[:-2]
    if found := _REGISTER.fullmatch(text):
        result.kind = Kind.SCALAR if found[1] == "s" else Kind.VECTOR
        result.reg = int(found[2] or found[3])
    elif text in NAMED:
        result.kind, result.reg = Kind.SCALAR, NAMED[text]
    elif text != "off":
        result.kind, result.value = Kind.CONSTANT, constant(text, kind)
    return result


def register(text: str) -> int:
    """Return the number of a destination register."""
    result = source(text)
    if result.kind not in (Kind.SCALAR, Kind.VECTOR):
        raise UnknownInstructionError(f"destination {text}")
    return result.reg


def constant(text: str, kind: str) -> int:
    """Return the bits of a constant that is read as ``kind``."""
    if _INTEGER.fullmatch(text):
        value = int(text, 0)
        if kind == "f64" and text.startswith("0x"):
            return (value & 0xFFFFFFFF) << 32  # a literal is the upper half of a double
        if kind in ("u64", "i64") and text.startswith("0x"):
            return value & 0xFFFFFFFF
        return value & (2**64 - 1)
    if not _FLOAT.fullmatch(text):
        raise UnknownInstructionError(f"operand {text}")
    if text == ONE_OVER_TWO_PI and kind not in _PACKED_FORMATS:
        return 0x3E22F983
    packed = struct.pack(_PACKED_FORMATS.get(kind, "<f"), float(text))
    return int.from_bytes(packed, "little")


class Modifiers:
    """Modifiers that follow the operands, like ``offset:16 glc``.

    The decoder takes those that it implements; `done` refuses the rest.
    """

    _TIMING = frozenset(("glc", "slc", "dlc", "gds"))

    def __init__(self, words: list[str]) -> None:
        self._values = dict(word.partition(":")[::2] for word in words)

    def flag(self, name: str) -> bool:
        return self._values.pop(name, None) is not None

    def number(self, name: str) -> int:
        return int(self._values.pop(name, "0"), 0)

    def bits(self, name: str, default: int) -> list[int]:
        """Take a modifier with one bit for each operand, like ``op_sel_hi:[1,0,1]``."""
        found = re.findall(r"[01]", self._values.pop(name, ""))
        return [int(bit) for bit in found] if found else [default] * 3

    def done(self, *ignored: str) -> None:
        """Refuse modifiers that were not taken, except those of timing and ``ignored``."""
        left = set(self._values) - self._TIMING - set(ignored)
        if left:
            raise UnknownInstructionError(f"modifier {' '.join(sorted(left))}")


def operands_and_modifiers(text: str) -> tuple[list[str], Modifiers]:
    """Split a text such as ``v0, v1 offset:4``: two operands and one modifier."""
    operands = split(text)
    words: list[str] = []
    if operands:
        operands[-1], *words = operands[-1].split()
    return operands, Modifiers(words)
