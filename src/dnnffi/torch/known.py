"""Calls of networks that are known (`KnownNetwork`), on tensors of a GPU.

The functions of the core take arrays and return arrays. Here a plan runs on the addresses of
tensors, and its results are tensors: making an array of each, and a tensor of each result, takes
the host longer than a small network takes the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from dnnffi.backends.rnn_interface import ForwardAddresses
from dnnffi.device.external import DeviceArray
from dnnffi.device.external.use import thread
from dnnffi.device.torch_tensors import detached
from dnnffi.dropout import DropoutState
from dnnffi.errors import ContextError
from dnnffi.rnn.call_path import signature_of
from dnnffi.rnn.context import Context, Phase
from dnnffi.rnn.executor_plan import WITHOUT_RESETS, ExecutorPlan, forward_at
from dnnffi.rnn.row_arrays import RowArrays, is_on_device
from dnnffi.spec.names import BackendName
from dnnffi.spec.options import RNNOptionsDict
from dnnffi.spec.problem import check_dropout
from dnnffi.torch.tensors import Allocation, TensorAllocator, as_array
from dnnffi.weights import RNNWeights

READ_NAMES = "x", "y", "h_0", "c_0"
"""Tensors that a backward pass reads again, without weights and resets."""

GRADIENT_NAMES = "dy", "dh_n", "dc_n"
"""Gradients that it is given."""

Results = tuple[Tensor, ...]
"""y and h_n, or y, h_n and c_n."""

States = Sequence["Tensor | None"]
"""h, or h and c; None for zeros, and for what has no gradient."""


def run_known(
    mode: Any,
    training: bool,
    allocation: Allocation,
    x: Tensor,
    states: Sequence[Tensor | None],
    resets: Tensor | None,
    weights: RNNWeights[Any],
    /,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Any = None,
    batch_sizes: Any = None,
    dropout: float = 0.0,
    dropout_state: Any = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
    **unknown: Any,
) -> tuple[Results, TensorContext | None] | None:
    """Return the results of a call, and in training what its backward pass needs.

    None for a network that is not known and for arguments that are not used as they are: the core
    looks at them closely. ``states`` are those of hx, and with ``resets`` as many that replace
    others. ``lengths`` are a tensor on the GPU, or like ``batch_sizes`` a tuple or None. x is on
    the current device.
    """
    if unknown or not (dropout_state is None or isinstance(dropout_state, DropoutState)):
        return None
    on_device = lengths if isinstance(lengths, Tensor) else None
    rows = None
    if resets is not None or on_device is not None:
        rows = RowArrays(resets, None, on_device)
    request = mode, training, num_layers, bidirectional, batch_first, backend
    probability = dropout if dropout.__class__ is float else check_dropout(dropout)
    signature = signature_of(request, options, (probability, dropout_state), True, rows)
    known = None if signature is None else weights._networks.get(signature)
    buffer: Any = weights._buffer
    if (
        known is None
        or known.is_on_host
        or known.generation != known.backend.generation
        or buffer.__class__ is not DeviceArray
        or buffer.kind != known.backend.library.kind
    ):
        return None
    if on_device is not None:
        lengths = None
    elif lengths is not None and is_on_device(lengths):  # an array of another library
        return None
    key = x.shape, lengths, batch_sizes, known.asked
    before = thread.use
    try:
        thread.use = allocation.allocator, allocation.stream()
        plan = known.find(key) or known.new_plan(as_array("x", x, x), key)
        if not isinstance(plan, ExecutorPlan):  # none, or that of rows without a step
            return None
        return _run(plan, allocation, x, states, resets, on_device, buffer)
    finally:
        thread.use = before


def _run(
    plan: ExecutorPlan,
    allocation: Allocation,
    x: Tensor,
    states: Sequence[Tensor | None],
    resets: Tensor | None,
    lengths: Tensor | None,
    weights: DeviceArray,
) -> tuple[Results, TensorContext | None] | None:
    """Run a plan within its allocation; None where the tensors are not used as they are."""
    parts, new = plan.parts, allocation.allocator.tensor
    dtype, has_cell = allocation.allocator.dtype_of(parts.dtype), plan.has_cell
    x_at = _address(plan, x, plan.x_shape, dtype)
    state_shapes = (plan.h_shape, plan.c_shape) if has_cell else (plan.h_shape,)
    count = len(state_shapes)
    hx = _state_addresses(plan, states[:count], state_shapes, dtype)
    if not x_at or hx is None:
        return None
    h_0, c_0 = hx
    replaced = WITHOUT_RESETS
    if resets is not None:
        flags_at = _address(plan, resets, plan.x_shape[:-1], torch.uint8)
        reset_to = _state_addresses(plan, states[count:], state_shapes, dtype)
        if not flags_at or reset_to is None:
            return None
        replaced = (flags_at, *reset_to, plan.problem.batch if reset_to[0] else 1)
    lengths_at = 0
    if lengths is not None:
        lengths_at = _address(plan, lengths, (plan.problem.batch,), torch.int32)
        if not lengths_at:
            return None
    route = plan.next_route()
    stream = parts.current_stream()
    captured = plan.is_captured(stream)
    training = plan.problem.training
    reserve = new((route.reserve_bytes,), parts.byte) if training else None
    y = new(plan.y_shape, parts.dtype)
    h_n, c_n = _new_states(plan, allocation.allocator)
    arrays = (
        *(x_at, y.data_ptr(), h_0, h_n.data_ptr(), c_0),
        *(0 if c_n is None else c_n.data_ptr(), weights.data.ptr),
    )
    reserve_at = 0 if reserve is None else reserve.data_ptr()
    after = reserve_at, *replaced, lengths_at
    executor, at = plan.launch_forward(route, stream, captured, arrays, after)
    context = None
    if training:
        saved = Context(executor, reserve_at, reserve, Phase.FORWARD)
        context = TensorContext(plan, allocation, at, saved, weights)
    return (y, h_n) if c_n is None else (y, h_n, c_n), context


class TensorContext:
    """The backward pass of a call of `run_known`.

    It reads the tensors that autograd has saved, which may lie elsewhere by then: hooks move them,
    and ``torch.utils.checkpoint`` computes them again. It reads resets and ``weights`` where they
    were; the caller keeps what these are views of. ``weights`` without an owner begin where the
    first tensor of weights does.
    """

    __slots__ = ("_addresses", "_allocation", "_plan", "_saved", "_weights")

    def __init__(
        self,
        plan: ExecutorPlan,
        allocation: Allocation,
        addresses: ForwardAddresses,
        saved: Context,
        weights: DeviceArray,
    ) -> None:
        self._plan = plan
        self._allocation = allocation
        self._addresses = addresses
        self._weights: DeviceArray | None = weights
        self._saved: Context | None = saved  # None once a backward pass has spent it

    @property
    def is_spent(self) -> bool:
        """Whether a backward pass has used up what the forward pass saved."""
        return self._saved is None

    def gradients(
        self,
        x: Tensor,
        y: Tensor,
        hx: States,
        first_weight: Tensor | None,
        given: Sequence[Tensor | None],
        *,
        weights_needed: bool,
        retain: bool,
    ) -> tuple[Tensor, States, Tensor | None, States]:
        """Return the gradients of x, of hx, of the flat weights, and of what replaced states.

        ``given`` are the gradients of the results, None for zeros. The gradient of a state that was
        None is None. Raises `ContextError` after a backward pass without ``retain``.
        """
        weights = self._weights
        if self._saved is None or weights is None:
            raise ContextError("a backward pass has spent the reserve space")
        weights_at = weights_address(weights, first_weight)
        before = thread.use
        try:
            thread.use = self._allocation.allocator, self._allocation.stream()
            context = self._plan.copied(self._saved) if retain else self._saved
            found = self._run(context, x, (y, *hx), weights_at, given, weights_needed)
        finally:
            thread.use = before
        if not retain:
            self._saved = self._weights = None
        return found

    def _run(
        self,
        context: Context,
        x: Tensor,
        others: States,
        weights_at: int,
        given: Sequence[Tensor | None],
        weights_needed: bool,
    ) -> tuple[Tensor, States, Tensor | None, States]:
        plan, allocator = self._plan, self._allocation.allocator
        dtype, new = plan.parts.dtype, allocator.tensor
        shapes = plan.x_shape, plan.y_shape, plan.h_shape, plan.c_shape
        torch_dtype = allocator.dtype_of(dtype)
        read = [
            None if one is None else _saved(plan, name, one, x, shape, torch_dtype)
            for name, one, shape in zip(READ_NAMES, (x, *others), shapes, strict=False)
        ]
        x_at, y_at, h_0, c_0 = _pointers(read if plan.has_cell else (*read, None))
        at = forward_at((x_at, y_at, h_0, 0, c_0, 0, weights_at, *self._addresses[7:]))
        dy, dh_n, dc_n = map(_contiguous, GRADIENT_NAMES, (*given, *(None,) * (3 - len(given))))
        if dy is None:
            dy = new(plan.y_shape, dtype).zero_()
        dx = new(plan.x_shape, dtype)
        dhx = _new_states(plan, allocator) if at.h_0 else (None, None)
        of_resets = _new_states(plan, allocator) if at.reset_h else (None, None)
        # All memory before the first call: if there is too little, the context can be used again.
        dweights = new((context.executor.weight_size,), dtype) if weights_needed else None
        arrays = dy, dh_n, dc_n, dx, *dhx
        dweights_at = 0 if dweights is None else dweights.data_ptr()
        plan.launch_backward(context, at, _pointers(arrays), dweights_at, _pointers(of_resets))
        return dx, dhx, dweights, of_resets


def weights_address(weights: DeviceArray, first_weight: Tensor | None) -> int:
    """Return where the weights of a call are now: at ``first_weight`` if they have no owner.

    Raises `ContextError` if their memory was freed.
    """
    if weights.owner is not None or first_weight is None:
        return weights.data.ptr
    address = first_weight.data_ptr()
    if not address:
        raise ContextError(
            "the memory of the weights was freed after the forward pass; call backward before it is"
        )
    return address


def _new_states(plan: ExecutorPlan, allocator: TensorAllocator) -> tuple[Tensor, Tensor | None]:
    """Allocate tensors of the shapes of h and c; the latter is None without a cell."""
    dtype = plan.parts.dtype
    h = allocator.tensor(plan.h_shape, dtype)
    return h, allocator.tensor(plan.c_shape, dtype) if plan.has_cell else None


def _pointers(tensors: Iterable[Tensor | None]) -> tuple[int, ...]:
    return tuple([0 if one is None else one.data_ptr() for one in tensors])


def _address(plan: ExecutorPlan, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the address of a tensor that a plan uses as it is, 0 for any other."""
    if (
        tensor.shape != shape
        or tensor.dtype is not dtype
        or tensor.layout is not torch.strided
        or not tensor.is_contiguous()
        or tensor.get_device() != plan.device
        or tensor.is_neg()
    ):
        return 0
    address = tensor.data_ptr()
    return 0 if address % dtype.itemsize else address


