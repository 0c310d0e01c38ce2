from __future__ import annotations

import os
import subprocess

import pytest

import dnnffi
from dnnffi.cli import probe
from dnnffi.cli.machine import driver_version, machine
from dnnffi.cli.sources import part_hashes, source_hash


def test_the_machine_without_a_gpu():
    found = machine("cpu", ())
    assert found["device"] == "CPU"
    assert found["dnnffi"] == dnnffi.__version__
    assert {"date", "python", "numpy"} <= found.keys()
    assert found["src_sha256"] == source_hash()
    assert found["source"] == part_hashes()
    assert "torch" not in found


def test_a_peer_is_named_with_its_version():
    torch = pytest.importorskip("torch")
    assert machine("cpu", ("torch",))["torch"] == torch.__version__


def test_torchrl_is_named_with_the_packages_that_it_computes_with(monkeypatch):
    monkeypatch.setattr(probe, "package", lambda name: probe.Package(name, version=f"1 {name}"))
    found = machine("cpu", ("torchrl",))
    peers = ["torch", "torchrl", "triton"]
    assert [found[name] for name in peers] == [f"1 {name}" for name in peers]


@pytest.mark.parametrize(
    ("said", "version"), [("580.1\n580.1\n", "580.1"), ("", "unknown"), (None, "unknown")]
)
def test_the_driver_says_its_version_or_it_is_unknown(monkeypatch, said, version):
    def run(arguments, **keywords):
        if said is None:
            raise FileNotFoundError(arguments[0])
        return subprocess.CompletedProcess(arguments, 0, said)

    monkeypatch.setattr(subprocess, "run", run)
    assert driver_version() == version


def test_a_driver_that_says_what_is_not_utf_8_is_quoted(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_bytes(b"#!/bin/sh\nprintf '580.1\\351\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert driver_version() == "580.1\N{REPLACEMENT CHARACTER}"
