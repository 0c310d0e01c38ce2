"""The meanings of the scalar instructions, as C.

``a`` and ``b`` are the sources as ``uint32_t``, ``A`` and ``B`` as ``uint64_t``, ``old`` is the
destination as it was, ``d`` or ``D`` the result and ``scc`` the scalar condition code.
"""

from __future__ import annotations

EXPRESSIONS_32 = {
    "mov_b32": "a",
    "movk_i32": "(uint32_t)(int16_t)a",  # constants of 16 bits have a sign
    "mul_i32": "a * b",
    "mulk_i32": "old * (uint32_t)(int16_t)a",
    "mul_hi_u32": "(uint64_t)a * b >> 32",
    "mul_hi_i32": "(uint64_t)((int64_t)(int32_t)a * (int32_t)b) >> 32",
    "bfm_b32": "((1u << (a & 31)) - 1) << (b & 31)",
    "cselect_b32": "scc ? a : b",
    "cmov_b32": "scc ? a : old",
    "pack_ll_b32_b16": "(a & 0xFFFF) | b << 16",
    "sext_i32_i16": "(uint32_t)(int16_t)a",
    "sext_i32_i8": "(uint32_t)(int8_t)a",
    "brev_b32": "reversed(a)",
    "ctz_i32_b32": "first_one(a)",
    "clz_i32_u32": "leading_zeros(a)",
    "bitset1_b32": "old | 1u << (a & 31)",
    "bitset0_b32": "old & ~(1u << (a & 31))",
}
"""Results of 32 bits; ``scc`` stays."""

EXPRESSIONS_64 = {
    "mov_b64": "A",
    "cselect_b64": "scc ? A : B",
}
"""Results of 64 bits; ``scc`` stays."""

NONZERO_32 = {
    "not_b32": "~a",
    "and_b32": "a & b",
    "or_b32": "a | b",
    "xor_b32": "a ^ b",
    "and_not1_b32": "a & ~b",
    "or_not1_b32": "a | ~b",
    "nand_b32": "~(a & b)",
    "nor_b32": "~(a | b)",
    "xnor_b32": "~(a ^ b)",
    "lshl_b32": "a << (b & 31)",
    "lshr_b32": "a >> (b & 31)",
    "ashr_i32": "(uint32_t)((int32_t)a >> (b & 31))",
    "bfe_u32": "bit_field(a, b & 31, b >> 16 & 127)",
    "bfe_i32": "signed_bit_field(a, b & 31, b >> 16 & 127)",
    "abs_i32": "(int32_t)a < 0 ? -a : a",
    "bcnt1_i32_b32": "(uint32_t)__builtin_popcount(a)",
}
"""Results of 32 bits; ``scc`` says whether they are not 0."""

NONZERO_64 = {
    "not_b64": "~A",
    "and_b64": "A & B",
    "or_b64": "A | B",
    "xor_b64": "A ^ B",
    "lshl_b64": "A << (b & 63)",
    "lshr_b64": "A >> (b & 63)",
    "ashr_i64": "(uint64_t)((int64_t)A >> (b & 63))",
}
"""Results of 64 bits; ``scc`` says whether they are not 0."""

CHOICES = {
    "min_i32": "(int32_t)a < (int32_t)b",
    "max_i32": "(int32_t)a >= (int32_t)b",
    "min_u32": "a < b",
    "max_u32": "a >= b",
}
"""``a`` where this holds, else ``b``; ``scc`` says which."""

CARRIES = {
    "add_u32": "(uint64_t)a + b",
    "addc_u32": "(uint64_t)a + b + scc",
    "lshl1_add_u32": "((uint64_t)a << 1) + b",
    "lshl2_add_u32": "((uint64_t)a << 2) + b",
    "lshl3_add_u32": "((uint64_t)a << 3) + b",
    "lshl4_add_u32": "((uint64_t)a << 4) + b",
}
"""The low 32 bits are the result; ``scc`` says whether there are others."""

STATEMENTS = {
    "sub_u32": "d = a - b; scc = b > a",
    "subb_u32": "uint64_t t = (uint64_t)b + scc; d = a - (uint32_t)t; scc = t > a",
    "add_i32": "d = a + b; scc = (~(a ^ b) & (a ^ d)) >> 31",
    "sub_i32": "d = a - b; scc = ((a ^ b) & (a ^ d)) >> 31",
    "addk_i32": "uint32_t k = (uint32_t)(int16_t)a; d = old + k;"
    " scc = (~(old ^ k) & (old ^ d)) >> 31",
}

