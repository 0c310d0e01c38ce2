"""The meanings of the vector instructions, as C expressions for one lane.

A group has the types of the sources and of the result. ``a``, ``b`` and ``c`` are the sources,
``d`` is the destination as it was, of the result's type, and ``lane`` is the number of the lane.
Float types take the absolute value and the sign of their operands, and are rounded to nearest.
"""

from __future__ import annotations

import re
from typing import NamedTuple

C_TYPES = {
    "u16": "uint16_t",
    "i16": "int16_t",
    "u32": "uint32_t",
    "i32": "int32_t",
    "u64": "uint64_t",
    "i64": "int64_t",
    "f16": "float",
    "f32": "float",
    "f64": "double",
    "packed": "float",
    "mixed": "float",
}


class Group(NamedTuple):
    """Instructions with the same types; the last of ``sources`` holds for all further sources."""

    result: str
    sources: tuple[str, ...]
    meanings: dict[str, str]

    def source(self, i: int) -> str:
        return self.sources[min(i, len(self.sources) - 1)]


_FLOAT = {
    "add": "a + b",
    "sub": "a - b",
    "subrev": "b - a",
    "mul": "a * b",
    "max": "fmax(a, b)",
    "min": "fmin(a, b)",
    "rcp": "1 / a",
    "sqrt": "sqrt(a)",
    "rsq": "1 / sqrt(a)",
    "rndne": "rint(a)",
    "trunc": "trunc(a)",
    "floor": "floor(a)",
    "ceil": "ceil(a)",
    "fract": "a - floor(a)",
    "fma": "fma(a, b, c)",
    "fmac": "fma(a, b, d)",
    "div_fixup": "fixed_quotient(a, b, c)",
}


def _floats(suffix: str, names: str = " ".join(_FLOAT), **more: str) -> dict[str, str]:
    chosen = {name: _FLOAT[name] for name in names.split()}
    if suffix == "f32":  # C's functions of float
        functions = ("fmax", "fmin", "sqrt", "rint", "trunc", "floor", "ceil", "fma")
        for name, meaning in chosen.items():
            for function in functions:
                meaning = meaning.replace(f"{function}(", f"{function}f(")
            chosen[name] = meaning
    return {f"{name}_{suffix}": meaning for name, meaning in {**chosen, **more}.items()}


