"""Which engine an array goes to, with a CuPy that is a few lines."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from conformance_conv import TABLE, refusal

from dnnffi.backends.cudnn import library as cudnn
from dnnffi.backends.miopen import library as miopen
from dnnffi.convolution import engines as conv
from dnnffi.device.arrays import kind
from dnnffi.device.cupy import CupyMemory
from dnnffi.errors import LibraryNotFoundError, UnsupportedError
from dnnffi.rnn.engines import CudnnEngine, MiopenEngine, engine


def fake_cupy(monkeypatch, is_hip):
    module = ModuleType("cupy")
    module.ndarray = type("ndarray", (), {"data": SimpleNamespace(device_id=3)})
    module.zeros = None
    runtime = SimpleNamespace(is_hip=is_hip, getDevice=lambda: 0, getDeviceCount=lambda: 1)
    module.cuda = SimpleNamespace(runtime=runtime, alloc=None, get_current_stream=None)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(cudnn, "_current", None)
    monkeypatch.setattr(miopen, "_current", None)
    return module


def library_of(kind_of_library, memory):
    return SimpleNamespace(
        kind=kind_of_library, memory=memory, engine=None, vendor="library", version_text="1.0"
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
    module = fake_cupy(monkeypatch, is_hip)
    array = module.ndarray()
    assert kind(array) == ("rocm" if is_hip else "cuda")
    memory = CupyMemory()
    rooms = {"cudnn": (cudnn, "cuda", CudnnEngine), "miopen": (miopen, "rocm", MiopenEngine)}
    for name, (room, kind_of_library, _) in rooms.items():
        if found or name == own:
            monkeypatch.setattr(room, "_current", library_of(kind_of_library, memory))
        else:
            missing = LibraryNotFoundError(name, (), "nothing")
            monkeypatch.setattr(room, "PLACES", ())
            assert missing
    taken = engine(None, array)
    assert type(taken) is rooms[own][2]
    assert taken.place("x", array) == 3
    with pytest.raises(TypeError, match=message):
        engine(other, array).place("x", array)


@pytest.mark.parametrize("name", ["cudnn", "miopen"])
def test_convolutions_without_cupy_are_as_the_documentation_says(monkeypatch, name):
    (row,) = (row for row in TABLE["ROWS"] if row.limits is TABLE["ALLOCATOR"])
    limit = refusal(TABLE["cell"](row, name))
    made = object()
    networks = SimpleNamespace(name=name, library=SimpleNamespace(conv_engine=made))
    monkeypatch.setattr(conv, "engine_without_cupy", lambda backend, x: networks)
    if limit:
        with pytest.raises(UnsupportedError) as caught:
            conv.conv_engine_without_cupy(name, None)
        assert caught.value.limit == limit
    else:
        assert conv.conv_engine_without_cupy(name, None) is made
