"""Tests of the choice of a backend for an array, with a minimal stand-in of CuPy."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from dnnffi.backends import registry
from dnnffi.backends.cudnn import library as cudnn
from dnnffi.backends.miopen import library as miopen
from dnnffi.backends.resources import Backends, resources_of
from dnnffi.device.arrays import kind
from dnnffi.device.cupy import CupyMemory
from dnnffi.errors import LibraryNotFoundError
from dnnffi.rnn.backend import rnn_backends

LIBRARIES = {"cudnn": (cudnn, "cuda"), "miopen": (miopen, "rocm")}


def fake_cupy(monkeypatch, is_hip):
    module = ModuleType("cupy")
    module.ndarray = type("ndarray", (), {"data": SimpleNamespace(device_id=3)})
    module.zeros = None
    runtime = SimpleNamespace(is_hip=is_hip, getDevice=lambda: 0, getDeviceCount=lambda: 1)
    module.cuda = SimpleNamespace(runtime=runtime, alloc=None, get_current_stream=None)
    monkeypatch.setitem(sys.modules, "cupy", module)
    for module_of_library, _ in LIBRARIES.values():
        monkeypatch.setattr(module_of_library._process, "current", None)
    return module


def library_of(kind_of_library, memory):
    return SimpleNamespace(
        kind=kind_of_library, memory=memory, vendor="library", version_text="1.0"
    )


@pytest.mark.parametrize(
    ("is_hip", "own", "other", "message"),
    [
        (True, "miopen", "cudnn", r"^x must be an array on CUDA for backend 'cudnn'; .*ROCm, .*"),
        (False, "cudnn", "miopen", r"^x must be an array on ROCm for backend 'miopen'; .*CUDA, "),
    ],
)
@pytest.mark.parametrize("found", [False, True])
def test_an_array_of_the_other_platform(monkeypatch, is_hip, own, other, message, found):
    array = fake_cupy(monkeypatch, is_hip).ndarray()
    assert kind(array) == ("rocm" if is_hip else "cuda")
    for name, (module, kind_of_library) in LIBRARIES.items():
        if found or name == own:
            library = library_of(kind_of_library, CupyMemory())
            monkeypatch.setattr(module._process, "current", library)
        else:
            monkeypatch.setattr(module._process, "_locations", ())
    taken = rnn_backends.for_call(None, array)
    assert taken.name == own
    assert taken.device_of("x", array) == 3
    with pytest.raises(TypeError, match=message):
        rnn_backends.for_call(other, array).device_of("x", array)


def test_without_its_library_a_backend_says_so(monkeypatch):
    array = fake_cupy(monkeypatch, is_hip=False).ndarray()
    monkeypatch.setattr(cudnn._process, "_locations", ())
    with pytest.raises(LibraryNotFoundError, match=r"^cuDNN could not be loaded"):
        rnn_backends.for_call(None, array)


@pytest.mark.parametrize("name", ["cuda", ["cudnn"], 1, ""])
def test_a_name_that_is_none_of_a_backend(name):
    expected = TypeError if isinstance(name, list) else ValueError
    with pytest.raises(expected, match=r"^backend must be one of cudnn, miopen, vulkan, "):
        registry.backend_of(name, np.zeros(1))


def test_the_backends_have_names_and_kinds_of_arrays_of_their_own():
    backends = registry.BACKENDS.values()
    assert [backend.name for backend in backends] == list(registry.BACKENDS)
    by_array = [backend.kind for backend in backends if not backend.by_name]
    assert sorted(by_array) == ["cuda", "host", "rocm"]
    assert registry.backend_of(None, np.zeros(1)) is registry.BACKENDS["reference"]


def test_first_uses_by_several_threads_share_resources_and_what_is_kept_for_them(monkeypatch):
    fake_cupy(monkeypatch, is_hip=False)
    monkeypatch.setattr(cudnn._process, "current", library_of("cuda", CupyMemory()))
    record, barrier = registry.BACKENDS["cudnn"], Barrier(8)
    family = Backends("reference", lambda record, resources: object())

    def use(_):
        barrier.wait(30)
        return resources_of(record), family.of("cudnn")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(use, range(8)))
    finally:
        sys.setswitchinterval(before)
    assert len(found) == 1


def test_resources_of_a_library_that_is_no_longer_used_are_let_go(monkeypatch):
    fake_cupy(monkeypatch, is_hip=False)
    record = registry.BACKENDS["cudnn"]
    family = Backends("reference", lambda record, resources: object())
    monkeypatch.setattr(cudnn._process, "current", library_of("cuda", CupyMemory()))
    first = resources_of(record)
    of_first = family.of("cudnn")
    assert first.in_use
    assert family.used() == ("reference", of_first)
    monkeypatch.setattr(cudnn._process, "current", library_of("cuda", CupyMemory()))
    assert not first.in_use
    assert family.used() == ("reference",)
    second = resources_of(record)
    assert second is not first
    of_second = family.of("cudnn")
    assert of_second is not of_first
    assert family.used() == ("reference", of_second)