GROUPS = [
    Group(
        "f32",
        ("f32",),
        {
            **_floats("f32", exp="exp2f(a)", log="log2f(a)"),
            "fmaak_f32": "fmaf(a, b, c)",
            "fmamk_f32": "fmaf(a, b, c)",
            "rcp_iflag_f32": "1 / a",
            "med3_f32": "fmaxf(fminf(a, b), fminf(fmaxf(a, b), c))",
            "max3_f32": "fmaxf(fmaxf(a, b), c)",
            "min3_f32": "fminf(fminf(a, b), c)",
            # v_div_scale does not scale, so neither does this.
            "div_fmas_f32": "fmaf(a, b, c)",
            "sin_f32": "sinf(a * 6.283185307179586f)",
            "cos_f32": "cosf(a * 6.283185307179586f)",
        },
    ),
    Group("f32", ("f32", "i32"), {"ldexp_f32": "ldexpf(a, b)"}),
    # In double, which rounds once: the result of two halves is not always that of two floats.
    Group(
        "f16",
        ("f16",),
        {
            **_floats("f16", exp="exp2(a)", log="log2(a)"),
            "rcp_f16": "1.0 / a",
        },
    ),
    Group("f16", ("f16", "i16"), {"ldexp_f16": "ldexp(a, b)"}),
    Group("f64", ("f64",), {**_floats("f64"), "div_fmas_f64": "fma(a, b, c)"}),
    Group("f64", ("f64", "i32"), {"ldexp_f64": "ldexp(a, b)"}),
    Group(
        "packed",
        ("packed",),
        {
            "pk_add_f16": "a + b",
            "pk_mul_f16": "a * b",
            "pk_max_f16": "fmaxf(a, b)",
            "pk_min_f16": "fminf(a, b)",
            "pk_fma_f16": "(float)fma(a, b, c)",
        },
    ),
    Group("f32", ("mixed",), {"fma_mix_f32": "fmaf(a, b, c)"}),
    Group("f16", ("mixed",), dict.fromkeys(("fma_mixlo_f16", "fma_mixhi_f16"), "fmaf(a, b, c)")),
    # Conversions.
    Group("f64", ("f32",), {"cvt_f64_f32": "a"}),
    Group("f64", ("i32",), {"cvt_f64_i32": "a"}),
    Group("f64", ("u32",), {"cvt_f64_u32": "a"}),
    Group("f32", ("f64",), {"cvt_f32_f64": "(float)a"}),
    Group("f32", ("f16",), {"cvt_f32_f16": "a"}),
    Group("f32", ("i32",), {"cvt_f32_i32": "(float)a"}),
    Group(
        "f32",
        ("u32",),
        {
            "cvt_f32_u32": "(float)a",
            **{f"cvt_f32_ubyte{i}": f"(float)(a >> {8 * i} & 255)" for i in range(4)},
        },
    ),
    Group("f16", ("f32",), {"cvt_f16_f32": "a"}),
    Group("f16", ("u16",), {"cvt_f16_u16": "a"}),
    Group("f16", ("i16",), {"cvt_f16_i16": "a"}),
    Group("u32", ("f32",), {"cvt_u32_f32": "to_u32(a)", "cvt_i32_f32": "to_i32(a)"}),
    Group("u32", ("f64",), {"cvt_i32_f64": "to_i32(a)", "cvt_u32_f64": "to_u32(a)"}),
    Group("u16", ("f16",), {"cvt_u16_f16": "saturated_u16(to_u32(a))"}),
    Group("u32", ("u32",), {"cvt_pk_u16_u32": "saturated_u16(a) | saturated_u16(b) << 16"}),
    Group("u32", ("u16",), {"pack_b32_f16": "a | (uint32_t)b << 16"}),
    # Integers and bits.
    Group(
        "u32",
        ("u32",),
        {
            "mov_b32": "a",
            "not_b32": "~a",
            "and_b32": "a & b",
            "or_b32": "a | b",
            "xor_b32": "a ^ b",
            "xnor_b32": "~(a ^ b)",
            "or3_b32": "a | b | c",
            "xor3_b32": "a ^ b ^ c",
            "and_or_b32": "(a & b) | c",
            "lshl_or_b32": "(a << (b & 31)) | c",
            "lshlrev_b32": "b << (a & 31)",
            "lshrrev_b32": "b >> (a & 31)",
            "ashrrev_i32": "(uint32_t)((int32_t)b >> (a & 31))",
            "add_nc_u32": "a + b",
            "add_nc_i32": "a + b",
            "sub_nc_u32": "a - b",
            "sub_nc_i32": "a - b",
            "subrev_nc_u32": "b - a",
            "add3_u32": "a + b + c",
            "add_lshl_u32": "(a + b) << (c & 31)",
            "lshl_add_u32": "(a << (b & 31)) + c",
            "xad_u32": "(a ^ b) + c",
            "mul_lo_u32": "a * b",
            "mul_hi_u32": "(uint32_t)((uint64_t)a * b >> 32)",
            "mul_u32_u24": "u24(a) * u24(b)",
            "mad_u32_u24": "u24(a) * u24(b) + c",
            "mul_i32_i24": "(uint32_t)i24(a) * (uint32_t)i24(b)",
            "mad_i32_i24": "(uint32_t)i24(a) * (uint32_t)i24(b) + c",
            "max_u32": "a > b ? a : b",
            "min_u32": "a < b ? a : b",
            "bfe_u32": "bit_field(a, b, c)",
            "bfe_i32": "signed_bit_field(a, b, c)",
            "bfi_b32": "(a & b) | (~a & c)",
            "bfm_b32": "((1u << (a & 31)) - 1) << (b & 31)",
            "bfrev_b32": "reversed(a)",
            "ctz_i32_b32": "first_one(a)",
            "clz_i32_u32": "leading_zeros(a)",
            "alignbit_b32": "(uint32_t)(((uint64_t)a << 32 | b) >> (c & 31))",
            "perm_b32": "permuted(a, b, c)",
            "cndmask_b32": "c >> lane & 1 ? b : a",
            "mbcnt_lo_u32_b32": "b + (uint32_t)__builtin_popcount(a & ((1u << lane) - 1))",
            "mbcnt_hi_u32_b32": "b",  # of the upper half of a wave of 64
        },
    ),
    Group(
        "u32",
        ("i32",),
        {
            "mul_hi_i32": "(uint32_t)((int64_t)a * b >> 32)",
            "max_i32": "(uint32_t)(a > b ? a : b)",
            "min_i32": "(uint32_t)(a < b ? a : b)",
        },
    ),
    Group("u64", ("u32", "u64"), {"lshlrev_b64": "b << (a & 63)", "lshrrev_b64": "b >> (a & 63)"}),
    Group("u64", ("u32", "i64"), {"ashrrev_i64": "(uint64_t)(b >> (a & 63))"}),
    Group(
        "u16",
        ("u16",),
        {
            "mov_b16": "a",
            "not_b16": "~a",
            "and_b16": "a & b",
            "or_b16": "a | b",
            "xor_b16": "a ^ b",
            "lshlrev_b16": "b << (a & 15)",
            "lshrrev_b16": "b >> (a & 15)",
            "add_nc_u16": "a + b",
            "sub_nc_u16": "a - b",
            "mul_lo_u16": "(uint32_t)a * b",
        },
    ),
    Group("u16", ("u16", "u16", "u32"), {"cndmask_b16": "c >> lane & 1 ? b : a"}),
]

