"""The scalar instructions against values worked out by hand."""

from __future__ import annotations

import pytest

from simulators.gfx1100.assembly import scalar

M = 0xFFFFFFFF

RESULTS = [  # instruction, its sources, result, scc
    ("s_add_u32", (M, 2), 1, 1),
    ("s_add_u32", (1, 2), 3, 0),
    ("s_add_i32", (0x7FFFFFFF, 1), 0x80000000, 1),
    ("s_add_i32", (M, 1), 0, 0),
    ("s_sub_u32", (1, 2), M, 1),
    ("s_sub_i32", (0x80000000, 1), 0x7FFFFFFF, 1),
    ("s_lshl2_add_u32", (3, 5), 17, 0),
    ("s_lshl3_add_u32", (0x40000000, 0), 0, 1),
    ("s_and_b32", (0b1100, 0b1010), 0b1000, 1),
    ("s_and_b32", (0b1100, 0b0011), 0, 0),
    ("s_or_b32", (0b1100, 0b1010), 0b1110, 1),
    ("s_xor_b32", (5, 5), 0, 0),
    ("s_and_not1_b32", (0b1100, 0b1010), 0b0100, 1),
    ("s_or_not1_b32", (0, M - 1), 1, 1),
    ("s_nand_b32", (M, M), 0, 0),
    ("s_nor_b32", (0, 1), M - 1, 1),
    ("s_xnor_b32", (0b1100, 0b1010), M - 0b0110, 1),
    ("s_lshl_b32", (1, 33), 2, 1),
    ("s_lshr_b32", (0x80000000, 31), 1, 1),
    ("s_ashr_i32", (0x80000000, 31), M, 1),
    ("s_bfe_u32", (0xABCD, 4 | 8 << 16), 0xBC, 1),
    ("s_bfe_i32", (0xABCD, 4 | 8 << 16), 0xFFFFFFBC, 1),
    ("s_min_i32", (M, 1), M, 1),
    ("s_max_i32", (M, 1), 1, 0),
    ("s_min_u32", (M, 1), 1, 0),
    ("s_max_u32", (M, 1), M, 1),
]

KEEPING_SCC = [  # instruction, its sources, result
    ("s_mul_i32", (M, 5), M - 4),
    ("s_mul_hi_u32", (M, M), M - 1),
    ("s_mul_hi_i32", (M, M), 0),
    ("s_bfm_b32", (4, 8), 0xF00),
    ("s_pack_ll_b32_b16", (0x1234, 0xABCD), 0xABCD1234),
]

ONE_SOURCE = [
    ("s_mov_b32", 7, 7),
    ("s_sext_i32_i8", 0x80, 0xFFFFFF80),
    ("s_sext_i32_i16", 0x8000, 0xFFFF8000),
    ("s_brev_b32", 1, 0x80000000),
    ("s_ctz_i32_b32", 8, 3),
    ("s_ctz_i32_b32", 0, M),
    ("s_clz_i32_u32", 1, 31),
    ("s_bitset1_b32", 5, 32),
]


@pytest.mark.parametrize(("name", "sources", "wanted", "scc"), RESULTS)
def test_a_result_and_its_condition(name, sources, wanted, scc):
    a, b = sources
    text = f"s_mov_b32 s10, {a:#x}\n s_mov_b32 s11, {b:#x}\n {name} s20, s10, s11"
    assert scalar(text, scc=1 - scc) == (wanted, scc)


@pytest.mark.parametrize(("name", "sources", "wanted"), KEEPING_SCC)
@pytest.mark.parametrize("scc", [0, 1])
def test_a_result_that_keeps_the_condition(name, sources, wanted, scc):
    a, b = sources
    text = f"s_mov_b32 s10, {a:#x}\n {name} s20, s10, {b:#x}"
    assert scalar(text, scc=scc) == (wanted, scc)


@pytest.mark.parametrize(("name", "source", "wanted"), ONE_SOURCE)
def test_a_result_of_one_source(name, source, wanted):
    assert scalar(f"s_mov_b32 s10, {source:#x}\n {name} s20, s10") == (wanted, 0)


@pytest.mark.parametrize(("scc", "wanted"), [(0, 0x10), (1, 0x11)])
def test_a_carry_is_added(scc, wanted):
    assert scalar("s_addc_u32 s20, 8, 8", scc=scc) == (wanted, 0)


@pytest.mark.parametrize(("scc", "wanted", "borrow"), [(0, 0, 0), (1, M, 1)])
def test_a_borrow_is_subtracted(scc, wanted, borrow):
    assert scalar("s_subb_u32 s20, 8, 8", scc=scc) == (wanted, borrow)


@pytest.mark.parametrize(("scc", "wanted"), [(1, 5), (0, 6)])
def test_the_condition_selects(scc, wanted):
    assert scalar("s_cselect_b32 s20, 5, 6", scc=scc) == (wanted, scc)


@pytest.mark.parametrize(
    ("text", "wanted", "scc"),
    [
        ("s_lshl_b64 s[20:21], s[10:11], 4", 0x1234567890, 1),
        ("s_lshr_b64 s[20:21], s[10:11], 4", 0x12345678, 1),
        ("s_and_b64 s[20:21], s[10:11], 0", 0, 0),
        ("s_mov_b64 s[20:21], s[10:11]", 0x123456789, 0),
        ("s_mov_b64 s[20:21], -1", 2**64 - 1, 0),
    ],
)
def test_64_bits(text, wanted, scc):
    setup = "s_mov_b32 s10, 0x23456789\n s_mov_b32 s11, 1\n"
    assert scalar(setup + text, result="uint64") == (wanted, scc)


@pytest.mark.parametrize(
    ("condition", "scc"),
    [
        ("s_cmp_lt_i32 s10, 0", 1),
        ("s_cmp_lt_u32 s10, 0", 0),
        ("s_cmp_ge_u32 s10, 5", 1),
        ("s_cmp_gt_i32 s10, -2", 1),
        ("s_cmp_lg_u32 s10, -1", 0),
        ("s_cmpk_eq_i32 s10, 0xffff", 1),
        ("s_cmpk_gt_u32 s10, 0xffff", 1),
        ("s_bitcmp1_b32 s10, 40", 1),
        ("s_bitcmp0_b32 s10, 0", 0),
    ],
)
def test_a_comparison_of_minus_one(condition, scc):
    assert scalar(f"s_mov_b32 s10, -1\n {condition}", scc=1 - scc) == (0, scc)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("s_movk_i32 s20, 0x8000", 0xFFFF8000),
        ("s_addk_i32 s20, 0xffff", M),
        ("s_mov_b32 s20, 3\n s_mulk_i32 s20, 0xfffe", M - 5),
    ],
)
def test_constants_of_16_bits_have_a_sign(text, wanted):
    assert scalar(text) == (wanted, 0)


def test_exec_is_saved_and_narrowed():
    text = "s_and_saveexec_b32 s20, 1\n s_mov_b32 s21, exec_lo"
    assert scalar(text, result="uint64") == (1 << 32 | 1, 1)


def test_writes_to_null_are_lost():
    assert scalar("s_add_u32 null, 7, 8\n s_mov_b32 s20, null") == (0, 0)
