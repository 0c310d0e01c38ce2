"""Streams of CuPy 13 and CuPy 14, by stand-ins that have the names of each."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from dnnffi import RNNSpec, RNNWeights, gru
from dnnffi.device.cupy import CupyMemory


class ExternalStream:
    """CuPy 13's stream of an address."""

    def __init__(self, ptr):
        self.ptr = ptr


class Stream:
    """CuPy 13's stream."""


class StreamOf14:
    """CuPy 14's stream, which takes any object that has a stream."""

    def __init__(self, ptr):
        self.ptr = ptr

    @classmethod
    def from_external(cls, stream):
        return cls(stream.ptr)


class ndarray:
    """Stand-in for `cupy.ndarray`, of which no array is an instance."""


@pytest.fixture(params=[("13.6.0", Stream), ("14.0.0", StreamOf14)], ids=["13", "14"])
def cupy(request, monkeypatch):
    """A module with the names of CuPy that `CupyMemory` takes."""
    version, stream = request.param
    module = ModuleType("cupy")
    module.__version__ = version
    module.ndarray, module.zeros = ndarray, None
    runtime = SimpleNamespace(is_hip=False, getDevice=lambda: 0, getDeviceCount=lambda: 1)
    module.cuda = SimpleNamespace(
        runtime=runtime,
        Stream=stream,
        ExternalStream=ExternalStream,
        get_current_stream=lambda: SimpleNamespace(ptr=0),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_a_stream_of_dnnffi_becomes_one_of_cupy(cupy):
    found = CupyMemory()._on_stream(SimpleNamespace(ptr=0x7000))
    expected = ExternalStream if cupy.cuda.Stream is Stream else StreamOf14
    assert type(found) is expected
    assert found.ptr == 0x7000


def test_calls_on_numpy_arrays_do_not_depend_on_the_version(cupy):
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=4)
    weights = RNNWeights.random(spec, np.random.default_rng(0))
    y, _ = gru(np.ones((2, 1, 3), np.float32), None, weights)
    assert y.shape == (2, 1, 4)