CARRIES = [
    Group(
        "u32",
        ("u32",),
        {
            "add_co_u32": "uint64_t t = (uint64_t)a + b; RESULT(t); FLAG(t >> 32)",
            "sub_co_u32": "RESULT(a - b); FLAG(b > a)",
            "subrev_co_u32": "RESULT(b - a); FLAG(a > b)",
            "add_co_ci_u32": "uint64_t t = (uint64_t)a + b + (c >> lane & 1);"
            " RESULT(t); FLAG(t >> 32)",
            "sub_co_ci_u32": "uint64_t t = (uint64_t)b + (c >> lane & 1);"
            " RESULT(a - t); FLAG(t > a)",
            "subrev_co_ci_u32": "uint64_t t = (uint64_t)a + (c >> lane & 1);"
            " RESULT(b - t); FLAG(t > b)",
        },
    ),
    Group(
        "u64",
        ("u32", "u32", "u64"),
        {
            "mad_u64_u32": "uint64_t product = (uint64_t)a * b; RESULT(product + c);"
            " FLAG(product + c < product)",
        },
    ),
    Group(
        "u64",
        ("i32", "i32", "u64"),
        {"mad_i64_i32": "RESULT((uint64_t)((int64_t)a * b) + c); FLAG(0)"},
    ),
    # No scaling: quotients of very large by very small numbers lose accuracy.
    Group("f32", ("f32",), {"div_scale_f32": "RESULT(a); FLAG(0)"}),
    Group("f64", ("f64",), {"div_scale_f64": "RESULT(a); FLAG(0)"}),
]
"""Statements, with a flag for each lane in a second destination."""

