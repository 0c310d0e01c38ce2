"""One call of a network on tensors, and its backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypedDict, cast

import torch
from torch import Tensor

from dnnffi.device.external import DeviceArray
from dnnffi.device.torch_tensors import check_not_traced, detached, is_compiling, uncompiled
from dnnffi.dropout import DropoutState
from dnnffi.errors import ContextError, UnsupportedError
from dnnffi.execution.embedding import embeds
from dnnffi.rnn import functions as core
from dnnffi.rnn.executor_plan import SavedForward
from dnnffi.rnn.resets import RESET_NAMES, check_given
from dnnffi.rnn.row_arrays import is_on_device
from dnnffi.spec.names import BackendName, GradientName, Integers, LayoutName
from dnnffi.spec.options import RNNOptionsDict
from dnnffi.spec.problem import check_dropout
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import as_integers, check_batch_sizes
from dnnffi.torch.autograd import (
    has_saved_tensor_hooks,
    has_tangents,
    keeps_graph,
    recorded,
    runs_in_backward,
)
from dnnffi.torch.known import GRADIENT_NAMES, TensorContext, run_known, weights_address
from dnnffi.torch.tensors import (
    allocation_on,
    as_array,
    as_tensor,
    check_tensor,
    int32_array,
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
    states, resets, dropout = state_parts(mode, hx, "hx"), None, 0.0
    num_states = len(states)
    if keywords:
        _read_sizes(keywords, x)
        dropout = keywords.get("dropout", 0.0)
        if dropout.__class__ is not float:
            dropout = keywords["dropout"] = check_dropout(dropout)
        options: Any = keywords.get("options")
        if options.__class__ is not dict and isinstance(options, Mapping):
            keywords["options"] = cast("RNNOptionsDict", dict(options))
        if keywords.get("resets") is not None or keywords.get("reset_to") is not None:
            resets, *replacing = _resets(mode, x, keywords)
            states = (*states, *replacing)
    packed, tensors = read_weights(weights, spec, layout)
    computed = None
    if packed is None and is_eligible(tensors[0]):
        computed = autocast_dtype(x)
    if computed is not None:
        x = _cast(x, computed)
        states = tuple(None if one is None else _cast(one, computed) for one in states)
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
    """Return the results as tensors, and the context of a training forward pass.

    That is a `TensorContext` where the network is known, else one of the core.
    """
    native, options = None, keywords.get("options")
    # Hooks for saved tensors keep copies, so that PyTorch lets the caller write to the originals.
    is_hooked = training and has_saved_tensor_hooks()
    if is_hooked and resets is not None:
        resets = resets.clone()
    if x.is_cuda and (options is None or (isinstance(options, dict) and not embeds(options))):
        allocation, native = allocation_on(x.get_device()), form.native(weights, x)
        # Autograd watches the tensors that it saves; those of a constant are none of them.
        if isinstance(native, RNNWeights) and not (training and isinstance(form, ConstantForm)):
            given = x, states, resets, native
            done = run_known(mode, training, allocation, *given, **keywords)
            if done is not None:
                return done
        keywords = {**keywords, "options": {**allocation._asdict(), **(options or {})}}
    if is_hooked:
        x = x.clone()
        states = [None if one is None else one.clone() for one in states]
        if not x.is_cuda:
            weights = [one.clone() for one in weights]
    if resets is not None:
        count = len(states) // 2
        states, replacing = states[:count], states[count:]
        reset_to = _hx(replacing, x, RESET_NAMES)
        keywords = {**keywords, "resets": as_array("resets", resets, x), "reset_to": reset_to}
    if isinstance(keywords.get("lengths"), Tensor):
        keywords = {**keywords, "lengths": int32_array(keywords["lengths"])}
    function = getattr(core, f"{mode}_forward" if training else mode)
    arrays = as_array("x", x, x), _hx(states, x, _STATE_NAMES)
    native = form.native(weights, x) if native is None else native
    y, last, *context = function(*arrays, native, **keywords)
    last = map(as_tensor, last) if isinstance(last, tuple) else (as_tensor(last),)
    return (as_tensor(y), *last), context[0] if training else None


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


def is_eligible(tensor: Tensor) -> bool:
    """Whether autocast changes the dtype of a tensor; it leaves float64 as it is."""
    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if isinstance(tensor, Tensor) and is_eligible(tensor) else tensor


_STATE_NAMES = "h_0", "c_0"


def state_parts(mode: str, hx: Any, name: str) -> tuple[Any, ...]:
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
    if resets.layout is not torch.strided:
        detached("resets", resets)  # which refuses it
    flags = resets if resets.dtype is torch.bool else resets != 0
    if x.is_cuda and not flags.is_cuda and flags.is_pinned():
        flags = flags.clone()  # the caller may write to it before the GPU has read it
    flags = flags.to(x.device, non_blocking=x.is_cuda).view(torch.uint8)
    batch_sizes: Any = keywords.get("batch_sizes")
    if batch_sizes is not None:
        batch = check_batch_sizes(batch_sizes)[0]
    else:
        batch = x.shape[0 if keywords.get("batch_first", False) else 1] if x.dim() == 3 else 1
    states = (
        state.expand(-1, batch, -1)
        if state is not None and state.dim() == 3 and state.shape[1] == 1
        else state
        for state in state_parts(mode, reset_to, "reset_to")
    )
    return flags, *states


def _read_sizes(keywords: RNNKeywords, x: Tensor) -> None:
    """Replace lengths and batch_sizes, of whatever kind, by tuples: an iterator is read only once.

    Lengths on a GPU stay there.
    """
    lengths: Any = keywords.get("lengths")
    if isinstance(lengths, Tensor):
        lengths = keywords["lengths"] = _lengths(lengths, x)
    if not (lengths is None or isinstance(lengths, Tensor) or is_on_device(lengths)):
        keywords["lengths"] = as_integers("lengths", lengths)
    sizes: Any = keywords.get("batch_sizes")
    if sizes is not None:
        sizes = sizes.tolist() if isinstance(sizes, Tensor) else sizes
        keywords["batch_sizes"] = as_integers("batch_sizes", sizes)


def _lengths(lengths: Tensor, x: Tensor) -> Any:
    """Return lengths as the core takes them: int32 on the GPU of x, else a list.

    Those on the GPU are clamped, from -1 to the largest int32.
    """
    if not lengths.is_cuda or lengths.device != x.device:
        return lengths.tolist()
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype is torch.bool:
        raise TypeError(f"lengths must be integers; got {lengths.dtype}")
    largest = 2**31 - 1
    if lengths.dtype is torch.uint64:  # PyTorch clamps signed integers alone
        signed = lengths.view(torch.int64)
        lengths = signed.where(signed >= 0, largest)
    elif lengths.dtype is torch.uint32:
        lengths = lengths.to(torch.int64)
    if lengths.dtype in (torch.int32, torch.int64):
        lengths = lengths.clamp(-1, largest)
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
    """A training forward pass.

    PyTorch saves the tensors that the backward pass reads again, so that it notices a write to one
    of them. It may free their memory, and give back equal tensors elsewhere. The memory of the
    weights is kept here, since the backward pass reads them where they were.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, x: Any, *tensors: Any) -> tuple[Any, ...]:
        mode, form, keywords, _, count, resets, _ = call
        count *= 1 if resets is None else 2
        states, weights = tensors[:count], tensors[count:]
        results, context = _call_core(mode, True, form, keywords, x, states, resets, weights)
        y, *rest = results
        if y.is_cuda and not isinstance(context, TensorContext):
            y = y.detach()  # the core's context has the other object, which would keep the context
        ctx.call, ctx.context = call, context
        # Its memory has all weights, unless the call has copied them.
        ctx.first_weight = weights[0].detach() if weights else None
        ctx.save_for_backward(x, y, *tensors, *(() if resets is None else (resets,)))
        ctx.set_materialize_grads(False)
        return y, *rest

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        compute = partial(_gradients, ctx.call, ctx.context, ctx.first_weight, saved)
        found = recorded(compute, given, saved) if torch.is_grad_enabled() else compute(given)
        if ctx.context.is_spent:
            ctx.first_weight = None
        return None, *found


