"""Convolutions on tensors, and their three gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dnnffi.convolution import functions as core
from dnnffi.device.torch_modes import check_not_traced, is_compiling, uncompiled
from dnnffi.spec.conv import Padding
from dnnffi.spec.conv_options import ConvOptionsDict
from dnnffi.spec.names import BackendName
from dnnffi.torch.autograd import recorded
from dnnffi.torch.tensors import allocation_on, as_array, as_tensor, check_tensor, on_device

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

    Arguments and errors are those of `dnnffi.conv`, without what it fuses: write
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
    keywords = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    where = {"backend": backend, "options": options}
    return _convolution("conv", keywords, where, x, w, bias)


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
    keywords = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    keywords["output_padding"] = output_padding
    where = {"backend": backend, "options": options}
    return _convolution("conv_transpose", keywords, where, x, w, bias)


def _convolution(name: str, geometry: Any, where: Any, x: Any, w: Any, bias: Any) -> Tensor:
    if is_compiling():
        return uncompiled(_convolution)(name, geometry, where, x, w, bias)
    check_tensor("x", x)
    check_tensor("w", w)
    if bias is not None:
        check_tensor("bias", bias)
    check_not_traced("x")
    return _Convolution.apply(name, geometry, where, x, w, bias)


class _Convolution(torch.autograd.Function):  # type: ignore[misc]
    """``dnnffi.conv`` or ``conv_transpose``, and their three gradients."""

    @staticmethod
    def forward(ctx: Any, name: str, geometry: Any, where: Any, *tensors: Any) -> Any:
        x, w, bias = tensors
        ctx.asked, ctx.shapes = (name, geometry, where), (tuple(x.shape), tuple(w.shape))
        ctx.save_for_backward(x, w)
        return _compute(name, {"x": x, "w": w, "bias": bias}, **geometry, **where)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        name, geometry, where = ctx.asked
        x_shape, w_shape = ctx.shapes
        _, _, _, *needed = ctx.needs_input_grad
        x, w = ctx.saved_tensors
        rest = geometry | where

        def gradients(given: Sequence[Any]) -> list[Any]:
            (dy,) = given
            of_x, of_w = f"{name}_backward_data", f"{name}_backward_weights"
            return [
                _compute(of_x, {"dy": dy, "w": w}, x_shape, **rest) if needed[0] else None,
                _compute(of_w, {"dy": dy, "x": x}, w_shape, **rest) if needed[1] else None,
                _compute("conv_backward_bias", {"dy": dy}, **where) if needed[2] else None,
            ]

        if torch.is_grad_enabled():
            return None, None, None, *recorded(gradients, (dy,), (x, w))
        return None, None, None, *gradients((dy,))


def _compute(
    function: str, tensors: Mapping[str, Any], *shape: Any, options: Any, **keywords: Any
) -> Tensor | None:
    """Call a function of the core on tensors by name, of which the first decides the device.

    On a GPU PyTorch allocates the result, and the call runs on PyTorch's current stream, unless
    the options say otherwise.
    """
    first = next(iter(tensors.values()))
    arrays = [
        None if tensor is None else as_array(name, tensor, first, strided=True)
        for name, tensor in tensors.items()
    ]
    if first.is_cuda:
        options = {**allocation_on(first.get_device())._asdict(), **(options or {})}
    with on_device(first):
        return as_tensor(getattr(core, function)(*arrays, *shape, options=options, **keywords))
