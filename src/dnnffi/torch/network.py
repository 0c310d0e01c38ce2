"""One call of a network on tensors, and its backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from dnnffi.device.torch_modes import check_not_traced, is_compiling, uncompiled
from dnnffi.dropout import DropoutState
from dnnffi.errors import ContextError, UnsupportedError
from dnnffi.execution.embedding import embeds
from dnnffi.rnn import functions as core
from dnnffi.spec.names import BackendName, GradientName, Integers, LayoutName
from dnnffi.spec.options import RNNOptionsDict
from dnnffi.spec.problem import check_dropout
from dnnffi.spec.rnn import RNNSpec
from dnnffi.torch.autograd import (
    has_tangents,
    keeps_graph,
    recorded,
    runs_in_backward,
)
from dnnffi.torch.tensors import (
    Allocation,
    allocation_on,
    as_array,
    as_tensor,
    check_tensor,
    on_device,
)
from dnnffi.torch.weights import (
    ConstantForm,
    Form,
    SeparateForm,
    flat_form,
    is_in_cudnn_layout,
    list_form,
    read_weights,
)
from dnnffi.weights import RNNWeights


class RNNKeywords(TypedDict, total=False):
    """Keywords of a network's call."""

    num_layers: int
    bidirectional: bool
    batch_first: bool
    lengths: Integers | Tensor | None
    batch_sizes: Integers | Tensor | None
    dropout: float
    dropout_state: DropoutState | None
    backend: BackendName | None
    options: RNNOptionsDict | None


class _Call(NamedTuple):
    """The arguments of a training call that are not tensors, and the number of states."""

    mode: str
    form: Form
    keywords: RNNKeywords
    retain: bool | None
    num_states: int
    need: Sequence[GradientName]


def run(
    mode: str,
    x: Tensor,
    hx: Any,
    weights: Any,
    spec: RNNSpec | None,
    layout: LayoutName | None,
    retain: bool | None,
    keywords: RNNKeywords,
) -> tuple[Any, ...]:
    """Return (y, h_n) or (y, h_n, c_n) of a call of `dnnffi.torch.lstm` or its like."""
    if is_compiling():
        return uncompiled(run)(mode, x, hx, weights, spec, layout, retain, keywords)
    if not isinstance(x, Tensor):
        check_tensor("x", x)
    check_not_traced("x")
    if x.is_cuda and torch.cuda.current_device() != x.get_device():
        with on_device(x):
            return run(mode, x, hx, weights, spec, layout, retain, keywords)
    states = _states(mode, hx)
    packed, tensors = read_weights(weights, spec, layout)
    computed = None if packed is not None else autocast_dtype(x)
    if computed is not None:
        x = _cast(x, computed)
        states = tuple(None if one is None else _cast(one, computed) for one in states)
        if not _is_eligible(tensors[0]):
            computed = None
    form: Form
    if packed is not None:
        form = ConstantForm(packed)
    elif spec is not None:
        form = flat_form(spec, layout, computed)
        if computed is not None:
            tensors = [_cast(tensors[0], computed)]
    elif is_in_cudnn_layout(keywords.get("backend")):
        layers, bidirectional = keywords.get("num_layers", 1), keywords.get("bidirectional", False)
        form = list_form(mode, tensors, layers, bidirectional, computed)
    else:
        form = SeparateForm()
        if computed is not None:
            tensors = [_cast(one, computed) for one in tensors]
    dropout = 0.0
    if keywords:
        if isinstance(keywords.get("lengths"), Tensor):
            keywords["lengths"] = keywords["lengths"].tolist()  # type: ignore[union-attr]
        if isinstance(keywords.get("batch_sizes"), Tensor):
            keywords["batch_sizes"] = keywords["batch_sizes"].tolist()  # type: ignore[union-attr]
        dropout = keywords.get("dropout", 0.0)
    if dropout and runs_in_backward():
        raise UnsupportedError(
            "dnnffi.torch",
            "",
            f"dropout is {dropout} in a forward pass that runs during backward, as "
            f"torch.utils.checkpoint runs it again: it would drop other elements than the first "
            f"one. Leave the network out of the checkpoint, or call it layer by layer with "
            f"torch.nn.functional.dropout between the layers, which PyTorch repeats",
        )
    need = _needed(x, states, tensors) if torch.is_grad_enabled() else ()
    if (
        need
        or dropout != 0.0
        or keywords.get("dropout_state") is not None
        or has_tangents((x, *states, *tensors))
    ):
        call = _Call(mode, form, keywords, retain, len(states), need)
        return _Network.apply(call, x, *states, *tensors)
    keywords.pop("dropout", None)
    keywords.pop("dropout_state", None)
    return _call_core(mode, False, form, keywords, x, states, tensors)[0]


def _call_core(
    mode: Any,
    training: bool,
    form: Form,
    keywords: Any,
    x: Tensor,
    states: Sequence[Tensor | None],
    weights: Sequence[Tensor],
) -> tuple[tuple[Any, ...], Any]:
    """Return the results of the core as tensors, and the context of a training forward pass."""
    arrays = as_array("x", x, x), _hx(states, x), form.native(weights, x)
    options = keywords.get("options")
    if x.is_cuda:
        allocation = allocation_on(x.get_device())
        if not (
            embeds(options) or keywords.get("dropout") or keywords.get("dropout_state") is not None
        ):
            # Autograd watches the tensors that it saves; those of a constant are none of them.
            is_watched = isinstance(form, ConstantForm)
            return _run_on_gpu(mode, training, allocation, is_watched, *arrays, **keywords)
        keywords = {**keywords, "options": {**allocation._asdict(), **(options or {})}}
    function = getattr(core, f"{mode}_forward" if training else mode)
    y, last, *context = function(*arrays, **keywords)
    last = map(as_tensor, last) if isinstance(last, tuple) else (as_tensor(last),)
    return (as_tensor(y), *last), context[0] if training else None


