"""Loads, stores, LDS, atomics and exchanges of lanes against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.gfx1100.assembly import LANES, run, vector

BYTES = np.arange(0x80, 0x80 + 64, dtype="uint8")

LOADS = [  # v8 of lane 0, initially -1, after a load of the bytes 80 81 82 83 ...
    ("load_u8 v8", 0x80),
    ("load_i8 v8", 0xFFFFFF80),
    ("load_u16 v8", 0x8180),
    ("load_i16 v8", 0xFFFF8180),
    ("load_b32 v8", 0x83828180),
    ("load_d16_hi_b16 v8", 0x8180FFFF),
]


def stored(text, count, dtype="uint32", **options):
    """Return the array at the address in s[0:1] after a program."""
    found = np.zeros(count, dtype)
    run(f"{text}\n s_endpgm", found, BYTES, **options)
    return found


@pytest.mark.parametrize(("load", "wanted"), LOADS)
def test_loads_from_global_memory(load, wanted):
    text = f"v_mov_b32 v0, 0\n v_mov_b32 v8, -1\n global_{load}, v0, s[2:3]\n"
    found = stored(text + "global_store_b32 v0, v8, s[0:1]", 1, items=1)
    assert found[0] == wanted


@pytest.mark.parametrize(("load", "wanted"), LOADS)
def test_loads_from_lds(load, wanted):
    text = f"""
        v_mov_b32 v0, 0
        v_mov_b32 v1, 0x83828180
        ds_store_b32 v0, v1 offset:8
        v_mov_b32 v8, -1
        ds_{load.replace("load_d16_hi_b16", "load_u16_d16_hi")}, v0 offset:8
        global_store_b32 v0, v8, s[0:1]
    """
    assert stored(text, 1, items=1, lds_bytes=16)[0] == wanted


@pytest.mark.parametrize("words", [1, 2, 3, 4])
def test_several_words_at_once_with_an_offset(words):
    registers = f"v[8:{7 + words}]" if words > 1 else "v8"
    text = f"""
        v_mov_b32 v0, 0
        global_load_b{32 * words} {registers}, v0, s[2:3] offset:16
        global_store_b{32 * words} v0, {registers}, s[0:1] offset:4
    """
    wanted = [0, *BYTES.view("uint32")[4 : 4 + words], *[0] * (5 - words)]
    assert stored(text, 6, items=1).tolist() == wanted


@pytest.mark.parametrize(
    ("store", "wanted"), [("b8", 0x78), ("b16", 0x5678), ("d16_hi_b16", 0x1234)]
)
def test_stores_of_parts(store, wanted):
    text = f"v_mov_b32 v0, 0\n v_mov_b32 v1, 0x12345678\n global_store_{store} v0, v1, s[0:1]"
    assert stored(text, 1, items=1)[0] == wanted


def test_an_address_in_vector_registers():
    text = """
        v_mov_b32 v1, s0
        v_mov_b32 v2, s1
        v_mov_b32 v3, 7
        flat_store_b32 v[1:2], v3
    """
    assert stored(text, 1, items=1)[0] == 7


def test_scalar_loads():
    text = """
        s_load_b64 s[2:3], s[2:3], 0x8
        v_mov_b32 v0, 0
        v_mov_b32 v1, s2
        v_mov_b32 v2, s3
        global_store_b64 v0, v[1:2], s[0:1]
    """
    assert stored(text, 2, items=1).tolist() == BYTES.view("uint32")[2:4].tolist()


def test_lds_is_shared_by_the_waves_of_a_group_behind_a_barrier():
    text = """
        v_lshlrev_b32 v1, 2, v0
        ds_store_b32 v1, v0
        s_waitcnt lgkmcnt(0)
        s_barrier
        v_xor_b32 v2, 0xfc, v1
        ds_load_b32 v3, v2
        global_store_b32 v1, v3, s[0:1]
    """
    found = stored(text, 2 * LANES, items=2 * LANES, lds_bytes=8 * LANES)
    assert found.tolist() == [*range(2 * LANES)][::-1]


def test_lds_beyond_its_end_reads_0_and_writes_nothing():
    text = """
        v_mov_b32 v0, 0
        v_mov_b32 v1, -1
        ds_store_b32 v0, v1 offset:16
        ds_load_b32 v1, v0 offset:16
        global_store_b32 v0, v1, s[0:1]
    """
    assert stored(text, 1, items=1, lds_bytes=16)[0] == 0


def test_pairs_in_lds():
    text = """
        v_mov_b32 v0, 0
        v_mov_b32 v1, 1
        v_mov_b32 v2, 2
        ds_store_2addr_b32 v0, v1, v2 offset0:1 offset1:3
        ds_load_2addr_b64 v[4:7], v0 offset1:1
        global_store_b128 v0, v[4:7], s[0:1]
    """
    assert stored(text, 4, items=1, lds_bytes=16).tolist() == [0, 1, 0, 2]


def test_atomics_see_each_other():
    text = """
        v_mov_b32 v1, 0
        v_mov_b32 v2, 2
        global_atomic_add_u32 v3, v1, v2, s[0:1] glc
        v_lshlrev_b32 v4, 2, v0
        global_store_b32 v4, v3, s[0:1] offset:4
        v_mov_b32 v2, 0.5
        global_atomic_add_f32 v1, v2, s[0:1] offset:132
    """
    found = stored(text, LANES + 2)
    assert found[:-1].tolist() == [2 * LANES, *range(0, 2 * LANES, 2)]
    assert found[-1:].view("float32") == LANES / 2


def test_atomics_in_lds():
    text = """
        v_mov_b32 v1, 4
        v_mov_b32 v2, 3
        ds_add_u32 v1, v2
        ds_load_b32 v3, v1
        v_mov_b32 v1, 0
        global_store_b32 v1, v3, s[0:1]
    """
    assert stored(text, 1, lds_bytes=8)[0] == 3 * LANES


def test_lanes_exchange_values():
    lanes = np.arange(LANES, dtype="uint32") + 100
    pulled = vector("v_sub_nc_u32 v4, 31, v0\n v_lshlrev_b32 v4, 2, v4\n"
                    "ds_bpermute_b32 v8, v4, v2", lanes)  # fmt: skip
    assert pulled.tolist() == lanes[::-1].tolist()


@pytest.mark.parametrize(("records", "wanted"), [(64, 0x83828180), (3, 0)])
def test_a_buffer_has_an_end(records, wanted):
    text = f"""
        s_mov_b32 s4, s2
        s_mov_b32 s5, s3
        s_mov_b32 s6, {records}
        s_mov_b32 s7, 0
        v_mov_b32 v0, 0
        v_mov_b32 v1, -1
        buffer_load_b32 v1, v0, s[4:7], 0 offen
        global_store_b32 v0, v1, s[0:1]
    """
    assert stored(text, 1, items=1)[0] == wanted


def test_a_load_across_the_end_of_a_buffer_is_cut_between_words():
    text = """
        s_mov_b32 s4, s2
        s_mov_b32 s5, s3
        s_mov_b32 s6, 11
        s_mov_b32 s7, 0
        v_mov_b32 v0, 0
        buffer_load_b128 v[4:7], v0, s[4:7], 0 offen
        global_store_b128 v0, v[4:7], s[0:1]
    """
    assert stored(text, 4, items=1).tolist() == [0x83828180, 0x87868584, 0, 0]


def test_scratch_is_of_each_lane():
    text = """
        scratch_store_b32 off, v0, off offset:4
        scratch_load_b32 v1, off, off offset:4
        v_lshlrev_b32 v2, 2, v0
        global_store_b32 v2, v1, s[0:1]
    """
    assert stored(text, LANES, scratch_bytes=8).tolist() == [*range(LANES)]
