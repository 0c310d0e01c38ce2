"""Mark the tests of this folder; a run with ``--record`` writes docs/verification/gpu.json.

The record states which tests ran on which machine, with which outcome, and carries a hash of src,
which tells whether the record belongs to this code.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from verification import pytest_runtest_call, refused, write  # noqa: F401

from dnnffi.rnn import tuner, tuning
from dnnffi.runtime import kernels

HERE = Path(__file__).resolve().parent

# JAX is to leave the device's memory to others: CuPy, PyTorch, tests in other processes.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# XLA ends a process whose devices do not meet within 30 s, which may be short beside other tests.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_executable_terminate_timeout=120")


@pytest.fixture(scope="session", autouse=True)
def shared_kernels(tmp_path_factory):
    """Let the processes of a run share compiled kernels: most are of the tests of several."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "kernel_folder", lambda: folder / "kernels")
        yield


@pytest.fixture
def replayed(monkeypatch):
    """Let graphs win every measurement, whatever else the machine is doing."""
    choose = tuning.choose

    def by_graphs(times, left_out, source="measured"):
        slower = {name: t._replace(direct=(t.direct or 0) + 1e6) for name, t in times.items()}
        return choose(slower, left_out, source)

    monkeypatch.setattr(tuning, "choose", by_graphs)
    monkeypatch.setattr(tuner, "choose", by_graphs)


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.path).is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)


def pytest_terminal_summary(terminalreporter):
    write(terminalreporter, "gpu.json", HERE, environment)


def environment():
    import cupy

    from dnnffi.cli.machine import machine

    return machine("gpu", ()) | {"devices": cupy.cuda.runtime.getDeviceCount()}
