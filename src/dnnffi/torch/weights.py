"""Weights of a network as a call has them: a list of tensors, one flat tensor, or an `RNNWeights`.

A list becomes one flat buffer in cuDNN's layout. If its tensors already lie in one buffer at the
layout's offsets, as after ``flatten_parameters``, that buffer is used and nothing is copied;
otherwise PyTorch concatenates them by one kernel. The gradient of a list is one flat tensor, of
which each tensor of the list gets a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor

from dnnffi.spec.checks import check_flag, check_range
from dnnffi.spec.names import LayoutName
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import Block, WeightLayout, layout_of_flat, weight_layout
from dnnffi.torch.tensors import (
    DTYPE_NAMES,
    KIND,
    as_array,
    as_tensor,
    check_tensor,
    device_array,
)
from dnnffi.weights import RNNWeights

MAX_LIST_FORMS = 256
"""Maximum number of cached forms: as many of flat tensors as of lists."""


Networks = dict[int, dict[tuple[Any, ...], Any]]
"""Networks that calls have checked, as an `RNNWeights` keeps them, by the number of a GPU."""


class Form(Protocol):
    """The kind of weights of a call: converts its tensors for the core, and gradients back."""

    def native(self, tensors: Sequence[Tensor], x: Tensor) -> Any:
        """Return what the functions of the core take for these tensors, on the device of x."""

    def gradients(self, gradient: Any, tensors: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return the gradient of each tensor.

        ``gradient`` is the core's: of an `RNNWeights` the flat buffer, of a list a list, or None.
        """


class ConstantForm(NamedTuple):
    """An `RNNWeights`, which gets no gradient."""

    weights: RNNWeights[Any]

    def native(self, tensors: Sequence[Tensor], x: Tensor) -> RNNWeights[Any]:
        return self.weights

    def gradients(self, gradient: Any, tensors: Sequence[Tensor]) -> Sequence[Tensor | None]:
        return ()


class FlatForm(NamedTuple):
    """One flat tensor in a named layout.

    ``networks`` are those that calls have checked, by device, for all tensors of the form.
    """

    layout: WeightLayout
    networks: Networks

    def native(self, tensors: Sequence[Tensor], x: Tensor) -> RNNWeights[Any]:
        (flat,) = tensors
        is_there = flat.is_cuda and flat.get_device() == x.get_device()
        if is_there and flat.is_contiguous() and not flat.is_neg():
            return _find_retained(flat, self.layout) or _retain(flat, flat, self)
        array: Any = as_array("weights", flat, x)
        return RNNWeights(array, self.layout.spec, backend=self.layout.name)

    def gradients(self, gradient: Any, tensors: Sequence[Tensor]) -> Sequence[Tensor | None]:
        return (as_tensor(gradient),)