SAVES = {
    "and_saveexec_b32": "a & s[EXEC]",
    "or_saveexec_b32": "a | s[EXEC]",
    "xor_saveexec_b32": "a ^ s[EXEC]",
    "and_not1_saveexec_b32": "a & ~s[EXEC]",
    "and_not0_saveexec_b32": "~a & s[EXEC]",
}
"""The new mask of active lanes; the old one is the result."""

TESTS = {
    "bitcmp1_b32": "a >> (b & 31) & 1",
    "bitcmp0_b32": "!(a >> (b & 31) & 1)",
    "cmp_eq_u64": "A == B",
    "cmp_lg_u64": "A != B",
}
"""No result but ``scc``."""

for _name, _sign in {"eq": "==", "lg": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}.items():
    TESTS[f"cmp_{_name}_u32"] = f"a {_sign} b"
    TESTS[f"cmp_{_name}_i32"] = f"(int32_t)a {_sign} (int32_t)b"
    TESTS[f"cmpk_{_name}_u32"] = f"a {_sign} (uint16_t)b"
    TESTS[f"cmpk_{_name}_i32"] = f"(int32_t)a {_sign} (int16_t)b"

BRANCHES = {
    "branch": "1",
    "cbranch_scc0": "!scc",
    "cbranch_scc1": "scc",
    "cbranch_vccz": "!s[VCC]",
    "cbranch_vccnz": "s[VCC]",
    "cbranch_execz": "!s[EXEC]",
    "cbranch_execnz": "s[EXEC]",
}

NOTHING = frozenset(
    (
        *("nop", "clause", "delay_alu", "sleep", "setprio", "sendmsg", "wait_idle", "icache_inv"),
        *("waitcnt", "waitcnt_vscnt", "waitcnt_depctr", "waitcnt_lgkmcnt", "waitcnt_vmcnt"),
        *("waitcnt_expcnt", "set_inst_prefetch_distance", "setreg_imm32_b32", "code_end"),
        *("version", "ttracedata_imm"),
    )
)
"""Instructions about time, caches and modes: nothing to do here."""

WITH_RESULT = frozenset().union(
    *(EXPRESSIONS_32, EXPRESSIONS_64, NONZERO_32, NONZERO_64),
    *(CHOICES, CARRIES, STATEMENTS, SAVES),
)

_STORE_32 = "set_scalar(w, n->destination, d);"
_STORE_64 = (
    "set_scalar(w, n->destination, (uint32_t)D); "
    "set_scalar(w, n->destination + 1, (uint32_t)(D >> 32));"
)


def bodies() -> dict[str, str]:
    """Return the C statements of each instruction."""
    result = {}
    for name, value in EXPRESSIONS_32.items():
        result[name] = f"d = (uint32_t)({value}); {_STORE_32}"
    for name, value in EXPRESSIONS_64.items():
        result[name] = f"D = {value}; {_STORE_64}"
    for name, value in NONZERO_32.items():
        result[name] = f"d = {value}; scc = d != 0; {_STORE_32}"
    for name, value in NONZERO_64.items():
        result[name] = f"D = {value}; scc = D != 0; {_STORE_64}"
    for name, condition in CHOICES.items():
        result[name] = f"scc = {condition}; d = scc ? a : b; {_STORE_32}"
    for name, value in CARRIES.items():
        result[name] = f"D = {value}; scc = D >> 32 != 0; d = (uint32_t)D; {_STORE_32}"
    for name, statements in STATEMENTS.items():
        result[name] = f"{statements}; {_STORE_32}"
    for name, mask in SAVES.items():
        new = f"uint32_t mask = {mask}; d = s[EXEC]"
        result[name] = f"{new}; {_STORE_32} s[EXEC] = mask; scc = mask != 0;"
    for name, condition in TESTS.items():
        result[name] = f"scc = {condition};"
    for name, condition in BRANCHES.items():
        result[name] = f"if ({condition}) at = (uint32_t)n->target;"
    return result


def reads_64(name: str, source: int) -> bool:
    """Return whether source 0 or 1 of an instruction has 64 bits."""
    if name in ("cmp_eq_u64", "cmp_lg_u64"):
        return True
    meaning = {**EXPRESSIONS_64, **NONZERO_64}.get(name, "")
    return source < 2 and "AB"[source] in meaning
