"""Networks and convolutions on PyTorch's tensors, which its autograd differentiates.

Needs PyTorch, the extra ``torch``; nothing else of dnnffi imports it. Tensors on the host go to the
reference. Networks on a GPU take their results from PyTorch's allocator, on its current stream,
without CuPy; convolutions go through CuPy, on that stream too. Gradients are those of
`dnnffi.RNNContext.backward` and `dnnffi.conv_backward_data`, `conv_backward_weights`,
`conv_backward_bias`. They have none of their own: a second derivative is an `UnsupportedError`.

In ``torch.compile`` a call runs as it is, between compiled parts. In ``torch.jit.trace`` it is an
`UnsupportedError`, and so is dropout in a forward pass that ``torch.utils.checkpoint`` runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypedDict, Unpack

try:
    import torch
except ImportError as error:
    raise ImportError("dnnffi.torch needs PyTorch. Install: pip install 'dnnffi[torch]'") from error
from torch import Tensor

from dnnffi.convolution import functions as convolutions
from dnnffi.device.cupy import import_cupy
from dnnffi.device.external import device_array, using
from dnnffi.device.torch_modes import has_tangent, is_compiling, uncompiled
from dnnffi.dropout import DropoutState
from dnnffi.errors import ContextError, UnsupportedError
from dnnffi.rnn import functions as networks
from dnnffi.spec.conv import Padding
from dnnffi.spec.conv_options import ConvOptionsDict
from dnnffi.spec.names import BackendName, Integers, LayoutName
from dnnffi.spec.options import RNNOptionsDict
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import layout_of_flat
from dnnffi.weights import RNNWeights

Sizes = int | Sequence[int]


class RNNKeywords(TypedDict, total=False):
    """Keywords of a network's call."""

    num_layers: int
    bidirectional: bool
    batch_first: bool
    lengths: Integers | None
    batch_sizes: Integers | None
    dropout: float
    dropout_state: DropoutState | None
    backend: BackendName | None
    options: RNNOptionsDict | None


