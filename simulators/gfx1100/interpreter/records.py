"""Records of instructions for the C core, the same structures as in ``core/wave.h``."""

from __future__ import annotations

import ctypes
from enum import IntEnum

U8, U16, U32, U64, I32 = (
    ctypes.c_uint8,
    ctypes.c_uint16,
    ctypes.c_uint32,
    ctypes.c_uint64,
    ctypes.c_int32,
)

VCC, M0, NULL, EXEC = 106, 125, 124, 126
"""Numbers of named scalar registers."""


class Kind(IntEnum):
    """Location of a source operand."""

    ABSENT = 0
    SCALAR = 1
    VECTOR = 2
    CONSTANT = 3


class Space(IntEnum):
    """Address space of a memory instruction; also in the generated ``opcodes.h``."""

    GLOBAL = 0
    LDS = 1
    SCRATCH = 2
    BUFFER = 3


class Access(IntEnum):
    """Operation of a memory instruction; also in the generated ``opcodes.h``."""

    LOAD = 0
    LOAD_SIGNED = 1
    LOAD_HALF = 2  # into half of a register; the other half stays
    LOAD_HALF_SIGNED = 3
    STORE = 4
    STORE_HIGH_HALF = 5
    ATOMIC_ADD_U32 = 6
    ATOMIC_ADD_F32 = 7
    ATOMIC_COMPARE_SWAP = 8
    LOAD_PAIR = 9
    STORE_PAIR = 10
    PULL = 11  # from another lane
    PUSH = 12  # to another lane


class Source(ctypes.Structure):
    """A source operand."""

    _fields_ = (
        *((name, U8) for name in ("kind", "negate", "absolute", "half")),
        ("reg", U32),
        ("value", U64),
    )


class Instruction(ctypes.Structure):
    """An instruction, or half of a dual one."""

    _fields_ = (
        ("op", U16),
        *((name, U8) for name in ("high_half", "clamp", "dual", "flags")),
        *((name, U8) for name in ("space", "access", "bytes", "returns_old")),
        *((name, U32) for name in ("destination", "carry_out")),
        *((name, I32) for name in ("target", "offset", "second_offset")),
        ("next", U64),
        ("sources", Source * 4),
    )


class UnknownInstructionError(Exception):
    """Raised if the tables do not have the instruction, an operand or a modifier."""
