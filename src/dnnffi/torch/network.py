"""One call of a network on tensors, and its backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from dnnffi.device.torch_modes import check_not_traced, is_compiling, uncompiled
from dnnffi.dropout import DropoutState
from dnnffi.errors import ContextError, UnsupportedError
from dnnffi.rnn import functions as core
from dnnffi.spec.names import BackendName, Integers, LayoutName
from dnnffi.spec.options import RNNOptionsDict
from dnnffi.spec.rnn import RNNSpec
from dnnffi.torch.autograd import (
    first_derivative,
    has_tangents,
    keeps_graph,
    runs_in_backward,
)
from dnnffi.torch.tensors import as_array, as_tensor, check_tensor, on_device, options_on
from dnnffi.torch.weights import (
    ConstantForm,
    Form,
    SeparateForm,
    flat_form,
    is_in_cudnn_layout,
    list_form,
    read_weights,
)


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
    """The arguments of a network's call that are not tensors."""

    mode: str
    form: Form
    retain: bool | None
    keywords: RNNKeywords

    def forward(
        self, suffix: str, x: Tensor, states: Sequence[Tensor | None], weights: Sequence[Tensor]
    ) -> tuple[Any, ...]:
        """Call ``dnnffi.lstm`` or its like; ``suffix`` is "" or "_forward"."""
        keywords: Any = self.keywords
        if x.is_cuda:
            on_gpu, given = options_on(x.get_device()), keywords.get("options")
            keywords = {**keywords, "options": {**on_gpu, **given} if given else on_gpu}
        function = getattr(core, self.mode + suffix)
        arrays = as_array("x", x, x), _hx(states, x, ("h_0", "c_0")), self.form.native(weights, x)
        return function(*arrays, **keywords)


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
    check_tensor("x", x)
    check_not_traced("x")
    states = _states(mode, hx)
    packed, tensors = read_weights(weights, spec, layout)
    computed = None
    if packed is None:
        computed = autocast_dtype(x)
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
    for name in ("lengths", "batch_sizes"):
        integers: Any = keywords.get(name)
        if isinstance(integers, Tensor):
            keywords = {**keywords, name: integers.tolist()}  # type: ignore[misc]
    call = _Call(mode, form, retain, keywords)
    given = [x, *(one for one in states if one is not None), *tensors]
    dropout = keywords.get("dropout", 0.0), keywords.get("dropout_state")
    if dropout[0] and runs_in_backward():
        raise UnsupportedError(
            "dnnffi.torch",
            "",
            f"dropout is {dropout[0]} in a forward pass that runs during backward, as "
            f"torch.utils.checkpoint runs it again: it would drop other elements than the first "
            f"one. Leave the network out of the checkpoint, or call it layer by layer with "
            f"torch.nn.functional.dropout between the layers, which PyTorch repeats",
        )
    is_tracked = torch.is_grad_enabled() and any(one.requires_grad for one in given)
    if is_tracked or dropout != (0.0, None) or has_tangents(given):
        return _Network.apply(call, len(states), x, *states, *tensors)
    if "dropout" in keywords or "dropout_state" in keywords:
        inference = keywords.copy()
        inference.pop("dropout", None)
        inference.pop("dropout_state", None)
        call = call._replace(keywords=inference)
    with on_device(x):
        results = call.forward("", x, states, tensors)
    return tuple(map(as_tensor, _flattened(results)))


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
    if mode == "lstm":
        if hx is None:
            return None, None
        if not isinstance(hx, tuple | list) or len(hx) != 2:
            raise TypeError(f"hx of an LSTM must be (h_0, c_0) or None; got {type(hx).__name__}")
        states = tuple(hx)
    else:
        states = (hx,)
    for name, state in zip(("h_0", "c_0"), states, strict=False):
        if state is not None:
            check_tensor(name, state)
    return states


def _hx(states: Sequence[Tensor | None], x: Tensor, names: tuple[str, str]) -> Any:
    """Return states as the core takes them: one array or a pair, None for zeros."""
    arrays = [
        None if state is None else as_array(name, state, x)
        for name, state in zip(names, states, strict=False)
    ]
    if len(arrays) == 1:
        return arrays[0]
    return None if arrays[0] is None and arrays[1] is None else tuple(arrays)


def _flattened(results: Sequence[Any]) -> tuple[Any, ...]:
    y, states = results
    return (y, *states) if isinstance(states, tuple) else (y, states)


class _Network(torch.autograd.Function):  # type: ignore[misc]
    """A training forward pass. Its context has what the core keeps; PyTorch saves the tensors."""

    @staticmethod
    def forward(ctx: Any, call: _Call, count: int, x: Any, *tensors: Any) -> tuple[Any, ...]:
        with on_device(x):
            *results, context = call.forward("_forward", x, tensors[:count], tensors[count:])
        y, *last = map(as_tensor, _flattened(results))
        assert y is not None
        if y.is_cuda:
            y = y.detach()  # the core's context has the other object, which would keep the context
        ctx.call, ctx.count, ctx.context = call, count, context
        # Saved for PyTorch too, so that it notices a write to one of them before backward.
        ctx.save_for_backward(x, *tensors, y)
        ctx.set_materialize_grads(False)
        return y, *last

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Any, ...]:
        x, *saved = ctx.saved_tensors
        _, _, *needed = ctx.needs_input_grad
        count, call, context = ctx.count, ctx.call, ctx.context
        weights = saved[count:-1]
        wanted = {
            "x": needed[0],
            "hx": any(needed[1 : 1 + count]),
            "weights": any(needed[1 + count :]),
        }
        need = [name for name in wanted if wanted[name]]
        retain = keeps_graph() if call.retain is None else call.retain

        def gradients(given: Sequence[Any]) -> list[Any]:
            dy, *dstates = given
            dy = None if dy is None else as_array("dy", dy, x)
            dhx = _hx(dstates, x, ("dh_n", "dc_n"))
            try:
                dx, dhx, dweights = context.backward(dy, dhx, need=need, retain=retain)
            except ContextError:
                raise ContextError(
                    f"autograd goes back through this call for the second time, and the first "
                    f"spent what it needs: dnnffi.torch.{call.mode}(..., retain=True) keeps it"
                ) from None
            states = dhx if isinstance(dhx, tuple) else (dhx,) * count
            found = [as_tensor(dx), *map(as_tensor, states)]
            return [*found, *call.form.gradients(dweights, weights)]

        found = first_derivative(gradients, given, (x, *saved))
        return None, None, *(one if need else None for one, need in zip(found, needed, strict=True))
