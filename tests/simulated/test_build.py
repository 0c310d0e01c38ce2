"""Tests of the stand-in's requirements, and that tests without it fail instead of being skipped."""

from __future__ import annotations

from types import SimpleNamespace

import needs
import pytest

from simulators.cudnn import build
from simulators.errors import UnavailableError


def config(*without):
    return SimpleNamespace(getoption={"--without": list(without)}.__getitem__)


def test_a_test_without_what_it_needs_fails_unless_that_may_be_missing():
    with pytest.raises(pytest.fail.Exception, match=r"^none here\n.*pytest --without headers "):
        needs.missing(config("compiler"), "headers", "none here")
    with pytest.raises(pytest.skip.Exception, match=r"^none here$"):
        needs.missing(config("compiler", "headers"), "headers", "none here")


def test_without_headers_the_package_that_has_them_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "_site_packages", lambda: [str(tmp_path)])
    with pytest.raises(UnavailableError, match="pip install nvidia-cudnn-cu13") as caught:
        build.build()
    assert caught.value.what == "headers"


def test_headers_of_another_version_are_none(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "_site_packages", lambda: [str(tmp_path)])
    folder = tmp_path / "nvidia" / "cudnn" / "include"
    folder.mkdir(parents=True)
    (folder / "cudnn_version.h").write_text("#define CUDNN_MAJOR 8\n")
    with pytest.raises(UnavailableError, match="no headers of cuDNN 9"):
        build.find_headers()
    (folder / "cudnn_version.h").write_text("#define CUDNN_MAJOR 9\n")
    assert build.find_headers() == folder


def test_without_a_compiler_its_name_is_said(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -O0")
    with pytest.raises(UnavailableError, match="no C compiler no-such-compiler") as caught:
        build._compiler()
    assert caught.value.what == "compiler"
    monkeypatch.setattr(needs.shutil, "which", lambda name: None)
    with pytest.raises(pytest.fail.Exception, match=r"no compiler c\+\+\n.*--without compiler "):
        needs.program(config(), "c++")
