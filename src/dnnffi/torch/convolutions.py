"""Convolutions on tensors, and their three gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dnnffi.convolution import functions as core
from dnnffi.device.torch_tensors import check_not_traced, is_compiling, uncompiled
from dnnffi.execution.embedding import embeds
from dnnffi.spec.conv import Padding
from dnnffi.spec.conv_options import ConvOptionsDict
from dnnffi.spec.conv_problem import ARGUMENTS, BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from dnnffi.spec.names import BackendName, Operation
from dnnffi.torch.autograd import has_tangents, recorded
from dnnffi.torch.tensors import (
    Allocation,
    allocation_on,
    as_array,
    as_tensor,
    check_tensor,
    on_device,
)

Sizes = int | Sequence[int]


def conv(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    /,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    backend: BackendName | None = None,
    options: ConvOptionsDict | None = None,
) -> Tensor:
    """`dnnffi.conv` on tensors, which autograd differentiates with respect to x, w and bias.

    Arguments and errors are those of `dnnffi.conv`, without activation, residual and alpha: write
    ``torch.relu(conv(x, w, bias) + residual)``.

    Examples
    --------
    >>> import torch
    >>> import dnnffi.torch
    >>> w = torch.tensor([[[1.0, 2.0, 3.0]]], requires_grad=True)
    >>> y = dnnffi.torch.conv(torch.ones(1, 1, 5), w)
    >>> y.sum().backward()
    >>> w.grad.tolist()
    [[[3.0, 3.0, 3.0]]]
    """
    geometry = stride, padding, dilation, 0
    return _convolution(_Call(False, geometry, groups, backend, options), x, w, bias)


def conv_transpose(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    /,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    backend: BackendName | None = None,
    options: ConvOptionsDict | None = None,
) -> Tensor:
    """`dnnffi.conv_transpose` on tensors. Otherwise as `conv`.

    Examples
    --------
    >>> import torch
    >>> import dnnffi.torch
    >>> x, w = torch.tensor([[[1.0, 2.0]]]), torch.ones(1, 1, 2)
    >>> dnnffi.torch.conv_transpose(x, w, stride=2)
    tensor([[[1., 1., 2., 2.]]])
    """
    geometry = stride, padding, dilation, output_padding
    return _convolution(_Call(True, geometry, groups, backend, options), x, w, bias)


class _Call(NamedTuple):
    """The arguments of a convolution that are not tensors.

    ``geometry`` is stride, padding, dilation and output padding.
    """

    transposed: bool
    geometry: tuple[Any, ...]
    groups: int
    backend: BackendName | None
    options: ConvOptionsDict | None


def _convolution(call: _Call, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    if is_compiling():
        return uncompiled(_convolution)(call, x, w, bias)
    check_tensor("x", x)
    check_tensor("w", w)
    if bias is not None:
        check_tensor("bias", bias)
    check_not_traced("x")
    given = (x, w) if bias is None else (x, w, bias)
    is_recorded = torch.is_grad_enabled() and any(one.requires_grad for one in given)
    if is_recorded or has_tangents(given):
        return _Convolution.apply(call, x, w, bias)
    return _compute(call, FORWARD, (x, w, bias, None))


class _Convolution(torch.autograd.Function):  # type: ignore[misc]
    """``dnnffi.conv`` or ``conv_transpose``, and their three gradients."""

    @staticmethod
    def forward(ctx: Any, call: _Call, x: Any, w: Any, bias: Any) -> Any:
        ctx.call, ctx.shapes = call, (tuple(x.shape), tuple(w.shape))
        ctx.save_for_backward(x, w)
        return _compute(call, FORWARD, (x, w, bias, None))

    @staticmethod
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        call = ctx.call
        x_shape, w_shape = ctx.shapes
        _, *needed = ctx.needs_input_grad
        x, w = ctx.saved_tensors

        def gradients(given: Sequence[Any]) -> list[Any]:
            (dy,) = given
            return [
                _compute(call, BACKWARD_DATA, (dy, w), x_shape) if needed[0] else None,
                _compute(call, BACKWARD_WEIGHTS, (dy, x), w_shape) if needed[1] else None,
                _sum_of_bias(call, dy) if needed[2] else None,
            ]

        if torch.is_grad_enabled():
            return None, *recorded(gradients, (dy,), (x, w))
        return None, *gradients((dy,))


def _compute(
    call: _Call,
    operation: Operation,
    tensors: Sequence[Tensor | None],
    shape: tuple[int, ...] | None = None,
) -> Any:
    """Compute an operation of the core on tensors; the device of the first one decides.

    On a GPU PyTorch allocates the result, and the call runs on PyTorch's current stream, unless
    the options say otherwise.
    """
    transposed, geometry, groups, backend, options = call
    asked = operation, transposed, shape, geometry, groups, None, 1.0, backend
    first: Any = tensors[0]
    arrays = tuple(
        None if tensor is None else as_array(name, tensor, first, strided=True)
        for name, tensor in zip(ARGUMENTS[operation], tensors, strict=True)
    )
    if not first.is_cuda:
        return as_tensor(core.run(asked, arrays, options))
    allocation = allocation_on(first.get_device())
    with on_device(first):
        if embeds(options):
            return as_tensor(core.run(asked, arrays, _with_allocation(options, allocation)))
        return as_tensor(core.run_embedded(asked, arrays, options, allocation))


def _sum_of_bias(call: _Call, dy: Tensor) -> Tensor | None:
    """Return the gradient of the bias."""
    options: Any = call.options
    array = as_array("dy", dy, dy, strided=True)
    if not dy.is_cuda:
        result = core.conv_backward_bias(array, backend=call.backend, options=options)
        return as_tensor(result)
    options = _with_allocation(options, allocation_on(dy.get_device()))
    with on_device(dy):
        result = core.conv_backward_bias(array, backend=call.backend, options=options)
        return as_tensor(result)


def _with_allocation(options: Any, allocation: Allocation) -> Any:
    """Return options with PyTorch's allocator and stream, unless they name others."""
    return {**allocation._asdict(), **(options or {})}
