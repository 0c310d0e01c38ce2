"""Tensors as the arrays that dnnffi takes, and its results as tensors.

A tensor on a GPU becomes a `DeviceArray`, one on the host a NumPy array. Both are views of its
memory. They are made of the tensor's attributes: a DLPack capsule would take several times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dnnffi.device.arrays import instead_of
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.external import DeviceArray
from dnnffi.device.external.use import TrustedAllocator
from dnnffi.device.torch_tensors import detached
from dnnffi.execution.cache import keep_newest
from dnnffi.spec.names import DType

KIND = "rocm" if torch.version.hip else "cuda"
"""The platform of tensors that PyTorch calls CUDA's."""

DTYPE_NAMES: dict[Any, DType] = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
"""Names of the dtypes of networks."""

MAX_TEMPLATES = 256
"""Shapes that an allocator remembers."""

_NAMES: dict[Any, str] = {**DTYPE_NAMES, torch.uint8: "uint8"}  # which a workspace has
_INT32 = np.dtype("int32")
_numpy_dtypes: dict[Any, np.dtype[Any]] = {}  # those used: bfloat16 needs a package
_NO_CHANGE: AbstractContextManager[Any] = nullcontext()


def check_tensor(name: str, value: object) -> None:
    """Raise ``TypeError`` for an argument that is no tensor."""
    if not isinstance(value, Tensor):
        hint = instead_of(name, value)
        if isinstance(value, list | tuple) and not any(isinstance(one, Tensor) for one in value):
            hint = hint or f"; use torch.tensor({name})"
        raise TypeError(f"{name} must be a torch.Tensor; got {type(value).__name__}{hint}")


def as_array(name: str, tensor: Tensor, x: Tensor, *, strided: bool = False) -> Any:
    """Return a view of the memory of ``tensor``, which must be on the device of ``x``.

    A tensor that is not contiguous is copied, except with ``strided`` on CUDA and on the host. One
    that PyTorch negates lazily is copied too. Raises ``TypeError`` or ``ValueError`` that names the
    argument.
    """
    if tensor.layout is not torch.strided or tensor.is_neg():
        tensor = detached(name, tensor)  # refuses a sparse one
    if tensor is not x and tensor.get_device() != x.get_device():
        raise ValueError(f"{name} must be on the device of x, {x.device}; it is on {tensor.device}")
    if not tensor.is_cuda:
        return host_array(name, tensor, strided=strided)
    strides = None
    if strided and KIND == "cuda":
        strides = tensor.stride()
    elif not tensor.is_contiguous():
        tensor = tensor.contiguous()
    # Its owner is a tuple: of an owner that is a tensor, the core would count the writes, as
    # autograd does already.
    return device_array(name, tensor, (tensor,), strides)


def device_array(
    name: str, tensor: Tensor, owner: object, strides: Sequence[int] | None = None
) -> DeviceArray:
    """Return an array over the memory of a tensor on a GPU, which ``owner`` keeps.

    ``strides`` are those of the tensor, in elements; None if it is contiguous.
    """
    address = tensor.data_ptr()
    if not address and tensor.numel():
        raise TypeError(f"{name} has no memory of its own; got a {type(tensor).__name__}")
    at = KIND, tensor.get_device(), address
    dtype = _numpy_dtypes.get(tensor.dtype)
    if dtype is None:
        dtype = _add_dtype(name, tensor.dtype)
    in_bytes = None if strides is None else _in_bytes(tuple(strides), dtype.itemsize)
    return DeviceArray(owner, *at, tuple(tensor.shape), dtype, strides=in_bytes)


def int32_array(tensor: Tensor) -> DeviceArray:
    """Return an array over a contiguous tensor of int32 on a GPU, which it keeps."""
    at = KIND, tensor.get_device(), tensor.data_ptr()
    return DeviceArray((tensor,), *at, tuple(tensor.shape), _INT32)