_ORDERED = {"lt": "a < b", "eq": "a == b", "le": "a <= b", "gt": "a > b", "ge": "a >= b"}
_OF_FLOATS = {
    "lg": "a < b || a > b",
    "neq": "!(a == b)",
    "nge": "!(a >= b)",
    "nlg": "!(a < b || a > b)",
    "ngt": "!(a > b)",
    "nle": "!(a <= b)",
    "nlt": "!(a < b)",
    "o": "a == a && b == b",
    "u": "a != a || b != b",
}
_COMPARED = ("f16", "f32", "f64", "i16", "u16", "i32", "u32", "i64", "u64")

COMPARISONS = [
    Group(
        "flag",
        (compared,),
        {
            f"cmp_{name}_{compared}": meaning
            for name, meaning in {
                **_ORDERED,
                **(_OF_FLOATS if compared.startswith("f") else {"ne": "a != b"}),
            }.items()
        },
    )
    for compared in _COMPARED
] + [
    Group(
        "flag",
        ("f32", "u32"),
        {"cmp_class_f32": "has_class(a, fabsf(a) < 0x1p-126f && a != 0, b)"},
    ),
    Group(
        "flag",
        ("f64", "u32"),
        {"cmp_class_f64": "has_class(a, fabs(a) < 0x1p-1022 && a != 0, b)"},
    ),
]


def group_of(name: str) -> Group | None:
    """Return the group of an instruction, None if no group has it."""
    return _BY_NAME.get(name)


_BY_NAME = {name: group for group in [*GROUPS, *CARRIES, *COMPARISONS] for name in group.meanings}
CARRY_NAMES = frozenset(name for group in CARRIES for name in group.meanings)


_OLD = {
    "f32": "as_f32(w->v[n->destination][lane])",
    "f16": "as_f16(w->v[n->destination][lane] >> (n->high_half ? 16 : 0))",
    "f64": "as_f64(w->v[n->destination][lane] | (uint64_t)w->v[n->destination + 1][lane] << 32)",
}
_READ = {
    "mixed": "read_mixed(w, n, {i}, lane)",
    "packed": "read_packed(w, &n->sources[{i}], lane, part)",
}


def _declared(group: Group, meaning: str) -> str:
    """Return the C declarations of those of a, b, c and d that a meaning uses."""
    used = re.findall(r"\w+", meaning)
    declared = ""
    for i, name in enumerate("abc"):
        if name in used:
            kind = group.source(i)
            read = _READ.get(kind, f"SOURCE({kind}, {{i}})").format(i=i)
            declared += f"{C_TYPES[kind]} {name} = {read}; "
    if "d" in used:
        declared += f"{C_TYPES[group.result]} d = {_OLD[group.result]}; "
    return declared


def bodies() -> dict[str, str]:
    """Return the C statements of each instruction."""
    result = {}
    for group in GROUPS:
        for name, meaning in group.meanings.items():
            declared = _declared(group, meaning)
            if group.result == "packed":  # both halves are read before one is written
                half = f"(uint32_t)bits_of_f16(clamped(n, {meaning})) << 16 * part"
                body = f"uint32_t both = 0; for (int part = 0; part < 2; part++) {{ {declared}"
                body += f"both |= {half}; }} write_u32(w, n, lane, both);"
            else:
                body = f"{declared}write_{group.result}(w, n, lane, {meaning});"
            result[name] = f"EACH_LANE {{ {body} }}"
    for group in CARRIES:
        for name, meaning in group.meanings.items():
            body = meaning.replace("RESULT(", f"write_{group.result}(w, n, lane, ")
            result[name] = (
                f"EACH_LANE {{ {_declared(group, meaning)}{body}; }}"
                " set_scalar(w, n->carry_out, flags);"
            )
    for group in COMPARISONS:
        for name, meaning in group.meanings.items():
            result[name] = (
                f"EACH_LANE {{ {_declared(group, meaning)}FLAG({meaning}); }}"
                " set_scalar(w, n->destination, flags);"
            )
    return result
