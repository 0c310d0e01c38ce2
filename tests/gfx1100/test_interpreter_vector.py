"""The vector instructions against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.gfx1100.assembly import LANES, vector

M = 0xFFFFFFFF
INF, NAN = np.inf, np.nan


def on(dtype, *values):
    return [np.dtype(dtype).type(value) for value in values]


def text(name, count, wide=""):
    sources = ["v2", "v4", "v6"][:count]
    if wide == "64":
        sources = ["v[2:3]", "v[4:5]", "v[6:7]"][:count]
        return f"{name} v[8:9], {', '.join(sources)}"
    if wide == "16":
        return f"{name} v8.l, {', '.join(source + '.l' for source in sources)}"
    return f"{name} v8, {', '.join(sources)}"


F32 = [
    ("v_add_f32", (1.5, 2.25), 3.75),
    ("v_sub_f32", (1.5, 2.25), -0.75),
    ("v_subrev_f32", (1.5, 2.25), 0.75),
    ("v_mul_f32", (1.5, -2), -3),
    ("v_max_f32", (1.5, NAN), 1.5),
    ("v_min_f32", (1.5, -2), -2),
    ("v_fma_f32", (2, 3, 4), 10),
    ("v_fma_f32", (1 + 2**-12, 1 + 2**-12, -1), 2**-11 + 2**-24),  # rounded once
    ("v_med3_f32", (3, 1, 2), 2),
    ("v_max3_f32", (3, 1, 2), 3),
    ("v_rndne_f32", (2.5,), 2),
    ("v_trunc_f32", (-2.5,), -2),
    ("v_floor_f32", (-2.5,), -3),
    ("v_ceil_f32", (-2.5,), -2),
    ("v_fract_f32", (-2.25,), 0.75),
    # Transcendental.
    ("v_exp_f32", (3,), 8),
    ("v_exp_f32", (-INF,), 0),
    ("v_log_f32", (0.125,), -3),
    ("v_log_f32", (0,), -INF),
    ("v_rcp_f32", (4,), 0.25),
    ("v_rcp_f32", (-0.0,), -INF),
    ("v_sqrt_f32", (6.25,), 2.5),
    ("v_rsq_f32", (0.25,), 2),
    ("v_div_fixup_f32", (7, 0, 1), INF),  # the quotient given is replaced
    ("v_div_fixup_f32", (7, 2, 1), 7),
]


@pytest.mark.parametrize(("name", "sources", "wanted"), F32)
def test_float(name, sources, wanted):
    found = vector(text(name, len(sources)), *on("float32", *sources), result="float32")
    np.testing.assert_array_equal(found, np.full(LANES, wanted, "float32"))


F16 = [
    ("v_add_f16", (1.5, 2.25), 3.75),
    ("v_add_f16", (2048, 1), 2048),  # a tie goes to even
    ("v_add_f16", (2050, 1), 2052),
    ("v_mul_f16", (256, 256), INF),
    ("v_mul_f16", (2**-12, 2**-12), 2**-24),  # a denormal
    ("v_max_f16", (1.5, -2), 1.5),
    ("v_exp_f16", (3,), 8),
    ("v_rcp_f16", (4,), 0.25),
    ("v_fma_f16", (2, 3, 4), 10),
]


@pytest.mark.parametrize(("name", "sources", "wanted"), F16)
def test_half(name, sources, wanted):
    found = vector(text(name, len(sources), "16"), *on("float16", *sources), result="float16")
    np.testing.assert_array_equal(found, np.full(LANES, wanted, "float16"))


F64 = [
    ("v_add_f64", (1.5, 2.25), 3.75),
    ("v_mul_f64", (1e200, 1e200), INF),
    ("v_fma_f64", (2, 3, 4), 10),
    ("v_rcp_f64", (8,), 0.125),
    ("v_floor_f64", (-0.5,), -1),
]


@pytest.mark.parametrize(("name", "sources", "wanted"), F64)
def test_double(name, sources, wanted):
    found = vector(text(name, len(sources), "64"), *on("float64", *sources), result="float64")
    np.testing.assert_array_equal(found, np.full(LANES, wanted))


INTEGERS = [
    ("v_add_nc_u32", (M, 2), 1),
    ("v_sub_nc_u32", (1, 2), M),
    ("v_subrev_nc_u32", (1, 2), 1),
    ("v_add3_u32", (1, 2, 3), 6),
    ("v_lshl_add_u32", (3, 2, 1), 13),
    ("v_add_lshl_u32", (3, 2, 1), 10),
    ("v_mul_lo_u32", (0x10001, 0x10001), 0x20001),
    ("v_mul_hi_u32", (M, M), M - 1),
    ("v_mul_hi_i32", (M, M), 0),
    ("v_mul_u32_u24", (0xFF000003, 5), 15),
    ("v_mul_i32_i24", (0x00FFFFFF, 5), M - 4),
    ("v_mad_u32_u24", (3, 5, 7), 22),
    ("v_max_i32", (M, 1), 1),
    ("v_max_u32", (M, 1), M),
    ("v_min_i32", (M, 1), M),
    ("v_and_b32", (0b1100, 0b1010), 0b1000),
    ("v_or3_b32", (1, 2, 4), 7),
    ("v_xor_b32", (0b1100, 0b1010), 0b0110),
    ("v_and_or_b32", (0b1100, 0b1010, 1), 0b1001),
    ("v_lshlrev_b32", (4, 1), 16),
    ("v_lshrrev_b32", (4, 0x80000000), 0x08000000),
    ("v_ashrrev_i32", (4, 0x80000000), 0xF8000000),
    ("v_bfe_u32", (0xABCD, 4, 8), 0xBC),
    ("v_bfe_i32", (0xABCD, 4, 8), 0xFFFFFFBC),
    ("v_bfi_b32", (0xFF00, 0x1234, 0xABCD), 0x12CD),
    ("v_alignbit_b32", (0x12345678, 0x9ABCDEF0, 8), 0x789ABCDE),
    ("v_perm_b32", (0x33221100, 0x77665544, 0x0C0D0304), 0x00FF7700),
    ("v_bfrev_b32", (1,), 0x80000000),
    ("v_clz_i32_u32", (0,), M),
    ("v_ctz_i32_b32", (8,), 3),
    ("v_not_b32", (0,), M),
]


@pytest.mark.parametrize(("name", "sources", "wanted"), INTEGERS)
def test_integers(name, sources, wanted):
    found = vector(text(name, len(sources)), *on("uint32", *sources))
    np.testing.assert_array_equal(found, np.full(LANES, wanted, "uint32"))


CONVERSIONS = [  # instruction, type and value of the source, type and value of the result
    ("v_cvt_f32_i32", "int32", -7, "float32", -7),
    ("v_cvt_f32_u32", "uint32", 2**24 + 1, "float32", 2**24),
    ("v_cvt_f32_ubyte0", "uint32", 0x1FF, "float32", 255),
    ("v_cvt_i32_f32", "float32", -7.9, "int32", -7),
    ("v_cvt_i32_f32", "float32", 1e20, "int32", 2**31 - 1),
    ("v_cvt_i32_f32", "float32", NAN, "int32", 0),
    ("v_cvt_u32_f32", "float32", -1, "uint32", 0),
    ("v_cvt_u32_f32", "float32", 1e20, "uint32", M),
]


@pytest.mark.parametrize(("name", "kind", "value", "result", "wanted"), CONVERSIONS)
def test_conversions(name, kind, value, result, wanted):
    found = vector(f"{name} v8, v2", *on(kind, value), result=result)
    np.testing.assert_array_equal(found, np.full(LANES, wanted, result))


def test_conversions_between_float_and_half():
    assert vector("v_cvt_f16_f32 v8.l, v2", *on("float32", 1.0005), result="float16")[0] == (
        np.float16(1.0005)
    )
    assert vector("v_cvt_f32_f16 v8, v2.l", *on("float16", -0.1), result="float32")[0] == (
        np.float32(np.float16(-0.1))
    )


def test_conversions_between_float_and_double():
    assert vector("v_cvt_f64_f32 v[8:9], v2", *on("float32", 0.1), result="float64")[0] == (
        np.float64(np.float32(0.1))
    )
    assert vector("v_cvt_f32_f64 v8, v[2:3]", *on("float64", 0.1), result="float32")[0] == (
        np.float32(0.1)
    )


@pytest.mark.parametrize(
    ("operands", "wanted"),
    [("-v2, v4", 1), ("|v2|, v4", 5), ("-|v2|, v4", 1), ("v2, 4.0", 6), ("v2, -0.5", 1.5)],
)
def test_signs_absolute_values_and_constants(operands, wanted):
    found = vector(f"v_add_f32 v8, {operands}", *on("float32", 2, 3), result="float32")
    assert found[0] == wanted


@pytest.mark.parametrize(("value", "wanted"), [(2.5, 1), (0.25, 0.25), (-1, 0), (NAN, 0)])
def test_clamp(value, wanted):
    source = on("float32", value)
    found = vector("v_add_f32_e64 v8, v2, 0 clamp", *source, result="float32")
    assert found[0] == wanted


def test_only_active_lanes_are_written():
    found = vector("v_mov_b32 v8, 7", active=0b1010)
    assert found.tolist() == [0, 7, 0, 7] + [0] * 28


def test_accumulation_reads_the_destination():
    found = vector("v_mov_b32 v8, 1.0\n v_fmac_f32 v8, v2, v4", *on("float32", 2, 3))
    assert found.view("float32")[0] == 7


def test_packed_halves():
    a = np.array([1, 2], "float16").view("uint32")[0]
    b = np.array([10, 20], "float16").view("uint32")[0]

    def halves(instruction):
        return vector(instruction, np.uint32(a), np.uint32(b))[:1].view("float16").tolist()

    assert halves("v_pk_add_f16 v8, v2, v4") == [11, 22]
    assert halves("v_pk_mul_f16 v8, v2, v4 op_sel:[1,0] op_sel_hi:[0,1]") == [20, 20]
    assert halves("v_pk_add_f16 v8, v2, v4 neg_lo:[0,1] neg_hi:[1,0]") == [-9, 18]
    assert halves("v_pk_fma_f16 v8, v2, v4, v4") == [20, 60]


def test_mixed_precision():
    a = np.array([2, 3], "float16").view("uint32")[0]
    found = vector(
        "v_fma_mix_f32 v8, v2, v4, 1.0 op_sel:[1,0,0] op_sel_hi:[1,0,0]",
        np.uint32(a),
        np.float32(0.1),
        result="float32",
    )
    assert found[0] == np.float32(np.float64(3) * np.float32(0.1) + 1)


def test_the_upper_half_of_a_register():
    both = np.uint32(0x12345678)
    found = vector("v_mov_b32 v8, -1\n v_mov_b16 v8.h, v2.l", both)
    assert found[0] == 0x5678FFFF


COMPARISONS = [
    ("v_cmp_lt_f32", (1, 2), True),
    ("v_cmp_lt_f32", (NAN, 2), False),
    ("v_cmp_nlt_f32", (NAN, 2), True),
    ("v_cmp_u_f32", (NAN, 2), True),
    ("v_cmp_lg_f32", (NAN, 2), False),
    ("v_cmp_neq_f32", (NAN, 2), True),
    ("v_cmp_ge_f32", (2, 2), True),
]


@pytest.mark.parametrize(("name", "sources", "wanted"), COMPARISONS)
def test_comparisons(name, sources, wanted):
    instructions = f"{name} vcc_lo, v2, v4\n v_mov_b32 v8, vcc_lo"
    found = vector(instructions, *on("float32", *sources))
    assert found[0] == (M if wanted else 0)


def test_a_comparison_of_the_upper_half_of_a_register():
    both = np.array([1, -3], "float16").view("uint32")[0]
    found = vector("v_cmp_lt_f16 s20, 2.0, |v2.h|\n v_mov_b32 v8, s20", np.uint32(both))
    assert found[0] == M


def test_a_comparison_of_integers_by_lane():
    lanes = np.arange(LANES, dtype="uint32")
    found = vector("v_cmp_gt_u32 vcc_lo, 3, v2\n v_cndmask_b32 v8, 5, v2, vcc_lo", lanes)
    assert found.tolist() == [0, 1, 2] + [5] * 29


def test_a_comparison_gives_0_for_inactive_lanes():
    found = vector("v_cmp_eq_u32 s20, v2, v2\n v_mov_b32 v8, s20", np.uint32(1), active=0b110)
    assert found[1] == 0b110


@pytest.mark.parametrize(
    ("value", "bit"),
    [(NAN, 0), (-INF, 2), (-1, 3), (-1e-40, 4), (-0.0, 5), (0.0, 6), (1e-40, 7), (1, 8), (INF, 9)],
)
def test_classes(value, bit):
    for asked in range(1, 10):
        instructions = "v_cmp_class_f32 vcc_lo, v2, v4\n v_mov_b32 v8, vcc_lo"
        found = vector(instructions, np.float32(value), np.uint32(1 << asked))
        assert bool(found[0]) == (asked == max(bit, 1))


def test_carries_go_from_word_to_word():
    lanes = np.array([M, 1] * 16, "uint32")
    found = vector(
        "v_add_co_u32 v8, vcc_lo, v2, 1\n v_add_co_ci_u32 v8, vcc_lo, 0, 0, vcc_lo", lanes
    )
    assert found.tolist() == [1, 0] * 16


def test_multiplication_of_words_into_64_bits():
    found = vector(
        "v_mad_u64_u32 v[8:9], null, v2, v4, v[6:7]",
        *(np.uint32(M), np.uint32(M), np.uint64(5)),
        result="uint64",
    )
    assert found[0] == M * M + 5


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("v_lshlrev_b64", 0x1230), ("v_lshrrev_b64", 0x12), ("v_ashrrev_i64", 0x12)],
)
def test_shifts_of_64_bits(name, wanted):
    operands = np.uint32(4), np.uint64(0x123)
    found = vector(f"{name} v[8:9], v2, v[4:5]", *operands, result="uint64")
    assert found[0] == wanted


def test_lanes_are_read_and_written():
    lanes = np.arange(LANES, dtype="uint32") + 100
    found = vector("v_readlane_b32 s20, v2, 5\n v_mov_b32 v8, s20", lanes)
    assert found.tolist() == [105] * LANES
    found = vector("v_readfirstlane_b32 s20, v2\n v_mov_b32 v8, s20", lanes, active=0b1000)
    assert found[3] == 103
    found = vector("v_mov_b32 v8, 1\n v_writelane_b32 v8, 9, 30", lanes)
    assert found.tolist() == [1] * 30 + [9, 1]


def test_lanes_before_this_one_are_counted():
    found = vector("v_mbcnt_lo_u32_b32 v8, 0xff, 0")
    assert found.tolist() == [*range(9), *[8] * 23]


def test_halves_of_a_dual_instruction_read_what_was_before():
    found = vector(
        "v_mov_b32 v9, 2.0\n"
        "v_mov_b32 v8, 1.0\n"
        "v_dual_mov_b32 v8, v9 :: v_dual_mov_b32 v9, v8\n"
        "v_sub_f32 v8, v8, v9",
        result="float32",
    )
    assert found[0] == 1
