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
        self.layout, self.requires_grad, self.negative = "torch.strided", False, False
        self.__dict__.update(attributes)

    def is_neg(self):
        return self.negative

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
    module.strided = "torch.strided"
    module._C = SimpleNamespace(
        _cuda_getCurrentRawStream=lambda device: CURRENT_STREAM, _is_tracing=lambda: False
    )
    module.autograd = SimpleNamespace(forward_ad=SimpleNamespace(_current_level=-1))
    module.autograd.forward_ad.unpack_dual = lambda tensor: SimpleNamespace(tangent=None)
    module.is_grad_enabled = lambda: False
    for name in known._DTYPE_NAMES:
        setattr(module, name, f"torch.{name}")
    monkeypatch.setitem(sys.modules, "torch", module)
    forget()
    yield module
    forget()


def forget():
    known._pytorch.cache_clear()
    known._reader.cache_clear()


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


def test_a_tensor_that_is_more_than_its_memory_is_read_in_another_form():
    plain = FakeTensor()
    for given in (FakeTensor(requires_grad=True), FakeTensor(negative=True)):
        given.detach = given.resolve_neg = lambda: plain
        with using(stream=CURRENT_STREAM):
            assert known.read_known(given, CURRENT_STREAM) is None
            assert device_array("x", given).owner is plain


@pytest.mark.parametrize("mode", ["traced", "forward-mode differentiation"])
def test_no_tensor_is_read_in_a_mode_that_its_attributes_do_not_show(torch, mode):
    if mode == "traced":
        torch._C._is_tracing = lambda: True
    else:
        torch.autograd.forward_ad._current_level = 0
    known._pytorch.cache_clear()
    assert known.read_known(FakeTensor(), CURRENT_STREAM) is None


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
    with using(stream=CURRENT_STREAM), pytest.raises(TypeError, match="asked for a capsule"):
        device_array("x", given)
    assert given.capsules == [CURRENT_STREAM]


def test_a_tensor_of_another_stream_goes_through_a_capsule_which_orders_the_streams():
    given = FakeTensor()
    with using(stream=0x60), pytest.raises(TypeError, match="asked for a capsule"):
        device_array("x", given)
    assert given.capsules == [0x60]


def test_without_pytorch_nothing_is_a_tensor(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    forget()
    assert known.read_known(FakeTensor(), CURRENT_STREAM) is None


def test_a_tensor_of_the_allocator_is_not_asked_whether_it_is_writable(monkeypatch):
    monkeypatch.setattr(array, "device_runtime", lambda kind: Runtime())
    monkeypatch.setattr(
        *(FakeTensor, "__cuda_array_interface__"), property(lambda self: 1 / 0), raising=False
    )
    made = FakeTensor()
    with using(lambda shape, dtype: made, stream=CURRENT_STREAM):
        assert array.allocated((2, 3), np.dtype("f4"), "cuda").owner is made
        for shape, dtype in (((3, 2), "f4"), ((2, 3), "f8")):
            with pytest.raises((ValueError, TypeError), match="must have"):
                array.allocated(shape, np.dtype(dtype), "cuda")


@pytest.fixture
def unaligned(monkeypatch):
    """Let the allocator return a tensor at an address that is no multiple of 16."""
    monkeypatch.setattr(array, "device_runtime", lambda kind: Runtime())
    made = FakeTensor()
    monkeypatch.setattr(made, "data_ptr", lambda: 0x5008, raising=False)
    with using(lambda shape, dtype: made, stream=CURRENT_STREAM):
        yield made


@pytest.mark.usefixtures("unaligned")
def test_a_result_at_an_address_that_is_no_multiple_of_16_is_refused():
    message = "^what the allocator returned must begin at a multiple of 16 bytes; it is at 0x5008$"
    with pytest.raises(ValueError, match=message):
        array.allocated((2, 3), np.dtype("f4"), "cuda")


def test_a_result_without_elements_may_be_at_any_address(unaligned):
    unaligned.shape = (0, 3)
    assert array.allocated((0, 3), np.dtype("f4"), "cuda").data.ptr == 0x5008


def test_the_current_device_is_that_of_an_allocated_array(monkeypatch):
    monkeypatch.setattr(array, "device_runtime", lambda kind: Runtime())
    with using(lambda shape, dtype: FakeTensor(), stream=CURRENT_STREAM):
        monkeypatch.setattr(FakeTensor, "get_device", lambda self: 0)
        with pytest.raises(ValueError, match="must be on the current device, 1; it is on 0"):
            array.allocated((2, 3), np.dtype("f4"), "cuda")
        # A process with one device does not ask which it is.
        monkeypatch.setattr(Runtime, "device_count", lambda self: 1)
        assert array.allocated((2, 3), np.dtype("f4"), "cuda").data.device_id == 0
        monkeypatch.setattr(FakeTensor, "get_device", lambda self: 1)
        with pytest.raises(ValueError, match="must be on the current device, 0; it is on 1"):
            array.allocated((2, 3), np.dtype("f4"), "cuda")


class Runtime:
    """Two devices, of which the second is the current one."""

    def device_count(self):
        return 2

    def current_device(self):
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
    forget()
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
    with using(stream=stream), pytest.raises(TypeError, match="asked for a capsule"):
        device_array("x", given)
    assert given.capsules == [stream]
