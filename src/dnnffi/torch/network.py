"""One call of a network on tensors, and its backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from dnnffi.device.torch_tensors import check_not_traced, is_compiling, uncompiled
from dnnffi.dropout import DropoutState
from dnnffi.errors import ContextError, UnsupportedError
from dnnffi.execution.embedding import embeds
from dnnffi.rnn import functions as core
from dnnffi.rnn.call_path import run_embedded
from dnnffi.rnn.resets import RESET_NAMES, check_given
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
    resets: Tensor | None
    reset_to: Any
    dropout: float
    dropout_state: DropoutState | None
    backend: BackendName | None
    options: RNNOptionsDict | None


class _Call(NamedTuple):
    """The arguments of a training call that have no gradient, and the number of its states.

    ``num_states`` are those of hx, and with ``resets`` as many that replace others.
    """

    mode: str
    form: Form
    keywords: RNNKeywords
    retain: bool | None
    num_states: int
    resets: Tensor | None
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
    states, resets = _states(mode, hx, "hx"), None
    num_states = len(states)
    if keywords and (keywords.get("resets") is not None or keywords.get("reset_to") is not None):
        resets, *replacing = _resets(mode, x, keywords)
        states = (*states, *replacing)
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
        lengths: Any = keywords.get("lengths")
        if isinstance(lengths, Tensor):
            keywords["lengths"] = _lengths(lengths, x)
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
    need = _needed(x, states, num_states, tensors) if torch.is_grad_enabled() else ()
    if (
        need
        or dropout != 0.0
        or keywords.get("dropout_state") is not None
        or has_tangents((x, *states, *tensors))
    ):
        call = _Call(mode, form, keywords, retain, num_states, resets, need)
        return _Network.apply(call, x, *states, *tensors)
    keywords.pop("dropout", None)
    keywords.pop("dropout_state", None)
    return _call_core(mode, False, form, keywords, x, states, resets, tensors)[0]


def _call_core(
    mode: Any,
    training: bool,
    form: Form,
    keywords: Any,
    x: Tensor,
    states: Sequence[Tensor | None],
    resets: Tensor | None,
    weights: Sequence[Tensor],
) -> tuple[tuple[Any, ...], Any]:
    """Return the results of the core as tensors, and the context of a training forward pass."""
    if resets is not None:
        count = len(states) // 2
        states, replacing = states[:count], states[count:]
        reset_to = _hx(replacing, x, RESET_NAMES)
        keywords = {**keywords, "resets": as_array("resets", resets, x), "reset_to": reset_to}
    arrays = as_array("x", x, x), _hx(states, x, _STATE_NAMES), form.native(weights, x)
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
    resets: Any = None,
    reset_to: Any = None,
    dropout: float = 0.0,
    dropout_state: None = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[tuple[Any, ...], Any]:
    """`_call_core` on a GPU, of a call that drops nothing and does not name an allocator."""
    network = mode, training, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    drops = dropout if dropout.__class__ is float else check_dropout(dropout), dropout_state
    y, h_n, c_n, context = run_embedded(
        *(x, hx, weights, call, options, drops, allocation),
        is_watched=is_watched,
        resets=resets,
        reset_to=reset_to,
    )
    return (y, h_n) if c_n is None else (y, h_n, c_n), context


def _needed(
    x: Tensor, states: Sequence[Tensor | None], num_states: int, weights: Sequence[Tensor]
) -> list[GradientName]:
    """Return the gradients that the backward pass of the core has to compute.

    The first ``num_states`` are those of hx, the others replace states.
    """
    need: list[GradientName] = ["x"] if x.requires_grad else []
    for number, state in enumerate(states):
        name: GradientName = "hx" if number < num_states else "reset_to"
        if state is not None and state.requires_grad and name not in need:
            need.append(name)
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


_STATE_NAMES = "h_0", "c_0"


def _states(mode: str, hx: Any, name: str) -> tuple[Any, ...]:
    """Return the parts of hx or reset_to, (h, c) of an LSTM, else (h,); None is for zeros."""
    names = _STATE_NAMES if name == "hx" else RESET_NAMES
    if hx is None:
        return (None, None) if mode == "lstm" else (None,)
    if mode != "lstm":
        check_tensor("h_0" if name == "hx" else name, hx)
        return (hx,)
    if not isinstance(hx, (tuple, list)) or len(hx) != 2:
        raise TypeError(
            f"{name} of an LSTM must be ({', '.join(names)}) or None; got {type(hx).__name__}"
        )
    for part, state in zip(names, hx, strict=True):
        if state is not None:
            check_tensor(part, state)
    return tuple(hx)


def _resets(mode: str, x: Tensor, keywords: RNNKeywords) -> tuple[Any, ...]:
    """Take the arguments about resets out of the keywords: flags of one byte, and states.

    States with one row for all get a row for each, of which autograd adds up the gradients.
    """
    resets: Any = keywords.pop("resets", None)
    reset_to = keywords.pop("reset_to", None)
    check_given(resets, reset_to)
    check_tensor("resets", resets)
    if resets.is_floating_point() or resets.is_complex():
        raise TypeError(f"resets must be bool or integers; got {resets.dtype}")
    flags = resets if resets.dtype is torch.bool else resets != 0
    flags = flags.to(x.device, non_blocking=True).view(torch.uint8)
    batch_sizes = keywords.get("batch_sizes")
    if batch_sizes is not None:
        batch = int(batch_sizes[0]) if len(batch_sizes) else 0
    else:
        batch = x.shape[0 if keywords.get("batch_first", False) else 1] if x.dim() == 3 else 1
    states = (
        state.expand(-1, batch, -1)
        if state is not None and state.dim() == 3 and state.shape[1] == 1
        else state
        for state in _states(mode, reset_to, "reset_to")
    )
    return flags, *states


def _lengths(lengths: Tensor, x: Tensor) -> Any:
    """Return lengths as the core takes them: int32 on the GPU of x, else a list.

    Others than those of int32 count as the nearest.
    """
    if not lengths.is_cuda or lengths.device != x.device:
        return lengths.tolist()
    if lengths.dtype in (torch.int32, torch.int64):
        return lengths.clamp(-1, 2**31 - 1).to(torch.int32)
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype is torch.bool:
        raise TypeError(f"lengths must be integers; got {lengths.dtype}")
    return lengths.to(torch.int32)


def _hx(states: Sequence[Tensor | None], x: Tensor, names: Sequence[str]) -> Any:
    """Return states as the core takes them: one array or a pair, None for zeros."""
    if all(state is None for state in states):
        return None
    found = [
        None if state is None else as_array(name, state, x)
        for name, state in zip(names, states, strict=False)
    ]
    return found[0] if len(found) == 1 else tuple(found)


class _Network(torch.autograd.Function):  # type: ignore[misc]
    """A training forward pass. Its context has what the core keeps; PyTorch saves the tensors."""

    @staticmethod
    def forward(ctx: Any, call: _Call, x: Any, *tensors: Any) -> tuple[Any, ...]:
        mode, form, keywords, _, count, resets, _ = call
        count *= 1 if resets is None else 2
        states, weights = tensors[:count], tensors[count:]
        results, context = _call_core(mode, True, form, keywords, x, states, resets, weights)
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
    mode, form, _, retain, count, resets, need = call
    x = saved[0]
    dy = None if given[0] is None else as_array("dy", given[0], x)
    dh_n = None if given[1] is None else as_array("dh_n", given[1], x)
    dc_n = None if count == 1 or given[2] is None else as_array("dc_n", given[2], x)
    if retain is None:
        retain = keeps_graph()
    try:
        if x.is_cuda:
            dx, dh_0, dc_0, dweights, of_resets = context.gradients(
                dy, dh_n, dc_n, weights_needed="weights" in need, retain=retain
            )
        else:
            dhx = dh_n if count == 1 else (dh_n, dc_n)
            dx, dhx, dweights, of_resets = context._backward(dy, dhx, need, retain)
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
    states: tuple[Any, ...] = (as_tensor(dh_0), as_tensor(dc_0))[:count]
    if resets is not None:
        of_resets = of_resets if isinstance(of_resets, tuple) else (of_resets, None)
        states += tuple(map(as_tensor, of_resets[:count]))
    weights = saved[1 + len(states) : -1]
    return as_tensor(dx), *states, *form.gradients(dweights, weights)
