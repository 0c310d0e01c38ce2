"""Arrays of PyTorch and CuPy are read from their attributes: both libraries are a few lines."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from dnnffi.device.external import array, device_array, known, using

CURRENT_STREAM = 0x50


class FakeTensor:
    """A contiguous tensor on a GPU; its DLPack capsule counts how often it is asked for."""

    __module__ = "torch"

    def __init__(self, **attributes):
        self.is_cuda, self.dtype, self.shape = True, "torch.float32", [2, 3]
        self.contiguous, self.address, self.capsules = True, 0x7000, []
        self.__dict__.update(attributes)

    def is_contiguous(self):
        return self.contiguous

    def get_device(self):
        return 1

    def data_ptr(self):
        if self.address is None:
            raise RuntimeError("no memory of its own")
        return self.address

    def __dlpack_device__(self):
        return 2, 1

    def __dlpack__(self, stream):
        self.capsules.append(stream)
        raise BufferError("asked for a capsule")


class Parameter(FakeTensor):
    """A subclass."""


@pytest.fixture(autouse=True)
def torch(monkeypatch):
    module = ModuleType("torch")
    module.Tensor = FakeTensor
    module.version = SimpleNamespace(hip=None)
    module._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda device: CURRENT_STREAM)
    for name in known._DTYPE_NAMES:
        setattr(module, name, f"torch.{name}")
    monkeypatch.setitem(sys.modules, "torch", module)
    known._pytorch.cache_clear()
    yield module
    known._pytorch.cache_clear()


def test_a_tensor_is_read_without_a_capsule():
    given = FakeTensor()
    with using(stream=CURRENT_STREAM):
        found = device_array("x", given)
    assert found.owner is given
    assert (found.kind, found.shape, found.dtype) == ("cuda", (2, 3), np.float32)
    assert (found.data.ptr, found.data.device_id) == (0x7000, 1)
    assert given.capsules == []


def test_a_tensor_of_pytorch_for_rocm_is_on_rocm(torch):
    torch.version.hip = "7.0"
    with using(stream=CURRENT_STREAM):
        assert device_array("x", FakeTensor()).kind == "rocm"


@pytest.mark.parametrize(
    "given",
    [
        FakeTensor(contiguous=False),
        FakeTensor(dtype="torch.int64"),
        FakeTensor(address=None),
        FakeTensor(address=0, shape=[0, 3]),
        FakeTensor(is_cuda=False),
        Parameter(),
    ],
    ids=["gaps", "integers", "torch.func", "empty", "host", "subclass"],
)
def test_other_tensors_go_through_a_capsule(given):
    with using(stream=CURRENT_STREAM), pytest.raises(BufferError):
        device_array("x", given)
    assert given.capsules == [CURRENT_STREAM]


def test_a_tensor_of_another_stream_goes_through_a_capsule_which_orders_the_streams():
    given = FakeTensor()
    with using(stream=0x60), pytest.raises(BufferError):
        device_array("x", given)
    assert given.capsules == [0x60]


def test_without_pytorch_nothing_is_a_tensor(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert known.read_known(FakeTensor(), CURRENT_STREAM) is None


def test_a_tensor_of_the_allocator_is_not_asked_whether_it_is_writable(monkeypatch):
    monkeypatch.setattr(array, "device_runtime", lambda kind: SimpleNamespace(current_device=one))
    monkeypatch.setattr(
        *(FakeTensor, "__cuda_array_interface__"), property(lambda self: 1 / 0), raising=False
    )
    made = FakeTensor()
    with using(lambda shape, dtype: made, stream=CURRENT_STREAM):
        assert array.allocated((2, 3), np.dtype("f4"), "cuda").owner is made
        for shape, dtype in (((3, 2), "f4"), ((2, 3), "f8")):
            with pytest.raises((ValueError, TypeError), match="must have"):
                array.allocated(shape, np.dtype(dtype), "cuda")


def one():
    return 1


class FakeNdarray:
    """A contiguous array of CuPy; its DLPack capsule counts how often it is asked for."""

    def __init__(self, **attributes):
        self.data = SimpleNamespace(ptr=0x7000, device_id=1)
        self.shape, self.size, self.dtype = (2, 3), 6, np.dtype("f4")
        self._c_contiguous, self.capsules = True, []
        self.__dict__.update(attributes)

    __dlpack_device__, __dlpack__ = FakeTensor.__dlpack_device__, FakeTensor.__dlpack__


@pytest.fixture
def cupy(monkeypatch):
    module = ModuleType("cupy")
    module.ndarray = FakeNdarray
    module.cuda = SimpleNamespace(
        runtime=SimpleNamespace(is_hip=False),
        get_current_stream=lambda: SimpleNamespace(ptr=CURRENT_STREAM),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.mark.parametrize("is_hip", [False, True])
def test_an_array_of_cupy_is_read_without_a_capsule(cupy, is_hip):
    cupy.cuda.runtime.is_hip = is_hip
    given = FakeNdarray()
    with using(stream=CURRENT_STREAM):
        found = device_array("x", given)
    assert found.owner is given
    assert (found.kind, found.shape) == ("rocm" if is_hip else "cuda", (2, 3))
    assert (found.data.ptr, found.data.device_id) == (0x7000, 1)


@pytest.mark.parametrize(
    ("given", "stream"),
    [
        (FakeNdarray(_c_contiguous=False), CURRENT_STREAM),
        (FakeNdarray(size=0), CURRENT_STREAM),
        (FakeNdarray(), 0x60),
    ],
    ids=["gaps", "empty", "another stream"],
)
@pytest.mark.usefixtures("cupy")
def test_other_arrays_of_cupy_go_through_a_capsule(given, stream):
    with using(stream=stream), pytest.raises(BufferError):
        device_array("x", given)
    assert given.capsules == [stream]
