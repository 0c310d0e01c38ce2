"""Tests of the search for words of an exchange that are waited for too early."""

import early_waits
import pytest
from early_waits import NO_COUNTER, Instruction, early_copies, instructions

LOAD = "LDG.E.128.STRONG.GPU R148, desc[UR6][R152.64] ;"


def line(text, counter=NO_COUNTER, waits=()):
    """The two lines that nvdisasm prints for an instruction."""
    control = counter << 5 | sum(1 << 11 + one for one in waits)
    return f"  /*3da0*/   {text}  /* 0x0000000098947981 */\n  /* 0x{control << 41:016x} */\n"


def test_counters_are_read_from_the_upper_half():
    listing = line(LOAD, counter=2) + ".L_x_7:\n" + line("NOP ;", waits=(0, 5))
    assert list(instructions(listing)) == [
        Instruction(LOAD, 2, frozenset()),
        Instruction("NOP ;", NO_COUNTER, frozenset({0, 5})),
    ]


@pytest.mark.parametrize("copy", ["IMAD.MOV.U32 R136, RZ, RZ, R151 ;", "@!P0 MOV R5, R148 ;"])
def test_a_copy_that_is_the_first_to_wait_is_found(copy):
    listing = line(LOAD, counter=2) + line("NOP ;", waits=(1,)) + line(copy, waits=(2,))
    assert early_copies(list(instructions(listing))) == [copy]


@pytest.mark.parametrize(
    "text",
    [
        "LOP3.LUT R129, R151, 0x10000, RZ, 0xc0, !PT ;",  # looks at the tag
        "IMAD.MOV.U32 R136, RZ, RZ, R152 ;",  # copies another register
    ],
)
def test_other_instructions_may_wait_first(text):
    copy = line("IMAD.MOV.U32 R137, RZ, RZ, R150 ;", waits=(2,))
    listing = line(LOAD, counter=2) + line(text, waits=(2,)) + copy
    assert early_copies(list(instructions(listing))) == []


def test_a_copy_that_waits_for_another_load_is_passed_over():
    other = line("IMAD.MOV.U32 R136, RZ, RZ, R151 ;", waits=(1,))
    copy = line("IMAD.MOV.U32 R137, RZ, RZ, R150 ;", waits=(2,))
    listing = line(LOAD, counter=2) + other + copy
    assert early_copies(list(instructions(listing))) == ["IMAD.MOV.U32 R137, RZ, RZ, R150 ;"]


def test_code_without_the_load_of_a_word_is_refused():
    with pytest.raises(ValueError, match="none of 1 instructions is the load of a word"):
        early_copies(list(instructions(line("NOP ;"))))


def test_kernels_of_each_way_to_gather_are_read():
    found = early_waits.configurations().values()
    ways = {(one.staged, one.chunks > 1, one.kind.backward) for one in found}
    assert ways >= {(True, False, False), (True, True, False), (False, False, False)}
    assert ways >= {(True, False, True), (False, False, True)}
    assert any(one.kind.resets for one in found)


def test_a_missing_nvdisasm_is_named(monkeypatch, capsys):
    monkeypatch.setattr(early_waits.shutil, "which", lambda name: None)
    assert early_waits.main() == 1
    assert "nvdisasm is missing" in capsys.readouterr().out


def test_known_kernels_are_among_those_that_are_read():
    assert early_waits.KNOWN.keys() <= early_waits.configurations().keys()