class ListForm(NamedTuple):
    """Tensors in PyTorch's order that become one buffer in cuDNN's layout.

    Attributes
    ----------
    layout : of the buffer, in the dtype that the network computes in
    dtype : of the tensors
    is_cast : whether the network computes in another dtype, as under autocast
    blocks : where each tensor is in the buffer, in elements
    strides : of each tensor, in elements
    offsets : of each tensor from the first one, in bytes
    order : indices of the tensors in the order of the buffer
    networks : those that calls have checked, by device, for all lists of the form
    """

    layout: WeightLayout
    dtype: torch.dtype
    is_cast: bool
    blocks: tuple[Block, ...]
    strides: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    order: tuple[int, ...]
    networks: Networks

    def is_one_buffer(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the tensors lie at the offsets of the layout from the first one on."""
        start = tensors[0].data_ptr()
        for tensor, offset in zip(tensors, self.offsets, strict=True):
            if tensor.data_ptr() != start + offset or not tensor.is_contiguous():
                return False
        return True

    def find_flat(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """Return the buffer that the tensors lie in, or None."""
        if not self.is_one_buffer(tensors) or any(map(torch.is_neg, tensors)):
            return None
        try:
            return tensors[0].detach().as_strided((self.layout.size,), (1,))
        except RuntimeError:  # past the end of the storage: several storages next to each other
            return None

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the parts of a buffer that belong to the tensors."""
        return [
            flat.as_strided(block.shape, strides, block.offset)
            for block, strides in zip(self.blocks, self.strides, strict=True)
        ]

    def native(self, tensors: Sequence[Tensor], x: Tensor) -> RNNWeights[Any]:
        first = tensors[0]
        # A cast makes a new buffer, and on the host a NumPy array would keep the memory.
        retains = first.is_cuda and not self.is_cast and first.get_device() == x.get_device()
        if retains and self.is_one_buffer(tensors):
            found = _find_retained(first, self.layout)
            if found is not None:
                return found
        flat = self.find_flat(tensors)
        if flat is None:
            _check_devices(tensors, x)
            ordered = [tensors[index].detach() for index in self.order]
            flat = torch._C._nn.flatten_dense_tensors(ordered)
        elif retains:
            return _retain(first, flat, self)
        if self.is_cast:
            flat = flat.to(getattr(torch, self.layout.spec.dtype))
        made = RNNWeights._of_result(as_array("weights", flat, x), self.layout)
        if x.is_cuda:
            made._networks = _networks_on(x.get_device(), self)
        return made

    def gradients(self, gradient: Any, tensors: Sequence[Tensor]) -> Sequence[Tensor | None]:
        if gradient is None:
            return (None,) * len(tensors)
        flat: Any = as_tensor(gradient)
        return self.views(flat.to(self.dtype) if self.is_cast else flat)


class SeparateForm(NamedTuple):
    """Tensors in PyTorch's order that the core packs in a layout other than cuDNN's."""

    def native(self, tensors: Sequence[Tensor], x: Tensor) -> list[Any]:
        return [as_array(f"weights[{index}]", one, x) for index, one in enumerate(tensors)]

    def gradients(self, gradient: Any, tensors: Sequence[Tensor]) -> Sequence[Tensor | None]:
        if gradient is None:
            return (None,) * len(tensors)
        return list(map(as_tensor, gradient))


def read_weights(
    weights: Any, spec: RNNSpec | None, layout: LayoutName | None
) -> tuple[RNNWeights[Any] | None, Sequence[Tensor]]:
    """Return the `RNNWeights`, or None and the tensors; the arguments are those of a call.

    Raises ``TypeError`` or ``ValueError`` where they contradict each other.
    """
    if isinstance(weights, RNNWeights):
        if spec is not None and spec != weights.spec:
            raise ValueError(f"spec is {spec}; the weights are those of {weights.spec}")
        if layout is not None and layout != weights.backend:
            raise ValueError(
                f"layout is {layout!r}; the weights are in that of {weights.backend!r}"
            )
        return weights, ()
    if weights.__class__ is list and spec is None and layout is None:
        return None, _checked_list(weights)
    is_flat = isinstance(weights, Tensor)
    if is_flat == (spec is None) or not (is_flat or _is_sequence(weights)):
        has_names = isinstance(weights, (Mapping, torch.nn.Module))
        raise TypeError(
            "weights must be a sequence of tensors, an RNNWeights, or one flat tensor with spec=; "
            f"got {type(weights).__name__} {'without' if spec is None else 'and'} spec"
            f"{'; list(module.parameters()) has those of a module' if has_names else ''}"
        )
    if is_flat:
        return None, (weights,)
    if layout is not None:
        raise ValueError("layout is for a flat tensor of weights; got a sequence of tensors")
    return None, _checked_list(list(weights))


def _is_sequence(weights: object) -> bool:
    return isinstance(weights, Iterable) and not isinstance(weights, Mapping)


def _checked_list(tensors: list[Any]) -> list[Tensor]:
    if not tensors:
        raise ValueError("weights: got no tensors")
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            check_tensor(f"weights[{index}]", tensor)
    return tensors


def flat_form(spec: RNNSpec, layout: LayoutName | None, computed: torch.dtype | None) -> FlatForm:
    """Return the form of a flat tensor; ``computed`` is the dtype of autocast, or None.

    Raises as `layout_of_flat`.
    """
    if not isinstance(spec, RNNSpec):
        raise TypeError(f"spec must be an RNNSpec; got {type(spec).__name__}")
    if layout is not None and layout.__class__ is not str:
        layout_of_flat(spec, layout)  # the cache would say that it cannot be hashed
    return _flat_form(spec, layout, computed)


@lru_cache(maxsize=MAX_LIST_FORMS, typed=True)
def _flat_form(spec: RNNSpec, layout: LayoutName | None, computed: torch.dtype | None) -> FlatForm:
    name = layout_of_flat(spec, layout)
    return FlatForm(weight_layout(spec if computed is None else in_dtype(spec, computed), name), {})


def list_form(
    mode: Any,
    tensors: Sequence[Tensor],
    num_layers: int,
    bidirectional: bool,
    computed: torch.dtype | None,
) -> ListForm:
    """Return the form of a list in PyTorch's order; ``computed`` is autocast's dtype, or None.

    Raises ``TypeError`` or ``ValueError`` that names the argument at fault.
    """
    if num_layers.__class__ is not int or bidirectional.__class__ is not bool:
        check_range("num_layers", num_layers, 1)  # the cache would say that it cannot be hashed
        check_flag("bidirectional", bidirectional)
    dtype = tensors[0].dtype
    for index, tensor in enumerate(tensors):
        if tensor.dtype is not dtype:
            raise TypeError(
                f"weights[{index}] must have the dtype of weights[0], {dtype}; got {tensor.dtype}"
            )
    shapes = tuple([tensor.shape for tensor in tensors])
    return _list_form(mode, shapes, num_layers, bidirectional, dtype, computed)


@lru_cache(maxsize=MAX_LIST_FORMS, typed=True)
def _list_form(
    mode: Any,
    shapes: tuple[tuple[int, ...], ...],
    num_layers: int,
    bidirectional: bool,
    dtype: torch.dtype,
    computed: torch.dtype | None,
) -> ListForm:
    if dtype not in DTYPE_NAMES:
        names = ", ".join(DTYPE_NAMES.values())
        raise TypeError(f"weights[0] must have one of the dtypes {names}; got {dtype}")
    spec = RNNSpec.from_weight_shapes(
        mode,
        shapes,
        num_layers=num_layers,
        bidirectional=bidirectional,
        dtype=DTYPE_NAMES[dtype if computed is None else computed],
    )
    layout = weight_layout(spec, "cudnn")
    blocks = layout.blocks()
    return ListForm(
        layout,
        dtype,
        is_cast=computed not in (None, dtype),
        blocks=blocks,
        strides=tuple((*block.shape[1:], 1) for block in blocks),
        offsets=tuple(block.offset * dtype.itemsize for block in blocks),
        order=tuple(sorted(range(len(blocks)), key=lambda index: blocks[index].offset)),
        networks={},
    )


def in_dtype(spec: RNNSpec, dtype: torch.dtype) -> RNNSpec:
    """Return a spec with another dtype."""
    return RNNSpec(
        mode=spec.mode,
        input_size=spec.input_size,
        hidden_size=spec.hidden_size,
        num_layers=spec.num_layers,
        bidirectional=spec.bidirectional,
        bias=spec.bias,
        proj_size=spec.proj_size,
        dtype=DTYPE_NAMES[dtype],
    )


def is_in_cudnn_layout(backend: object) -> bool:
    """Whether a call on this backend reads weights in cuDNN's layout as they are."""
    is_name = backend.__class__ is str  # an array has no one truth value
    return KIND == "cuda" and (backend is None or (is_name and backend in ("cudnn", "reference")))


def lay_out(parameters: Sequence[Tensor], form: ListForm) -> None:
    """Move the memory of the parameters into one buffer; the parameters stay the same objects."""
    if form.find_flat(parameters) is not None:
        return
    first = parameters[0]
    flat = torch.empty(form.layout.size, dtype=first.dtype, device=first.device)
    for parameter, view in zip(parameters, form.views(flat), strict=True):
        view.copy_(parameter.detach())
        parameter.data = view


def _check_devices(tensors: Sequence[Tensor], x: Tensor) -> None:
    for index, tensor in enumerate(tensors):
        if tensor.device != x.device:
            raise ValueError(
                f"weights[{index}] must be on the device of x, {x.device}; it is on {tensor.device}"
            )


def _networks_on(device: int, form: FlatForm | ListForm) -> dict[tuple[Any, ...], Any]:
    """Return the networks that calls with weights of a form have checked on a GPU.

    The next call with other tensors of the form need not check them again: with a copy of the
    weights in the dtype of autocast, or with the weights of another layer of the same sizes.
    """
    return form.networks.setdefault(device, {})


class _Retained(NamedTuple):
    """An `RNNWeights` over the memory from ``address`` on, where ``first`` begins."""

    first: ref[Tensor]
    address: int
    layout: WeightLayout
    weights: RNNWeights[Any]


_retained: dict[int, _Retained] = {}  # by the id of the first tensor, as long as that exists


def _find_retained(first: Tensor, layout: WeightLayout) -> RNNWeights[Any] | None:
    found = _retained.get(id(first))
    if (
        found is not None
        and found.address == first.data_ptr()
        and found.layout is layout
        and found.first() is first
    ):
        return found.weights
    return None


def forget(tensors: Iterable[Tensor | None]) -> None:
    """Drop what is retained for tensors, with the weak references to them."""
    for tensor in tensors:
        _retained.pop(id(tensor), None)


def _retain(first: Tensor, flat: Tensor, form: FlatForm | ListForm) -> RNNWeights[Any]:
    """Return an `RNNWeights` over a buffer on a GPU, for all calls with these tensors.

    It does not keep the memory: the tensors do in each call, and until the call's backward pass. So
    a module that moves its parameters elsewhere frees their memory.
    """
    key, layout = id(first), form.layout
    array: Any = device_array("weights", flat, None)
    weights = RNNWeights(array, layout.spec, backend=layout.name)
    if not array.data.ptr % array.dtype.itemsize:  # else the core refuses them in each call
        weights._networks = _networks_on(flat.get_device(), form)
    exists = ref(first, lambda _: _retained.pop(key, None))
    _retained[key] = _Retained(exists, first.data_ptr(), layout, weights)
    return weights
