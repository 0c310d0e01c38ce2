"""Tests of `make cuda-check`: what it compiles, what it reads from a log, and what it compares."""

from __future__ import annotations

import re
from pathlib import Path

import cuda_check
import needs
import pytest
from cuda_check import ARCHITECTURES, Resources, differences, programs, resources

from dnnffi.backends import own
from dnnffi.errors import LibraryNotFoundError
from dnnffi.runtime.nvrtc.compiler import load_compiler

ROOT = Path(__file__).resolve().parents[1]
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
ptxas         .     8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""
SECOND = Resources(8, 0, 0, 0)


@pytest.fixture(scope="module")
def compiler(pytestconfig):
    try:
        return load_compiler()
    except LibraryNotFoundError as error:
        needs.missing(pytestconfig, "libnvrtc", error)


def test_a_log_has_what_each_kernel_needs():
    assert resources(LOG) == {"first": Resources(255, 8, 16, 24), "second": SECOND}


def test_a_log_without_registers_is_refused():
    with pytest.raises(ValueError, match="registers of second"):
        resources(LOG.replace("Used 8 registers", ""))


def test_every_kernel_file_is_compiled():
    package = Path(own.__file__).parent
    files = {path.read_text(encoding="utf-8"): path for path in package.rglob("*.cu")}
    texts = {one.text for one, _ in programs().values()}
    assert len({path.parent for path in files.values()}) == 3
    assert [path for text, path in files.items() if text not in texts] == []


def test_every_kind_of_division_is_compiled():
    found = {
        (name, value)
        for one in cuda_check.configurations().values()
        for name, value in (one.kind._asdict() | one._asdict()).items()
    }
    flags = ("backward", "ragged", "strict", "narrow", "training", "staged", "cluster", "scatter")
    for name in (*flags, "far"):
        assert {(name, False), (name, True)} <= found, name
    for name in ("layers", "team", "chunks", "parts", "k_shared", "mode", "dtype", "rows"):
        assert len({value for one, value in found if one == name}) > 1, name


def test_the_record_has_each_kernel_for_each_architecture():
    _, recorded = cuda_check.read_record()
    for name, (one, needs_clusters) in programs().items():
        for arch in ARCHITECTURES:
            key = f"{name}, {arch}: {one.name}"
            assert (key in recorded) == (arch != "sm_80" or not needs_clusters), key


def test_differences_name_the_kernel():
    recorded = {"a, sm_80: f": SECOND, "b, sm_90: f": SECOND}
    assert differences(recorded, recorded, ARCHITECTURES) == []
    assert differences({"a, sm_80: f": SECOND}, recorded, ("sm_80",)) == []
    more = SECOND._replace(registers=9)
    (line,) = differences(recorded | {"b, sm_90: f": more}, recorded, ARCHITECTURES)
    assert re.match(r"b, sm_90: f: .*registers=9.*, recorded: .*registers=8", line)
    (line,) = differences({}, {"a, sm_80: f": SECOND}, ("sm_80",))
    assert line.startswith("a, sm_80: f: not compiled")


def test_a_record_that_was_written_is_read_again(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_check, "RECORD", tmp_path / "record.json")
    cuda_check.write_record("13.5", {"a, sm_80: f": SECOND})
    assert cuda_check.read_record() == ("13.5", {"a, sm_80: f": SECOND})


def test_the_record_is_of_the_version_that_is_installed_for_it():
    version = re.search(r"nvidia-cuda-nvrtc==(\S+)", (ROOT / ".ci" / "cuda.txt").read_text())[1]
    assert version.startswith(f"{cuda_check.read_record()[0]}.")


def test_another_version_of_nvrtc_is_not_compared(compiler, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cuda_check, "RECORD", tmp_path / "record.json")
    cuda_check.write_record("1.0", {})
    assert cuda_check.main([]) == 1
    assert "the record is of NVRTC 1.0" in capsys.readouterr().out


def test_with_another_version_of_nvrtc_kernels_are_compiled_only(
    compiler, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(cuda_check, "programs", lambda: {"narrow": programs()["narrow"]})
    monkeypatch.setattr(cuda_check, "RECORD", tmp_path / "record.json")
    cuda_check.write_record("1.0", {})
    assert cuda_check.main(["--compile-only", "--architecture", "sm_90"]) == 0
    assert "1 kernels compiled" in capsys.readouterr().out
    assert cuda_check.read_record() == ("1.0", {})


def test_a_kernel_that_needs_something_else_fails(compiler, monkeypatch, tmp_path, capsys):
    some = {"narrow": programs()["narrow"]}
    monkeypatch.setattr(cuda_check, "programs", lambda: some)
    monkeypatch.setattr(cuda_check, "RECORD", tmp_path / "record.json")
    assert cuda_check.main(["--write"]) == 0
    assert cuda_check.main(["--architecture", "sm_90"]) == 0
    assert "all need what is recorded" in capsys.readouterr().out
    version, recorded = cuda_check.read_record()
    name = "narrow, sm_90: narrow_rows"
    changed = recorded[name]._replace(registers=1)
    cuda_check.write_record(version, recorded | {name: changed})
    assert cuda_check.main([]) == 1
    assert name in capsys.readouterr().out