def _gradients(
    call: _Call,
    context: Any,
    first_weight: Tensor | None,
    saved: Sequence[Any],
    given: Sequence[Any],
) -> tuple[Any, ...]:
    """Return the gradients of x, the states and the weights from ``given``, those of the results.

    Autograd ignores gradients of tensors that require none.
    """
    mode, form, _, retain, count, resets, need = call
    if retain is None:
        retain = keeps_graph()
    try:
        x, y, *others = saved
        if isinstance(context, TensorContext):
            needed = "weights" in need
            read = x, y, others[:count], first_weight
            found = context.gradients(*read, given, weights_needed=needed, retain=retain)
        else:
            _follow_weights(context, first_weight)
            found = _gradients_of_core(context, x, given, need, retain)
    except ContextError:
        if not context.is_spent:
            raise
        raise ContextError(
            f"autograd runs the backward pass of this call for the second time, and the first "
            f"has used the reserve space: dnnffi.torch.{mode}(..., retain=True) keeps it"
        ) from None
    dx, states, dweights, of_resets = found
    states = states[:count] if resets is None else (*states[:count], *of_resets[:count])
    weights = others[len(states) : None if resets is None else -1]
    return dx, *states, *form.gradients(dweights, weights)


def _follow_weights(context: Any, first_weight: Tensor | None) -> None:
    """Let a context of the core read the weights where they are now, as `TensorContext` does."""
    saved, weights = context._saved, context._call.weights
    if not isinstance(saved, SavedForward) or not isinstance(weights, RNNWeights):
        return
    buffer: Any = weights._buffer
    if isinstance(buffer, DeviceArray):
        address = weights_address(buffer, first_weight)
        if address != saved.at.weights:
            context._saved = saved._replace(at=saved.at._replace(weights=address))


def _gradients_of_core(
    context: Any,
    x: Tensor,
    given: Sequence[Tensor | None],
    need: Sequence[GradientName],
    retain: bool,
) -> tuple[Any, Sequence[Any], Any, Sequence[Any]]:
    """Return what `TensorContext.gradients` does, by the context of a function of the core."""
    arrays = [
        None if one is None else as_array(name, one, x)
        for name, one in zip(GRADIENT_NAMES, given, strict=False)
    ]
    dhx = arrays[1] if len(arrays) == 2 else tuple(arrays[1:])
    dx, dhx, dweights, of_resets = context._backward(arrays[0], dhx, need, retain)
    if isinstance(dweights, RNNWeights):
        dweights = dweights.flat
    return as_tensor(dx), _tensors_of(dhx), dweights, _tensors_of(of_resets)


def _tensors_of(states: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return a pair of tensors of a pair, an array or None."""
    h, c = states if isinstance(states, tuple) else (states, None)
    return as_tensor(h), as_tensor(c)
