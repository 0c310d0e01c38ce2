"""Tests of ``--may-skip`` of ``run.py``; they do not need the folder."""

from __future__ import annotations

import pytest

from simulators.gfx1100 import run


@pytest.fixture(autouse=True)
def no_folder(monkeypatch):
    def unavailable():
        raise run.root.UnavailableError("debootstrap is not installed")

    monkeypatch.setattr(run, "make_once", unavailable)
    monkeypatch.delenv("CI", raising=False)


@pytest.mark.parametrize(
    ("arguments", "ci", "code"),
    [
        (["--may-skip", "pytest"], None, 0),
        (["--may-skip", "pytest"], "", 0),
        (["--may-skip", "pytest"], "true", 1),
        (["pytest"], None, 1),
        (["pytest"], "true", 1),
    ],
)
def test_only_a_developers_machine_may_leave_them_out(monkeypatch, capsys, arguments, ci, code):
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    assert run.main(arguments) == code
    said = capsys.readouterr().err
    assert "THE TESTS OF libMIOpen DID NOT RUN: debootstrap is not installed" in said
