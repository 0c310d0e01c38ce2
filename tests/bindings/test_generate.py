"""The generated modules: the same text gives the same bytes, and the committed ones are current."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import generate
import pytest
from vendors import VENDORS


@pytest.mark.parametrize("name", VENDORS)
def test_same_text_gives_same_bytes_anywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = generate.generate(VENDORS[name])
    monkeypatch.chdir(tmp_path)
    assert generate.generate(VENDORS[name]) == here


def test_committed_modules_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    status = generate.main(["--check"])
    assert status == 0, capsys.readouterr().out


def test_difference_names_what_changed() -> None:
    vendor = VENDORS["cudnn"]
    shorter = replace(vendor, topics=vendor.topics[:-1])
    words = generate.differences(generate.generate(shorter), generate.generate(vendor))
    (only,) = [line for line in words if line.startswith("only in the C text")]
    assert "cudnnBackendExecute" in only
    assert "cudnnCreateTensorDescriptor" not in only


def test_missing_module_is_a_difference() -> None:
    assert generate.differences("", "code\n") == ["the file does not exist"]


def test_equal_modules_do_not_differ() -> None:
    assert generate.differences("code\n", "code\n") == []


def test_addresses_are_integers_to_python() -> None:
    from dnnffi.backends.cudnn._cdef import ffi

    forward = ffi.typeof("cudnnStatus_t(*)(const dev_ptr, dev_ptr_int32, stream_ptr)")
    assert {argument.cname for argument in forward.args} == {"uintptr_t"}
    assert forward.result.cname == "int"
