"""Tensors on the host that say they are on a GPU, which the stand-in for cuDNN plays."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager

import torch
from stress import user_arrays

import dnnffi
from dnnffi.backends.vendor.handle import close_handles
from dnnffi.device.external import DeviceArray, known
from dnnffi.torch import convolutions, network, tensors, weights

_device_array = tensors.device_array


class GpuTensor(torch.Tensor):
    """A tensor on the host that says it is on a GPU; whoever reads its address may use its memory.

    ``gpu`` is the memory of the test that runs.
    """

    is_cuda = True
    gpu = None

    def get_device(self):
        return 0

    def data_ptr(self):
        self.gpu.register(self)
        return super().data_ptr()

    @property
    def __cuda_array_interface__(self):
        raise AssertionError("takes microseconds: the attributes of a tensor say the same")


def on_gpu(tensor):
    return tensor.detach().clone().as_subclass(GpuTensor).requires_grad_(tensor.requires_grad)


class Gpu(tensors.TensorAllocator):
    """Memory that the stand-in knows, and a log of the arrays and results made in it."""

    def __init__(self, control):
        super().__init__(torch.device("cpu", 0))
        self._control = control
        self._storages = {}  # kept, so that no other memory gets an address that is registered
        self.arrays = []  # the names that they were made for
        self.results = []

    def register(self, tensor):
        """Tell the stand-in of memory that PyTorch allocated."""
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in self._storages:
            self._storages[storage.data_ptr()] = storage
            self._control.standin_register(storage.data_ptr(), storage.nbytes())

    def release(self, address):
        self._control.standin_unregister(address)
        del self._storages[address]

    def device_array(self, name, tensor, owner, strides=None):
        self.register(tensor)
        self.arrays.append(name)
        return _device_array(name, tensor, owner, strides)

    def tensor(self, shape, dtype):
        return self._logged(super().tensor(shape, dtype))

    def empty(self, shape, dtype, strides=None):
        made = super().empty(shape, dtype, strides)
        if strides is None:
            return made  # of `tensor`
        tensor = self._logged(made.owner)
        return DeviceArray(tensor, "cuda", 0, tensor.data_ptr(), shape, dtype, strides=strides)

    def _logged(self, tensor):
        tensor = tensor.as_subclass(GpuTensor)
        self.results.append(weakref.ref(tensor))
        return tensor

    def spoil_free_memory(self):
        """Write NaN to the memory that nobody else refers to, which an allocator may give away."""
        for storage in self._storages.values():
            if torch._C._storage_Use_Count(storage._cdata) == 1:
                torch.empty(0, dtype=torch.uint8).set_(storage).fill_(0xFF)

    def close(self):
        for address in list(self._storages):
            self.release(address)


@contextmanager
def played_gpu(simulator, monkeypatch):
    """Let dnnffi.torch compute on `GpuTensor` by the stand-in; yield their memory."""
    user_arrays.install(monkeypatch)
    made = Gpu(simulator.control)
    monkeypatch.setattr(GpuTensor, "gpu", made)
    for module in (tensors, weights):
        monkeypatch.setattr(module, "device_array", made.device_array)
    allocation = tensors.Allocation(made, lambda: 0)
    for module in (network, convolutions):
        monkeypatch.setattr(module, "allocation_on", lambda device: allocation)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    yield made
    dnnffi.clear_plans()
    close_handles(simulator.library.without_cupy())
    gc.collect()
    made.close()


@contextmanager
def all_tensors_on_gpu(monkeypatch, gpu=None):
    """Let PyTorch's own tensors say that they are on the GPU that is played.

    With ``gpu``, that knows the memory of those whose address was read.
    """
    data_ptr = torch.Tensor.data_ptr

    def registered(self):
        gpu.register(self)
        return data_ptr(self)

    if gpu is not None:
        monkeypatch.setattr(torch.Tensor, "data_ptr", registered)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    known._pytorch.cache_clear()
    yield
    known._pytorch.cache_clear()