def _state_addresses(
    plan: ExecutorPlan,
    states: Sequence[Tensor | None],
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype,
) -> tuple[int, int] | None:
    """Return the addresses of (h, c), 0 for none; None if they are not used as they are."""
    first = states[0]
    if first is None:
        return (0, 0) if states[-1] is None else None
    h = _address(plan, first, shapes[0], dtype)
    if len(shapes) == 1:
        return (h, 0) if h else None
    second = states[1]
    c = 0 if second is None else _address(plan, second, shapes[1], dtype)
    return (h, c) if h and c else None


def _saved(
    plan: ExecutorPlan,
    name: str,
    tensor: Tensor,
    x: Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> Tensor | None:
    """Return a tensor that autograd saved; ``ValueError`` if its shape, dtype or device changed."""
    if _address(plan, tensor, shape, dtype):
        return tensor
    is_there = tensor.get_device() == plan.device if tensor is x else tensor.device == x.device
    if tensor.shape != shape or tensor.dtype is not dtype or not is_there:
        raise ValueError(
            f"{name} must come back as it was saved, {dtype} {list(shape)} on GPU {plan.device}; "
            f"a hook for saved tensors gave {tensor.dtype} {list(tensor.shape)} on {tensor.device}"
        )
    return _contiguous(name, tensor)


def _contiguous(name: str, tensor: Tensor | None) -> Tensor | None:
    """Return a tensor of which shape, dtype and device are right, as gradients of autograd are."""
    if tensor is None:
        return None
    if (
        tensor.layout is not torch.strided
        or not tensor.is_contiguous()
        or tensor.is_neg()
        or not tensor.data_ptr()
    ):
        tensor = detached(name, tensor).contiguous()
        if not tensor.data_ptr():
            raise TypeError(f"{name} has no memory of its own; got a {type(tensor).__name__}")
    return tensor
