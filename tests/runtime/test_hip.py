"""Tests of the HIP runtime's calls on a stand-in that has its memory on the host."""

from __future__ import annotations

import ctypes
import re
from types import SimpleNamespace

import numpy as np
import pytest

from dnnffi.errors import LibraryNotFoundError
from dnnffi.runtime import devices, hip
from dnnffi.runtime.devices import device_runtime, kind_in_process
from dnnffi.runtime.hip import HipRuntime, RuntimeCallError


class Library:
    """Stand-in of libamdhip64 whose functions return ``status`` if it is not 0."""

    def __init__(self):
        self.device, self.status, self.called = 0, 0, []

    def __getattr__(self, name):
        if not name.startswith("hip"):
            raise AttributeError(name)

        def call(*arguments):
            self.called.append(name)
            return self.status or getattr(self, f"_{name[3:]}", lambda *_: 0)(*arguments)

        found = Function(call)
        setattr(self, name, found)
        return found

    def _GetErrorName(self, status):
        return None if status == 9 else b"hipErrorOther"

    def _GetDevice(self, out):
        out._obj.value = self.device

    def _GetDeviceCount(self, out):
        out._obj.value = 3

    def _SetDevice(self, device):
        self.device = device

    def _MemcpyAsync(self, target, source, nbytes, kind, stream):
        assert kind == 4
        ctypes.memmove(target, source, nbytes.value)

    def _Memcpy2DAsync(self, target, to_pitch, source, from_pitch, width, rows, kind, stream):
        assert kind == 4
        for row in range(rows.value):
            to, start = (
                address.value + row * pitch.value
                for address, pitch in ((target, to_pitch), (source, from_pitch))
            )
            ctypes.memmove(to, start, width.value)

    def _MemsetAsync(self, target, value, nbytes, stream):
        ctypes.memset(target, value, nbytes.value)

    def _EventCreateWithFlags(self, out, flags):
        assert flags.value == 2
        out._obj.value = 0x100


class Function:
    """A function with a settable ``restype``, like functions of ctypes."""

    restype = None

    def __init__(self, call):
        self._call = call

    def __call__(self, *arguments):
        return self._call(*arguments)


@pytest.fixture
def library():
    return Library()


@pytest.fixture
def runtime(library):
    return HipRuntime(library)


def test_a_block_runs_on_its_device(runtime, library):
    assert runtime.device_count() == 3
    with runtime.use(2):
        assert runtime.current_device() == 2
    with runtime.use(0):
        pass
    assert runtime.current_device() == 0
    assert library.called.count("hipSetDevice") == 2  # for a block on the current device none


def test_copies_and_zeros(runtime, library):
    source, target = np.arange(4, dtype=np.uint8), np.ones(6, np.uint8)
    runtime.copy(target.ctypes.data, source.ctypes.data, 4, 0)
    runtime.clear(target.ctypes.data + 4, 1, 0)
    assert target.tolist() == [0, 1, 2, 3, 0, 1]
    before = len(library.called)
    runtime.copy(0, 0, 0, 0)
    runtime.clear(0, 0, 0)
    assert len(library.called) == before


def test_rows_are_copied_by_their_pitches(runtime, library):
    source, target = np.arange(12, dtype=np.uint8).reshape(3, 4), np.zeros((3, 5), np.uint8)
    ends = target.ctypes.data + 1, 5, source.ctypes.data, 4
    runtime.copy_rows(*ends, 2, 3, 0)
    np.testing.assert_array_equal(target, np.pad(source[:, :2], ((0, 0), (1, 2))))
    before = len(library.called)
    runtime.copy_rows(*ends, 0, 3, 0)
    runtime.copy_rows(*ends, 2, 0, 0)
    assert len(library.called) == before


def test_events_order_streams_and_are_destroyed(runtime, library):
    event = runtime.new_event()
    runtime.record(event, 16)
    runtime.wait(32, event)
    runtime.synchronize(32)
    del event
    assert library.called == [
        *("hipEventCreateWithFlags", "hipEventRecord", "hipStreamWaitEvent"),
        *("hipStreamSynchronize", "hipEventDestroy"),
    ]


def test_a_call_that_fails_raises_the_name_of_its_status(runtime, library):
    library.hipGetErrorName = lambda status: library._GetErrorName(status)
    for status, text in ((2, "hipErrorOther"), (9, "an error")):
        library.status = status
        with pytest.raises(RuntimeCallError, match=rf"hipGetDeviceCount returned {text}") as raised:
            runtime.device_count()
        assert raised.value.status == status


def test_an_event_that_cannot_be_made_is_not_destroyed(runtime, library):
    library.hipGetErrorName = lambda status: b"hipErrorOutOfMemory"
    library.status = 2
    with pytest.raises(RuntimeCallError, match="hipErrorOutOfMemory"):
        runtime.new_event()
    assert "hipEventDestroy" not in library.called


def test_the_runtime_of_rocm_is_opened_once(monkeypatch, library):
    opened = []

    def load(*given):
        opened.append(given)
        return SimpleNamespace(lib=library)

    monkeypatch.setattr(hip.loader, "load", load)
    device_runtime.cache_clear()
    try:
        assert device_runtime("rocm") is device_runtime("rocm")
        assert device_runtime("rocm").kind == "rocm"
    finally:
        device_runtime.cache_clear()
    assert len(opened) == 1


def test_the_runtime_of_cuda_needs_a_driver(monkeypatch, driver):
    def missing():
        raise LibraryNotFoundError("CUDA's driver", ["here"], "a GPU")

    device_runtime.cache_clear()
    try:
        monkeypatch.setattr(devices, "load_driver", missing)
        with pytest.raises(LibraryNotFoundError):
            device_runtime("cuda")
        monkeypatch.setattr(devices, "load_driver", lambda: driver)
        assert device_runtime("cuda").driver is driver
    finally:
        device_runtime.cache_clear()


@pytest.mark.parametrize(
    ("mapped", "expected"),
    [
        (["/lib/libcuda.so.580.65.06"], "cuda"),
        (["/lib/libcudart.so.13"], "cuda"),
        (["/lib/libamdhip64.so.7"], "rocm"),
    ],
)
def test_the_kind_of_a_process_is_that_of_the_runtime_it_has_loaded(monkeypatch, mapped, expected):
    monkeypatch.setattr(devices.loader, "mapped_libraries", matching(mapped))
    assert kind_in_process() == expected


@pytest.mark.parametrize(
    ("mapped", "said"),
    [([], "neither runtime"), (["libcuda.so.1", "libamdhip64.so"], "both runtimes")],
)
def test_a_process_with_no_runtime_or_two_does_not_tell(monkeypatch, mapped, said):
    monkeypatch.setattr(devices.loader, "mapped_libraries", matching(mapped))
    with pytest.raises(TypeError, match=said):
        kind_in_process()


def matching(mapped):
    return lambda name: [one for one in mapped if re.fullmatch(name, one.rpartition("/")[2])]