def _run_on_gpu(
    mode: Any,
    training: bool,
    allocation: Allocation,
    is_watched: bool,
    x: Any,
    hx: Any,
    weights: Any,
    /,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Any = None,
    batch_sizes: Any = None,
    dropout: float = 0.0,
    dropout_state: None = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[tuple[Any, ...], Any]:
    """`_call_core` on a GPU, of a call that drops nothing and does not name an allocator."""
    network = mode, training, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    drops = dropout if dropout.__class__ is float else check_dropout(dropout), dropout_state
    y, h_n, c_n, context = core.run_embedded(
        x, hx, weights, call, options, drops, allocation, is_watched=is_watched
    )
    return (y, h_n) if c_n is None else (y, h_n, c_n), context


def _needed(
    x: Tensor, states: Sequence[Tensor | None], weights: Sequence[Tensor]
) -> list[GradientName]:
    """Return the gradients that the backward pass of the core has to compute."""
    need: list[GradientName] = ["x"] if x.requires_grad else []
    for state in states:
        if state is not None and state.requires_grad:
            need.append("hx")
            break
    for weight in weights:
        if weight.requires_grad:
            need.append("weights")
            break
    return need


def autocast_dtype(x: Tensor) -> Any:
    """Return the dtype in which ``torch.autocast`` lets a call compute, or None."""
    device_type = "cuda" if x.is_cuda else "cpu"
    if not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def _is_eligible(tensor: Tensor) -> bool:
    """Whether autocast changes the dtype of a tensor; it leaves float64 as it is."""
    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if isinstance(tensor, Tensor) and _is_eligible(tensor) else tensor


def _states(mode: str, hx: Any) -> tuple[Any, ...]:
    """Return (h_0, c_0) of an LSTM, else (h_0,); None is for zeros."""
    if hx is None:
        return (None, None) if mode == "lstm" else (None,)
    if mode != "lstm":
        check_tensor("h_0", hx)
        return (hx,)
    if not isinstance(hx, (tuple, list)) or len(hx) != 2:
        raise TypeError(f"hx of an LSTM must be (h_0, c_0) or None; got {type(hx).__name__}")
    h_0, c_0 = hx
    if h_0 is not None:
        check_tensor("h_0", h_0)
    if c_0 is not None:
        check_tensor("c_0", c_0)
    return h_0, c_0


def _hx(states: Sequence[Tensor | None], x: Tensor) -> Any:
    """Return states as the core takes them: one array or a pair, None for zeros."""
    if len(states) == 1:
        (state,) = states
        return None if state is None else as_array("h_0", state, x)
    h, c = states
    if h is None and c is None:
        return None
    return (
        None if h is None else as_array("h_0", h, x),
        None if c is None else as_array("c_0", c, x),
    )


class _Network(torch.autograd.Function):  # type: ignore[misc]
    """A training forward pass. Its context has what the core keeps; PyTorch saves the tensors."""

    @staticmethod
    def forward(ctx: Any, call: _Call, x: Any, *tensors: Any) -> tuple[Any, ...]:
        mode, form, keywords, _, count, _ = call
        states, weights = tensors[:count], tensors[count:]
        results, context = _call_core(mode, True, form, keywords, x, states, weights)
        y, *rest = results
        if y.is_cuda:
            y = y.detach()  # the core's context has the other object, which would keep the context
        ctx.call, ctx.context = call, context
        # Saved for PyTorch too, so that it notices a write to one of them before backward.
        ctx.save_for_backward(x, *tensors, y)
        ctx.set_materialize_grads(False)
        return y, *rest

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *recorded(partial(_gradients, ctx.call, ctx.context, saved), given, saved)
        return None, *_gradients(ctx.call, ctx.context, saved, given)


def _gradients(
    call: _Call, context: Any, saved: Sequence[Any], given: Sequence[Any]
) -> tuple[Any, ...]:
    """Return the gradients of x, the states and the weights, of those of the results.

    Autograd ignores those of tensors that require none.
    """
    mode, form, _, retain, count, need = call
    x = saved[0]
    dy = None if given[0] is None else as_array("dy", given[0], x)
    dh_n = None if given[1] is None else as_array("dh_n", given[1], x)
    dc_n = None if count == 1 or given[2] is None else as_array("dc_n", given[2], x)
    if retain is None:
        retain = keeps_graph()
    try:
        if x.is_cuda:
            dx, dh_0, dc_0, dweights = context.gradients(
                dy, dh_n, dc_n, weights_needed="weights" in need, retain=retain
            )
        else:
            dhx = dh_n if count == 1 else (dh_n, dc_n)
            dx, dhx, dweights = context._backward(dy, dhx, need, retain)
            dh_0, dc_0 = dhx if isinstance(dhx, tuple) else (dhx, None)
            if isinstance(dweights, RNNWeights):
                dweights = dweights.flat
    except ContextError:
        if not context.is_spent:
            raise
        raise ContextError(
            f"autograd runs the backward pass of this call for the second time, and the first "
            f"has used the reserve space: dnnffi.torch.{mode}(..., retain=True) keeps it"
        ) from None
    states = (as_tensor(dh_0), as_tensor(dc_0))[:count]
    return as_tensor(dx), *states, *form.gradients(dweights, saved[1 + count : -1])