def host_array(name: str, tensor: Tensor, *, strided: bool = False) -> np.ndarray[Any, Any]:
    """Return a NumPy array over the memory of a tensor on the host.

    Unless ``strided``, it is contiguous, and that of a copy where the tensor is not.
    """
    if tensor.device.type != "cpu":
        raise TypeError(
            f"{name} must be on the CPU or on a GPU of CUDA or ROCm; it is on {tensor.device}"
        )
    tensor = tensor.detach() if strided else tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:  # which NumPy alone does not have
        return tensor.view(torch.int16).numpy().view(_add_dtype(name, tensor.dtype))
    return tensor.numpy()


def as_tensor(result: Any) -> Tensor | None:
    """Return a result of dnnffi as a tensor, without a copy."""
    if result is None or isinstance(result, Tensor):
        return result
    if not isinstance(result, np.ndarray):
        return torch.from_dlpack(result)
    if result.dtype.name == "bfloat16":
        return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(result)


@lru_cache(maxsize=1024)
def _in_bytes(strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return strides of elements in bytes."""
    return tuple(step * itemsize for step in strides)


@lru_cache(maxsize=1024)
def _in_elements(strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return strides of bytes in elements."""
    return tuple(step // itemsize for step in strides)


class Allocation(NamedTuple):
    """PyTorch's allocator and current stream on a GPU, as `dnnffi.foreign.using` takes them."""

    allocator: TensorAllocator
    stream: Callable[[], int]


@cache
def allocation_on(device: int) -> Allocation:
    """Return the allocator and the current stream of a GPU."""
    stream = partial(torch._C._cuda_getCurrentRawStream, device)
    return Allocation(TensorAllocator(torch.device("cuda", device)), stream)


class TensorAllocator(TrustedAllocator):
    """An allocator of tensors on one device.

    A shape that comes again is allocated like a template, a tensor without memory:
    ``torch.empty_like`` takes the host half the time of ``torch.empty``.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._index = device, device.index
        self._dtypes: dict[np.dtype[Any], torch.dtype] = {}  # those used: bfloat16 needs a package
        self._templates: dict[tuple[tuple[int, ...], Any], Tensor | None] = {}
        """By shape and dtype; None for one that came once."""

    def empty(
        self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None
    ) -> DeviceArray:
        if strides is None:
            tensor = self.tensor(shape, dtype)
        else:
            steps = _in_elements(strides, dtype.itemsize)
            kind = self.dtype_of(dtype)
            tensor = torch.empty_strided(shape, steps, dtype=kind, device=self._device)
        at = KIND, self._index, tensor.data_ptr()
        return DeviceArray(tensor, *at, shape, dtype, strides=strides)

    def tensor(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        """Return a new contiguous tensor."""
        template = self._templates.get((shape, dtype))
        return self._new(shape, dtype) if template is None else torch.empty_like(template)

    def _new(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        """Allocate a tensor without a template, and make one if its shape came before."""
        key, kind, templates = (shape, dtype), self.dtype_of(dtype), self._templates
        if key not in templates:
            templates[key] = None
            keep_newest(templates, MAX_TEMPLATES)
        else:
            template = torch.empty(shape, dtype=kind, device=self._device)
            template.untyped_storage().resize_(0)
            templates[key] = template
        return torch.empty(shape, dtype=kind, device=self._device)

    def dtype_of(self, dtype: np.dtype[Any]) -> torch.dtype:
        """Return PyTorch's dtype for one of NumPy."""
        found = self._dtypes.get(dtype)
        if found is None:
            found = self._dtypes[dtype] = getattr(torch, dtype.name)
        return found


def on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    """Make the device of a tensor the current one for the length of a ``with`` block."""
    if not tensor.is_cuda or torch.cuda.current_device() == tensor.get_device():
        return _NO_CHANGE
    return torch.cuda.device(tensor.get_device())


def _add_dtype(name: str, dtype: torch.dtype) -> np.dtype[Any]:
    """Return NumPy's dtype for one of PyTorch that was not used so far."""
    if dtype not in _NAMES:
        names = ", ".join(DTYPE_NAMES.values())
        raise TypeError(
            f"{name} must have one of the dtypes {names}; got {dtype}; use {name}.float()"
        )
    return _numpy_dtypes.setdefault(dtype, dtype_object(_NAMES[dtype]))
