"""Device memory on a driver without a device; see ``tests/runtime``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dnnffi.device import cupy, memory
from dnnffi.device.cupy import CupyMemory
from dnnffi.device.external import ExternalMemory, array
from dnnffi.device.interface import StreamAt
from simulators.cuda.driver import driver, driver_path, runtime, standin  # noqa: F401


class FakeCupy:
    """The parts of CuPy that `CupyMemory` uses, without arrays: streams of which one is current."""

    def __init__(self, runtime):  # noqa: F811
        self.streams = [StreamAt(0)]
        self.pools = []
        self.ndarray = self.zeros = None
        outer = self

        class Stream:
            def __init__(self, ptr):
                self.ptr = ptr

            @classmethod
            def from_external(cls, stream):
                version, ptr = stream.__cuda_stream__()
                assert version == 0
                return cls(ptr)

            def __enter__(self):
                outer.streams.append(self)

            def __exit__(self, *raised):
                outer.streams.pop()

        class MemoryPool:
            def __init__(self):
                self.malloc, self.is_used, self.is_freed = object(), False, False
                outer.pools.append(self)

            def free_all_blocks(self):
                self.is_freed = True

        class using_allocator:
            def __init__(self, malloc):
                self.pool = next(pool for pool in outer.pools if pool.malloc is malloc)

            def __enter__(self):
                self.pool.is_used = True

            def __exit__(self, *raised):
                self.pool.is_used = False

        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                is_hip=False,
                getDevice=runtime.current_device,
                getDeviceCount=runtime.device_count,
            ),
            get_current_stream=lambda: self.streams[-1],
            Stream=Stream,
            MemoryPool=MemoryPool,
            using_allocator=using_allocator,
            Device=runtime.use,
        )


@pytest.fixture
def on_standin(runtime, monkeypatch):  # noqa: F811
    """Let every memory be on the stand-in driver."""
    for module in (memory, array):
        monkeypatch.setattr(module, "device_runtime", lambda kind: runtime)
    return runtime


@pytest.fixture
def fake_cupy(on_standin, monkeypatch):
    found = FakeCupy(on_standin)
    monkeypatch.setattr(cupy, "import_cupy", lambda: found)
    return found


@pytest.fixture(params=["cupy", "external"])
def device_memory(request, on_standin):
    """Memory with each kind of arrays."""
    if request.param == "cupy":
        request.getfixturevalue("fake_cupy")
        made = CupyMemory()
    else:
        made = ExternalMemory("cuda")
    yield made
    made._null_streams.clear()
    made._local.__dict__.clear()
    made._branches._local.__dict__.clear()