def lstm(
    x: Tensor,
    hx: tuple[Tensor, Tensor] | None,
    weights: RNNWeights[Any] | Sequence[Tensor] | Tensor,
    /,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    retain: bool = False,
    **keywords: Unpack[RNNKeywords],
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """`dnnffi.lstm_forward` on tensors: ``y, (h_n, c_n)``, which autograd differentiates.

    Gradients go to those of x, hx and the weights that require one. If none does, and nothing is
    dropped, it is `dnnffi.lstm`. None of these tensors, nor y, may be written to before backward:
    PyTorch raises ``RuntimeError`` if one was.

    Parameters
    ----------
    x, hx : as of `dnnffi.lstm`
    weights : tensors in PyTorch's order, as ``list(module.parameters())`` of a ``torch.nn.LSTM``;
        or one flat tensor [size] with ``spec`` and ``layout``, which is not packed in each call; or
        an `RNNWeights`, a constant that gets no gradient: for one, pass its ``flat`` as a tensor
    spec : the network of a flat tensor
    layout : the layout of a flat tensor: "cudnn", "torch" or "miopen". It may be left out only if
        cuDNN's layout and PyTorch's order are the same for the spec, as they are for one layer in
        one direction without a projection
    retain : keep what backward spends, so that autograd can run it again, as ``retain_graph=True``
        asks; at the cost of a copy of the reserve space
    keywords : those of `dnnffi.lstm_forward`

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As `dnnffi.lstm`.
    ContextError
        In backward, for a second time without ``retain``.
    UnsupportedError
        In backward, for a second derivative. In ``torch.jit.trace``. For dropout in a forward pass
        that runs during backward, as ``torch.utils.checkpoint`` runs it again.

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
    y, h_n, c_n = _network("lstm", x, hx, weights, spec, layout, retain, keywords)
    return y, (h_n, c_n)


def gru(
    x: Tensor,
    h_0: Tensor | None,
    weights: RNNWeights[Any] | Sequence[Tensor] | Tensor,
    /,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    retain: bool = False,
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
    y, h_n = _network("gru", x, h_0, weights, spec, layout, retain, keywords)
    return y, h_n


def rnn_tanh(
    x: Tensor,
    h_0: Tensor | None,
    weights: RNNWeights[Any] | Sequence[Tensor] | Tensor,
    /,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    retain: bool = False,
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
    y, h_n = _network("rnn_tanh", x, h_0, weights, spec, layout, retain, keywords)
    return y, h_n


def rnn_relu(
    x: Tensor,
    h_0: Tensor | None,
    weights: RNNWeights[Any] | Sequence[Tensor] | Tensor,
    /,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    retain: bool = False,
    **keywords: Unpack[RNNKeywords],
) -> tuple[Tensor, Tensor]:
    """`dnnffi.rnn_relu_forward` on tensors: ``y, h_n``. Otherwise as `lstm`.

    Examples
    --------
    >>> import torch
    >>> import dnnffi.torch
    >>> one, x = torch.ones(1, 1), torch.ones(3, 1, 1, requires_grad=True)
    >>> y, h_n = dnnffi.torch.rnn_relu(x, None, [one, one], retain=True)
    >>> y.sum().backward(retain_graph=True)
    >>> y.sum().backward()
    >>> x.grad.ravel().tolist()
    [6.0, 4.0, 2.0]
    """
    y, h_n = _network("rnn_relu", x, h_0, weights, spec, layout, retain, keywords)
    return y, h_n


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


# Networks


class _Call(NamedTuple):
    """The arguments of a network's call that are not tensors.

    ``packed`` is an `RNNWeights` that the user passed; ``flat`` is the spec and layout of weights
    that are one flat tensor. Both are None for a list of tensors.
    """

    mode: str
    packed: RNNWeights[Any] | None
    flat: tuple[RNNSpec, LayoutName] | None
    retain: bool
    keywords: RNNKeywords

    def run(
        self, suffix: str, x: Tensor, states: Sequence[Tensor | None], weights: Sequence[Tensor]
    ) -> tuple[Any, ...]:
        """``dnnffi.lstm`` or its like, with ``suffix`` "" or "_forward"."""
        keywords, taken, h = self.keywords, list(map(_plain, weights)), tuple(map(_plain, states))
        hx: Any = h[0] if len(h) == 1 else h
        if all(state is None for state in h):
            hx = None
        if x.is_cuda:
            embedded: RNNOptionsDict = {"allocator": _allocate, "stream": _stream}
            keywords = {**keywords, "options": {**embedded, **(keywords.get("options") or {})}}
        given: Any = taken if self.packed is None else self.packed
        if self.flat is not None:
            given = _over(taken[0], *self.flat)
        return getattr(networks, self.mode + suffix)(_plain(x), hx, given, **keywords)


def _over(flat: Tensor | None, spec: RNNSpec, layout: LayoutName) -> RNNWeights[Any]:
    """Return an `RNNWeights` over the memory of a flat tensor."""
    assert flat is not None
    if not flat.is_cuda:
        return RNNWeights(flat, spec, backend=layout)
    with using(_allocate, _stream):
        return RNNWeights(device_array("weights", flat), spec, backend=layout)


def _network(
    mode: str,
    x: Tensor,
    hx: Any,
    weights: RNNWeights[Any] | Sequence[Tensor] | Tensor,
    spec: RNNSpec | None,
    layout: LayoutName | None,
    retain: bool,
    keywords: RNNKeywords,
) -> tuple[Tensor, ...]:
    """(y, h_n) or (y, h_n, c_n)."""
    if is_compiling():
        return uncompiled(_network)(mode, x, hx, weights, spec, layout, retain, keywords)
    packed, flat, given = _weights(weights, spec, layout)
    states = _states(mode, hx)
    _check(x=x, **dict(zip(("h_0", "c_0"), states, strict=False)))
    _check(**{f"weights[{index}]": weight for index, weight in enumerate(given)})
    call = _Call(mode, packed, flat, retain, keywords)
    dropout = keywords.get("dropout", 0.0), keywords.get("dropout_state")
    tensors = [one for one in (x, *states, *given) if one is not None]
    tracked = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    if dropout[0] and _runs_in_backward():
        raise UnsupportedError(
            "dnnffi.torch",
            "",
            f"dropout is {dropout[0]} in a forward pass that runs during backward, as "
            f"torch.utils.checkpoint runs it again: it would drop other elements than the first "
            f"one. Leave the network out of the checkpoint, or call it layer by layer with "
            f"torch.nn.functional.dropout between the layers, which PyTorch repeats",
        )
    if tracked or dropout != (0.0, None) or any(map(has_tangent, tensors)):
        return _Network.apply(call, len(states), x, *states, *given)
    inference = keywords.copy()
    inference.pop("dropout", None)
    inference.pop("dropout_state", None)
    with _device_of(x):
        results = call._replace(keywords=inference).run("", x, states, given)
    return tuple(map(_tensor, _flattened(results)))


def _weights(
    weights: Any, spec: RNNSpec | None, layout: LayoutName | None
) -> tuple[RNNWeights[Any] | None, tuple[RNNSpec, LayoutName] | None, list[Any]]:
    """Return ``weights`` as a call has them, and their tensors: see `_Call`."""
    if isinstance(weights, RNNWeights):
        if spec is not None and spec != weights.spec:
            raise ValueError(f"spec is {spec}; the weights are those of {weights.spec}")
        if layout is not None and layout != weights.backend:
            raise ValueError(
                f"layout is {layout!r}; the weights are in that of {weights.backend!r}"
            )
        return weights, None, []
    is_flat = isinstance(weights, Tensor)
    if is_flat == (spec is None) or not isinstance(weights, Iterable):
        module = isinstance(weights, torch.nn.Module)
        raise TypeError(
            "weights must be a sequence of tensors, an RNNWeights, or one flat tensor with spec=; "
            f"got {type(weights).__name__} {'without' if spec is None else 'and'} spec"
            f"{'; list(module.parameters()) has those of a module' if module else ''}"
        )
    if is_flat:
        assert spec is not None
        return None, (spec, layout_of_flat(spec, layout)), [weights]
    if layout is not None:
        raise ValueError("layout is for a flat tensor of weights; got a sequence of tensors")
    return None, None, list(weights)


def _runs_in_backward() -> bool:
    """Whether PyTorch's backward runs in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def _states(mode: str, hx: Any) -> tuple[Any, ...]:
    if mode != "lstm":
        return (hx,)
    if hx is None:
        return None, None
    if not isinstance(hx, tuple | list) or len(hx) != 2:
        raise TypeError(f"hx of an LSTM must be (h_0, c_0) or None; got {type(hx).__name__}")
    return tuple(hx)


class _Network(torch.autograd.Function):  # type: ignore[misc]
    """A training forward. The context keeps what dnnffi's backward needs, PyTorch the rest."""

    @staticmethod
    def forward(ctx: Any, call: _Call, parts: int, x: Any, *tensors: Any) -> tuple[Tensor, ...]:
        states, weights = tensors[:parts], tensors[parts:]
        with _device_of(x):
            *results, context = call.run("_forward", x, states, weights)
        y, *last = map(_tensor, _flattened(results))
        ctx.call, ctx.parts, ctx.context = call, parts, context
        # Kept twice, so that PyTorch sees where one of them is written to before backward.
        ctx.save_for_backward(x, *tensors, y)
        ctx.set_materialize_grads(False)
        return y, *last

    @staticmethod
    def backward(ctx: Any, dy: Any, *dstates: Any) -> tuple[Any, ...]:
        parts, context, call = ctx.parts, ctx.context, ctx.call
        _, _, *needed = ctx.needs_input_grad
        of_states, of_weights = needed[1 : 1 + parts], needed[1 + parts :]
        wanted = {"x": needed[0], "hx": any(of_states), "weights": any(of_weights)}

        def gradients(given: Sequence[Any]) -> list[Any]:
            dy, *dstates = map(_plain, given)
            dhx = dstates[0] if parts == 1 else tuple(dstates)
            need = [name for name in wanted if wanted[name]]
            try:
                dx, dhx, dweights = context.backward(dy, dhx, need=need, retain=call.retain)
            except ContextError:
                raise ContextError(
                    f"autograd goes back through this call for the second time, and the first "
                    f"spent what it needs: dnnffi.torch.{call.mode}(..., retain=True) keeps it"
                ) from None
            if isinstance(dweights, RNNWeights):
                dweights = [dweights.flat]
            states = dhx if isinstance(dhx, tuple) else (dhx,) * parts
            return [dx, *states, *(dweights or (None,) * len(of_weights))]

        found = _FirstDerivative.apply(gradients, 1 + parts, dy, *dstates, *ctx.saved_tensors)
        return None, None, *(one if need else None for one, need in zip(found, needed, strict=True))


def _flattened(results: Sequence[Any]) -> tuple[Any, ...]:
    y, states = results
    return (y, *states) if isinstance(states, tuple) else (y, states)


# Convolutions


def _convolution(name: str, geometry: Any, where: Any, x: Any, w: Any, bias: Any) -> Tensor:
    if is_compiling():
        return uncompiled(_convolution)(name, geometry, where, x, w, bias)
    _check(x=x, w=w, bias=bias)
    return _Convolution.apply(name, geometry, where, x, w, bias)


class _Convolution(torch.autograd.Function):  # type: ignore[misc]
    """``dnnffi.conv`` or ``conv_transpose``, and their three gradients."""

    @staticmethod
    def forward(ctx: Any, name: str, geometry: Any, where: Any, *tensors: Any) -> Tensor:
        ctx.asked, ctx.shapes = (name, geometry, where), [t.shape for t in tensors[:2]]
        ctx.save_for_backward(*tensors[:2])
        with _device_of(tensors[0]), _cupy_stream(tensors[0]):
            return _tensor(getattr(convolutions, name)(*tensors, **geometry, **where))

    @staticmethod
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        name, geometry, where = ctx.asked
        x_shape, w_shape = map(tuple, ctx.shapes)
        _, _, _, *needed = ctx.needs_input_grad
        x, w = ctx.saved_tensors

        def gradients(given: Sequence[Any]) -> list[Any]:
            (dy,) = given
            rest = geometry | where
            of_x, of_w = (getattr(convolutions, f"{name}_backward_{of}") for of in _GRADIENTS)
            with _cupy_stream(dy):
                return [
                    of_x(dy, w, x_shape, **rest) if needed[0] else None,
                    of_w(dy, x, w_shape, **rest) if needed[1] else None,
                    convolutions.conv_backward_bias(dy, **where) if needed[2] else None,
                ]

        return None, None, None, *_FirstDerivative.apply(gradients, 1, dy, x, w)


_GRADIENTS = ("data", "weights")


# Both


class _FirstDerivative(torch.autograd.Function):  # type: ignore[misc]
    """``gradients`` of the first ``count`` tensors, which depend on the others too.

    PyTorch's ``once_differentiable`` would leave out that they do, where the first are constants.
    """

    @staticmethod
    def forward(
        ctx: Any, gradients: Callable[[Sequence[Any]], list[Any]], count: int, *tensors: Any
    ) -> tuple[Tensor | None, ...]:
        first = next(one for one in tensors if one is not None)
        with _device_of(first):
            return tuple(map(_tensor, gradients(tensors[:count])))

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        raise UnsupportedError(
            "dnnffi.torch",
            "",
            "it has no second derivatives: the libraries give first ones only",
        )


def _check(**tensors: Any) -> None:
    """Raise ``TypeError`` for what is no tensor, nor None where that may be."""
    for name, tensor in tensors.items():
        may_be_none = name in ("h_0", "c_0", "bias")
        if not isinstance(tensor, Tensor) and not (may_be_none and tensor is None):
            raise TypeError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}")


def _plain(tensor: Tensor | None) -> Tensor | None:
    """What dnnffi takes of a network's tensors: without gaps."""
    return None if tensor is None else tensor.contiguous()


def _tensor(result: Any) -> Tensor | None:
    """A result as a tensor."""
    if result is None:
        return None
    # Not the allocator's own object, which dnnffi's context keeps: it would keep itself alive.
    return result.detach() if isinstance(result, Tensor) else torch.from_dlpack(result)


def _allocate(shape: tuple[int, ...], dtype: str) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def _device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """The device of a tensor as the current one."""
    return torch.cuda.device_of(tensor) if tensor.is_cuda else nullcontext()


def _cupy_stream(tensor: Tensor) -> AbstractContextManager[Any]:
    """PyTorch's stream as CuPy's, for tensors on a GPU."""
    if not tensor.is_cuda:
        return nullcontext()
    cupy = import_cupy()
    return cupy.cuda.Stream.from_external(torch.cuda.current_stream(tensor.device))
