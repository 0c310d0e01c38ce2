"""Tests of finding the packages of the folder; they do not need the folder itself."""

from __future__ import annotations

import pytest

from simulators.gfx1100 import root

SHOWN = """\
Package: libmiopen1
Depends: libamdhip64-6 (>= 6.1), libc6 (>= 2.38), liba:any | libb, libclang-common-21-dev
Section: libs
"""


def test_names_of_dependencies_have_no_versions():
    names = ["libamdhip64-6", "libc6", "liba", "libclang-common-21-dev"]
    assert root.parse_dependencies(SHOWN) == names


def test_the_version_of_llvm_is_that_of_the_headers():
    assert root.llvm_version(root.parse_dependencies(SHOWN)) == "21"


def test_what_is_not_found_is_said():
    with pytest.raises(root.UnavailableError, match="no dependencies"):
        root.parse_dependencies("")
    with pytest.raises(root.UnavailableError, match="headers of a clang"):
        root.llvm_version(["libc6"])


def test_a_machine_without_debootstrap_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(root.os, "geteuid", lambda: 0)
    monkeypatch.setattr(root.shutil, "which", lambda tool: None)
    with pytest.raises(root.UnavailableError, match=r"debootstrap is not installed|Linux on amd64"):
        root.make(tmp_path / "root")
