"""C code with which own kernels read and write each dtype, without any header."""

from __future__ import annotations

from typing import NamedTuple


class _Type(NamedTuple):
    """A dtype in memory, what it is computed in, and C that converts one into the other."""

    stored: str
    real: str
    read: str = "return stored;"
    rounded: str = "return value;"


def _by(instruction: str, result: str, portable: str) -> str:
    """C of an instruction that devices have from compute capability 8.0 on, and for all others."""
    return f"""
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    {result} result;
    asm("{instruction} %0, %1;" : {_ASM[result]});
    return result;
#else{portable}
#endif
"""


_ASM = {"float": '"=f"(result) : "h"(stored)', "unsigned short": '"=h"(result) : "f"(value)'}
"""What is written and read, by the type of the result."""

_TYPES = {
    "float32": _Type("float", "float"),
    "float64": _Type("double", "double"),
    "bfloat16": _Type(
        "unsigned short",
        "float",
        """
    union { unsigned bits; float value; } wide;
    wide.bits = (unsigned)stored << 16;
    return wide.value;""",
        _by(
            "cvt.rn.bf16.f32",
            "unsigned short",
            """
    union { float value; unsigned bits; } wide;
    wide.value = value;
    if (value != value) return 0x7fc0;
    return (wide.bits + 0x7fff + ((wide.bits >> 16) & 1)) >> 16;""",
        ),
    ),
    "float16": _Type(
        "unsigned short",
        "float",
        # The exponents lie 112 apart: by the product a subnormal number becomes a normal one.
        _by(
            "cvt.f32.f16",
            "float",
            """
    union { unsigned bits; float value; } wide;
    wide.bits = (stored & 0x7fffu) << 13;
    wide.value *= 5192296858534827628530496329220096.0f;
    if ((stored & 0x7c00) == 0x7c00) wide.bits |= 0x7f800000;
    wide.bits |= (stored & 0x8000u) << 16;
    return wide.value;""",
        ),
        # From 65520 on it is infinity. The last digit of one half is that of the subnormal numbers,
        # so that a sum with it is rounded to them.
        _by(
            "cvt.rn.f16.f32",
            "unsigned short",
            """
    union { float value; unsigned bits; } wide;
    wide.value = value;
    const unsigned sign = (wide.bits >> 16) & 0x8000;
    wide.bits &= 0x7fffffff;
    if (wide.bits > 0x7f800000) return sign | 0x7e00;
    if (wide.bits >= 0x477ff000) return sign | 0x7c00;
    if (wide.bits >= 0x38800000)
        return sign | ((wide.bits - 0x38000000 + 0xfff + ((wide.bits >> 13) & 1)) >> 13);
    wide.value += 0.5f;
    return sign | (wide.bits - 0x3f000000);""",
        ),
    ),
}

_SOURCE = """
typedef {stored} STORED;
typedef {real} REAL;

static __device__ REAL real(STORED stored) {{ {read} }}
static __device__ STORED rounded(REAL value) {{ {rounded} }}
"""


def conversions(dtype: str) -> str:
    """C of the types STORED and REAL of a dtype, ``real(STORED)`` and ``rounded(REAL)``."""
    return _SOURCE.format(**_TYPES[dtype]._asdict())
