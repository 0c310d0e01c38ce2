"""Tests of branches, masks and grids, and of errors of execution."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.gfx1100.assembly import LANES, run
from simulators.gfx1100.interpreter import Code, ExecutionError, assemble

STORE = """
    v_lshlrev_b32 v1, 2, v0
    global_store_b32 v1, v2, s[0:1]
    s_endpgm
"""


def test_a_loop_runs_until_its_condition():
    found = np.zeros(LANES, "uint32")
    run(
        f"""
        s_mov_b32 s10, 0
        v_mov_b32 v2, 0
        again:
        v_add_nc_u32 v2, v2, v0
        s_add_u32 s10, s10, 1
        s_cmp_lt_u32 s10, 3
        s_cbranch_scc1 again
        {STORE}""",
        found,
    )
    assert found.tolist() == [3 * lane for lane in range(LANES)]


def test_both_sides_of_a_divergent_branch_run_for_their_lanes():
    found = np.zeros(LANES, "uint32")
    run(
        f"""
        v_cmp_gt_u32 vcc_lo, 4, v0
        s_and_saveexec_b32 s10, vcc_lo
        s_cbranch_execz otherwise
        v_mov_b32 v2, 1
        otherwise:
        s_and_not1_b32 exec_lo, s10, exec_lo
        v_mov_b32 v2, 2
        s_mov_b32 exec_lo, s10
        {STORE}""",
        found,
    )
    assert found.tolist() == [1] * 4 + [2] * 28


def test_a_branch_without_active_lanes_is_taken():
    found = np.zeros(LANES, "uint32")
    run(
        f"""
        v_mov_b32 v2, 1
        s_mov_b32 exec_lo, 0
        s_cbranch_execz after
        s_mov_b32 exec_lo, -1
        v_mov_b32 v2, 2
        after:
        s_mov_b32 exec_lo, -1
        {STORE}""",
        found,
    )
    assert found.tolist() == [1] * LANES


def test_a_function_is_called_and_returns():
    found = np.zeros(LANES, "uint32")
    run(
        f"""
        s_getpc_b64 s[10:11]
        base:
        s_add_u32 s10, s10, function-base
        s_addc_u32 s11, s11, 0
        v_mov_b32 v2, 1
        s_swappc_b64 s[12:13], s[10:11]
        {STORE}
        function:
        v_add_nc_u32 v2, v2, 5
        s_setpc_b64 s[12:13]
        """,
        found,
    )
    assert found.tolist() == [6] * LANES


def test_groups_know_their_ids_and_the_last_may_be_smaller():
    found = np.full(12, 99, "uint32")
    run(
        """
        v_and_b32 v3, 0x3ff, v0
        v_bfe_u32 v4, v0, 10, 10
        s_mul_i32 s4, s2, 2
        v_add_nc_u32 v3, v3, s4
        s_mul_i32 s5, s3, 2
        v_add_nc_u32 v4, v4, s5
        v_mad_u32_u24 v5, v4, 3, v3
        v_lshlrev_b32 v6, 2, v5
        global_store_b32 v6, v5, s[0:1]
        s_endpgm
        """,
        found,
        global_size=(3, 4, 1),
        local_size=(2, 2, 1),
        group_ids=0b11,
    )
    assert found.tolist() == [*range(12)]


def test_the_executed_instructions_of_waves_are_counted():
    assert run("s_nop 0\n s_endpgm", items=2 * LANES) == 4


def test_an_unknown_instruction_is_an_error_when_it_is_reached():
    code = Code(assemble("s_branch after\n v_sad_u8 v0, v1, v2, v3\n after:\n s_endpgm"), 0)
    assert [text.split()[0] for text in code.unknown.values()] == ["v_sad_u8"]
    assert code.run(0, (1, 1, 1), (1, 1, 1)) == 2
    with pytest.raises(ExecutionError, match="unknown instruction v_sad_u8 v0, v1, v2, v3"):
        run("v_sad_u8 v0, v1, v2, v3\n s_endpgm")


@pytest.mark.parametrize(
    "text",
    [
        "v_add_f32_dpp v0, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf",
        "v_add_f32_e64 v0, v1, v2 mul:2",
        "v_add_nc_u16 v0.l, v1.l, v2.l clamp",
    ],
)
def test_a_modifier_without_a_meaning_here_is_refused(text):
    assert len(Code(assemble(text), 0).unknown) == 1


def test_running_past_the_end_is_an_error():
    with pytest.raises(ExecutionError, match="past the end"):
        run("s_nop 0")


def test_scratch_beyond_its_size_is_an_error():
    with pytest.raises(ExecutionError, match="scratch access at 8 of 8 bytes"):
        run("scratch_store_b32 off, v0, off offset:8\n s_endpgm", scratch_bytes=8)
