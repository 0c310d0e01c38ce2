"""The adapter that these tests need: a GPU, or Mesa's lavapipe without one.

A run with ``--record`` writes docs/verification/vulkan.json, on a GPU vulkan_gpu.json.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import needs
import numpy as np
import pytest
from verification import pytest_runtest_call, refused, write  # noqa: F401

import dnnffi
from dnnffi import RNNSpec, testing
from dnnffi.backends.vulkan.device import open_device
from dnnffi.cli.machine import machine

HERE = Path(__file__).resolve().parent


def pytest_terminal_summary(terminalreporter):
    if terminalreporter.config.getoption("--record"):
        cpu = open_device().cpu
        write(terminalreporter, "vulkan.json" if cpu else "vulkan_gpu.json", HERE, environment)


def environment():
    found = machine("cpu", ())
    verified = f"{open_device()}, wgpu {version('wgpu')}"
    return found | {"device": str(open_device()), "verified": verified}


@pytest.fixture(scope="session")
def device(pytestconfig):
    return needs.check_vulkan(pytestconfig)


@pytest.fixture
def submissions(device, monkeypatch):
    """The submissions to the queue so far, a list."""
    submit, made = device.queue.submit, []

    def count(buffers):
        made.append(buffers)
        return submit(buffers)

    monkeypatch.setattr(device.queue, "submit", count)
    return made


@pytest.fixture
def writes(device, monkeypatch):
    """The sizes in bytes of the uploads so far, a list."""
    write, made = device.queue.write_buffer, []

    def count(buffer, offset, data):
        made.append(data.nbytes)
        return write(buffer, offset, data)

    monkeypatch.setattr(device.queue, "write_buffer", count)
    return made


SPECS = [
    RNNSpec(mode="gru", input_size=5, hidden_size=7),
    RNNSpec(mode="lstm", input_size=4, hidden_size=6, proj_size=3, num_layers=2),
    RNNSpec(mode="lstm", input_size=3, hidden_size=8, bidirectional=True, bias=False),
    RNNSpec(mode="rnn_tanh", input_size=6, hidden_size=5, num_layers=2, bidirectional=True),
    RNNSpec(mode="rnn_relu", input_size=2, hidden_size=4, dtype="float16"),
]


@pytest.fixture(params=SPECS, ids=str)
def spec(request):
    return request.param


@pytest.fixture(params=[one for one in SPECS if not one.bidirectional], ids=str)
def causal_spec(request):
    return request.param


@pytest.fixture
def gru(device):
    """A packed GRU with input size 5 and hidden size 7."""
    with dnnffi.pack_rnn(testing.weights(SPECS[0], 0), SPECS[0]) as context:
        yield context


@pytest.fixture
def x():
    """Four steps of three rows for `gru`."""
    return np.random.default_rng(0).standard_normal((4, 3, 5)).astype("float32")
