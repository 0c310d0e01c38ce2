"""LSTM, GRU and plain RNNs on tensors: the functions that users call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, Unpack

from torch import Tensor

from dnnffi.spec.names import LayoutName
from dnnffi.spec.rnn import RNNSpec
from dnnffi.torch.network import RNNKeywords, run
from dnnffi.weights import RNNWeights

Weights: TypeAlias = RNNWeights[Any] | Sequence[Tensor] | Tensor


def lstm(
    x: Tensor,
    hx: tuple[Tensor, Tensor] | None,
    weights: Weights,
    /,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    retain: bool | None = None,
    **keywords: Unpack[RNNKeywords],
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """`dnnffi.lstm_forward` on tensors: ``y, (h_n, c_n)``, which autograd differentiates.

    Gradients go to those of x, hx, reset_to and the weights that require one. If none does, and
    without dropout and dropout_state, it is `dnnffi.lstm`. Do not write to any of these tensors,
    resets or y before the backward pass: PyTorch then raises ``RuntimeError``.

    Parameters
    ----------
    x, hx : as in `dnnffi.lstm`
    weights : tensors in PyTorch's order, as ``list(module.parameters())`` of a ``torch.nn.LSTM``,
        which cost nothing if they lie in one buffer in cuDNN's layout, and otherwise one kernel a
        call; or one flat tensor [size] with ``spec`` and ``layout``, which costs nothing; or an
        `RNNWeights`, a constant that gets no gradient: for one, pass its ``flat`` as a tensor
    spec : the network of a flat tensor
    layout : the layout of a flat tensor: "cudnn", "torch" or "miopen". It may be left out only if
        cuDNN's layout and PyTorch's order are the same for the spec, as they are for one layer in
        one direction without a projection
    retain : keep what the backward pass spends, so that autograd can run it again, at the cost of a
        copy of the reserve space; None for as ``retain_graph`` of the backward pass asks
    keywords : those of `dnnffi.lstm_forward`; lengths and batch_sizes may be tensors: lengths on
        the GPU of x stay there, all others are copied to the host; resets is a tensor on the
        device of x or on the host, and reset_to gets gradients like hx

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As in `dnnffi.lstm`.
    ContextError
        In a second backward pass, if the first was with ``retain=False``.
    UnsupportedError
        In a backward pass, for a second derivative. In ``torch.jit.trace``. For dropout in a
        forward pass that runs during backward, as ``torch.utils.checkpoint`` runs it again.

    Examples
    --------
    >>> import torch
    >>> import dnnffi.torch
    >>> module = torch.nn.LSTM(3, 4)
    >>> y, (h_n, c_n) = dnnffi.torch.lstm(torch.ones(5, 2, 3), None, list(module.parameters()))
    >>> y.square().sum().backward()
    >>> module.weight_ih_l0.grad.shape
    torch.Size([16, 3])
    """
    y, h_n, c_n = run("lstm", x, hx, weights, spec, layout, retain, keywords)
    return y, (h_n, c_n)


def gru(
    x: Tensor,
    h_0: Tensor | None,
    weights: Weights,
    /,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    retain: bool | None = None,
    **keywords: Unpack[RNNKeywords],
) -> tuple[Tensor, Tensor]:
    """`dnnffi.gru_forward` on tensors: ``y, h_n``. Otherwise as `lstm`.

    Examples
    --------
    >>> import torch
    >>> import dnnffi.torch
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
    >>> flat = torch.full((dnnffi.weight_layout(spec, "cudnn").size,), 0.1, requires_grad=True)
    >>> y, h_n = dnnffi.torch.gru(torch.ones(5, 2, 3), None, flat, spec=spec, layout="cudnn")
    >>> h_n.sum().backward()
    >>> flat.grad.shape
    torch.Size([108])
    """
    y, h_n = run("gru", x, h_0, weights, spec, layout, retain, keywords)
    return y, h_n


def rnn_tanh(
    x: Tensor,
    h_0: Tensor | None,
    weights: Weights,
    /,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    retain: bool | None = None,
    **keywords: Unpack[RNNKeywords],
) -> tuple[Tensor, Tensor]:
    """`dnnffi.rnn_tanh_forward` on tensors: ``y, h_n``. Otherwise as `lstm`.

    Examples
    --------
    >>> import torch
    >>> import dnnffi.torch
    >>> module = torch.nn.RNN(3, 4, num_layers=2)
    >>> weights = list(module.parameters())
    >>> y, h_n = dnnffi.torch.rnn_tanh(torch.ones(5, 2, 3), None, weights, num_layers=2)
    >>> h_n.shape
    torch.Size([2, 2, 4])
    """
    y, h_n = run("rnn_tanh", x, h_0, weights, spec, layout, retain, keywords)
    return y, h_n


def rnn_relu(
    x: Tensor,
    h_0: Tensor | None,
    weights: Weights,
    /,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    retain: bool | None = None,
    **keywords: Unpack[RNNKeywords],
) -> tuple[Tensor, Tensor]:
    """`dnnffi.rnn_relu_forward` on tensors: ``y, h_n``. Otherwise as `lstm`.

    Examples
    --------
    >>> import torch
    >>> import dnnffi.torch
    >>> one, x = torch.ones(1, 1), torch.ones(3, 1, 1, requires_grad=True)
    >>> y, h_n = dnnffi.torch.rnn_relu(x, None, [one, one])
    >>> y.sum().backward(retain_graph=True)
    >>> y.sum().backward()
    >>> x.grad.ravel().tolist()
    [6.0, 4.0, 2.0]
    """
    y, h_n = run("rnn_relu", x, h_0, weights, spec, layout, retain, keywords)
    return y, h_n
