"""LSTM, GRU and plain RNNs on arrays: the functions that users call.

Symbols: T time steps, B batch, I input size, H hidden size, P projection size (0 = none), L layers,
D directions, O = P or H, G gates.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, NoReturn
from weakref import ref

from dnnffi.device.arrays import as_array, instead_of, to_host
from dnnffi.device.external.array import device_array, known_array
from dnnffi.device.external.host import HOST, allocated_copy, external_array
from dnnffi.device.external.use import checked_use, thread
from dnnffi.device.interface import AnyArray, ArrayT
from dnnffi.device.torch_tensors import is_compiling, uncompiled
from dnnffi.dropout import DropoutState
from dnnffi.errors import ContextError, not_picklable
from dnnffi.execution.embedding import (
    Embedding,
    embeds,
    in_user_memory,
    take_embedding,
    unwrap,
    wrapped,
)
from dnnffi.rnn import unchanged, validate
from dnnffi.rnn.backend import (
    DeviceRNNBackend,
    RNNBackend,
    listed_weights,
    rnn_backends,
    warn_of_dropout,
    weights_of,
)
from dnnffi.rnn.call import CallArrays, checked_lengths, initial_states, pair
from dnnffi.rnn.call_settings import problem_of
from dnnffi.rnn.context import Phase
from dnnffi.rnn.known import MAX_NETWORKS, KnownNetwork, KnownReference
from dnnffi.rnn.resets import RESET_NAMES, Resets, row_gradient
from dnnffi.rnn.row_arrays import (
    RowArrays,
    lengths_on_host,
    row_arrays,
    warn_of_copy,
)
from dnnffi.spec.checks import check_flag
from dnnffi.spec.names import BackendName, GradientName, Integers
from dnnffi.spec.options import RNNOptionsDict, rnn_options
from dnnffi.spec.problem import RNNProblem, check_dropout
from dnnffi.spec.sequences import as_integers, integers_or_none
from dnnffi.weights import RNNWeights

Weights = RNNWeights[ArrayT] | Sequence[ArrayT]
CellState = tuple[ArrayT, ArrayT] | None


class Gradients(NamedTuple, Generic[ArrayT]):
    """Gradients that `RNNContext.backward` returns; one that was not asked for is None.

    ``x`` has the shape of x; ``hx`` the structure of hx (None where hx was None); ``weights`` the
    form that the weights had: a list in the same order, or an `RNNWeights` of the same layout;
    ``reset_to`` the structure and shapes of reset_to (None where that was None).
    """

    x: ArrayT | None
    hx: Any
    weights: Any
    reset_to: Any = None


_ALL_GRADIENTS: tuple[GradientName, ...] = ("x", "hx", "weights", "reset_to")
_GRADIENTS, _NAMES = frozenset(_ALL_GRADIENTS), ", ".join(_ALL_GRADIENTS)


class RNNContext(Generic[ArrayT]):
    """State saved by a training forward pass for its backward pass.

    Arrays are not copied: until `backward` has run, do not write to x, hx, resets, the weights or
    y, which it reads again. It reads x for the gradient of the weights only; h_n, c_n, lengths,
    batch_sizes and reset_to may change. A write to a tensor of PyTorch is noticed, a write to
    another array only with ``options={"validate": True}``.
    """

    def __init__(
        self, call: CallArrays, plan: Any, saved: Any, read: unchanged.Read = unchanged.NOTHING
    ) -> None:
        self._call = call
        self._plan = plan
        self._saved = saved
        self._read = read

    @property
    def is_spent(self) -> bool:
        """Whether a backward pass has used up what the forward pass saved."""
        return self._saved is None

    def __repr__(self) -> str:
        call, plan = self._call, self._plan
        spec, backend = plan.problem.spec, call.backend.name
        parts = [
            f"x {list(plan.x_shape)}",
            f"y {list(plan.y_shape)}",
            f"hidden {spec.hidden_size}",
            f"{spec.num_layers} layer{'s' * (spec.num_layers > 1)}",
            *("bidirectional",) * spec.bidirectional,
            spec.dtype,
            "reference" if backend == "reference" else f"{backend} device {call.device}",
            "spent by backward" if self.is_spent else "ready for backward",
        ]
        return f"<RNNContext of {spec.mode}: {', '.join(parts)}>"

    def __reduce__(self) -> NoReturn:
        raise not_picklable(
            self,
            "call backward in the process of the forward pass, and pickle the gradients; "
            "or pickle x, hx and the RNNWeights, and run the forward pass again",
        )

    def backward(
        self,
        dy: ArrayT | None = None,
        dhx: Any = None,
        *,
        need: Iterable[GradientName] = _ALL_GRADIENTS,
        retain: bool = False,
    ) -> Gradients[ArrayT]:
        """Return the gradients of sum(dy * y) + sum(dh_n * h_n) + sum(dc_n * c_n).

        Parameters
        ----------
        dy : shape of y, or None for zeros; padding past a row's length is not read
        dhx : shape of h_n, for an LSTM (dh_n, dc_n), either of them None for zeros; or None for
            zeros. One of dy, dh_n and dc_n must be an array
        need : which of "x", "hx", "weights", "reset_to" to compute
        retain : keep what the forward pass saved, at the cost of a copy of the reserve space, so
            that `backward` can be called again

        Raises
        ------
        ContextError
            The context was already used without ``retain``, or an array that it reads again was
            written to after the forward pass, as far as that is noticed.
        TypeError, ValueError
            The error names the argument, the value received and the value expected.
        CudnnError, MiopenError
            The library's backward data or backward weights failed.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> one = np.array([[1.0]])
        >>> x, h_0 = np.array([1.0, 2.0]).reshape(2, 1, 1), np.zeros((1, 1, 1))
        >>> y, h_n, ctx = dnnffi.rnn_relu_forward(x, h_0, [one, one])
        >>> grads = ctx.backward(dy=np.ones_like(y), retain=True)
        >>> grads.x.ravel().tolist(), grads.hx.item()
        ([2.0, 1.0], 2.0)
        >>> dw_ih, dw_hh = grads.weights
        >>> dw_ih.item(), dw_hh.item()
        (4.0, 1.0)
        >>> ctx.backward(dhx=h_n, need="x").hx is None
        True
        """
        if "torch._dynamo" in sys.modules and is_compiling():
            return uncompiled(RNNContext.backward)(self, dy, dhx, need=need, retain=retain)
        if dy is None and (dhx is None or _is_pair_of_none(dhx)):
            raise TypeError(
                "backward needs dy or dhx; both are None, so all gradients would be zero"
            )
        return self._backward(dy, dhx, need, retain)

    def _backward(
        self, dy: Any, dhx: Any, need: Iterable[GradientName], retain: bool
    ) -> Gradients[Any]:
        """Return the gradients as `backward` does, also without any gradient, for dnnffi.torch."""
        try:
            wanted = frozenset((need,) if isinstance(need, str) else need)
        except TypeError:
            raise TypeError(f"need must be names out of {_NAMES}; got {need!r}") from None
        if unknown := wanted - _GRADIENTS:
            raise ValueError(f"need: unknown {sorted(map(str, unknown))}; known are {_NAMES}")
        check_flag("retain", retain)
        call, plan = self._call, self._plan
        problem: RNNProblem = plan.problem
        dh_n = dc_n = None
        if dhx is not None:
            dh_n, dc_n = pair(problem.spec, dhx, "dhx", ("dh_n", "dc_n"), partial=True)
            dh_n = call.optional("dh_n", dh_n, plan.h_shape)
            dc_n = call.optional("dc_n", dc_n, plan.c_shape)
        dy = call.optional("dy", dy, plan.y_shape)
        found = self._spend(dy, dh_n, dc_n, "weights" in wanted, retain)
        dx, dh_0, dc_0, dweights, of_resets = found
        dhx_0: Any = None
        if "hx" in wanted and call.h_0 is not None:
            dhx_0 = (dh_0, dc_0) if problem.spec.has_cell else dh_0
        return Gradients(
            dx if "x" in wanted else None,
            dhx_0,
            None if dweights is None else call.weight_gradient(dweights),
            self._of_reset_to(of_resets) if "reset_to" in wanted else None,
        )

    def _of_reset_to(self, found: Any) -> Any:
        """Return the gradient of reset_to of those of each row's states."""
        resets = self._call.resets
        if resets is None or resets.h is None:
            return None
        h, c = (row_gradient(one, resets.rows) for one in found)
        return (h, c) if self._plan.problem.spec.has_cell else h

    def _spend(
        self, dy: Any, dh_n: Any, dc_n: Any, weights_needed: bool, retain: bool
    ) -> tuple[Any, Any, Any, Any, Any]:
        """Return what the plan's backward does, of arrays that it takes."""
        call, plan = self._call, self._plan
        if self._saved is None:
            raise ContextError(
                "backward was already called and spent the reserve space; call it with "
                "retain=True to be able to call it again"
            )
        self._read.check(call, weights_needed=weights_needed)
        found: tuple[Any, Any, Any, Any, Any] = plan.backward(
            self._saved, dy, dh_n, dc_n, weights_needed=weights_needed, retain=retain
        )
        if not retain:
            self._saved = None
        problem: RNNProblem = plan.problem
        if problem.options.validate and problem.has_steps:
            validate.check_backward(call, problem, dy, dh_n, dc_n, found[:3], found[3])
        return found


NetworkRequest = tuple[Any, bool, Any, Any, Any, Any]
"""Arguments of a call about its network, apart from weights, dropout and options: mode, training,
num_layers, bidirectional, batch_first, backend."""

Request = tuple[NetworkRequest, Any, Any]
"""The network, lengths and batch_sizes of a call."""

Dropout = tuple[float, DropoutState | None]
_NO_DROPOUT: Dropout = (0.0, None)


def _run(
    x: AnyArray,
    hx: Any,
    weights: Any,
    call: Request,
    options: object,
    dropout: Dropout = _NO_DROPOUT,
    found: RNNBackend | None = None,
    resets: Any = None,
    reset_to: Any = None,
) -> tuple[Any, ...]:
    """Find the plan, hand over: (y, h_n, c_n, the context of a training forward pass or None).

    ``found`` is the backend where it is known already.
    """
    if "torch._dynamo" in sys.modules and is_compiling():
        return uncompiled(_run)(x, hx, weights, call, options, dropout, found, resets, reset_to)
    if options is not None and embeds(options):
        return _run_embedded(x, hx, weights, call, options, dropout, resets, reset_to)
    signature = rows = None
    if resets is not None or reset_to is not None or call[1] is not None:
        rows = row_arrays(call[1], resets, reset_to)
    if weights.__class__ is RNNWeights:
        signature = _signed(call[0], options, dropout, found is not None, rows)
        known = None if signature is None else weights._networks.get(signature)
        if known is not None and known.buffer is weights._buffer:
            call = _with_lengths_read(call, rows)
            native = known.native if found is None else known_array(known.buffer)
            if found is None or found is known.backend:
                watched = found is not None
                done = _run_known(x, hx, weights, native, known, call, None, watched, rows)
                if done is not None:
                    return done
    return _run_checked(x, hx, weights, call, options, dropout, found, signature, rows)


def _signed(
    network: NetworkRequest,
    options: object,
    dropout: Dropout,
    has_allocator: bool,
    rows: RowArrays | None,
) -> tuple[Any, ...] | None:
    """Return the key of a network among those of its `RNNWeights`.

    None for a call that has to be looked at closely: with arguments that are not plain. Of these
    there is more than one kind that compares equal, as 1, True and 1.0 do.
    """
    _, _, num_layers, bidirectional, batch_first, backend = network
    if (
        num_layers.__class__ is not int
        or bidirectional.__class__ is not bool
        or batch_first.__class__ is not bool
        or not (backend is None or backend.__class__ is str)
    ):
        return None
    signature: tuple[Any, ...] = network
    if dropout[0]:
        probability, state = dropout
        signature = (*signature, probability, None if state is None else ref(state))
    if has_allocator:
        signature = (*signature, "allocator")
    if rows is not None:
        signature = (*signature, rows.resets is not None, rows.lengths is not None)
    if options is not None:
        if not isinstance(options, dict):
            return None
        signature = (*signature, *options, *options.values(), *map(type, options.values()))
        try:
            hash(signature)
        except TypeError:
            return None
    return signature


def _with_lengths_read(call: Request, rows: RowArrays | None) -> Request:
    """Return the call with lengths that can be read twice: they may come from a generator.

    Those on the device are left out: they are among the ``rows``.
    """
    network, lengths, batch_sizes = call
    if rows is not None and rows.lengths is not None:
        return network, None, integers_or_none("batch_sizes", batch_sizes)
    if batch_sizes is not None:
        batch_sizes = as_integers("batch_sizes", batch_sizes)
    elif lengths is None:
        return call
    if lengths is not None:
        lengths = as_integers("lengths", lengths)
    return network, lengths, batch_sizes


def _run_known(
    x: AnyArray,
    hx: Any,
    weights: RNNWeights,
    native: Any,
    known: KnownNetwork | KnownReference,
    call: Request,
    embedding: Embedding | None = None,
    is_watched: bool = False,
    rows: RowArrays | None = None,
) -> tuple[Any, ...] | None:
    """`_run` of a network that is known; None where the arrays have to be looked at closely.

    ``native`` is the weights as the backend's plans take them, None if they have to be looked at
    closely. ``embedding`` is for the context of the call; ``is_watched``, of arrays that are
    `DeviceArray`, as in `run_embedded`.
    """
    backend = known.backend
    if x.__class__ is not known.ndarray or known.generation != backend.generation:
        return None
    if native is None:
        return None
    key = x.shape, call[1], call[2], known.asked
    plan = known.find(key) or known.new_plan(x, key)
    if plan is None:
        return None
    h_0, c_0 = hx, None
    if hx is not None and plan.has_cell:
        if hx.__class__ is not tuple or len(hx) != 2:
            return None
        h_0, c_0 = hx
        if h_0 is None or c_0 is None:
            return None
    if not plan.accepts(x, h_0, c_0):
        return None
    done: tuple[Any, ...]
    resets = lengths = None
    if rows is not None:
        taken = None if known.is_on_host else plan.taken_rows(rows)
        if taken is None:
            return None
        resets, lengths = taken
    if known.is_on_host:
        done = plan.forward_known(x, h_0, c_0, native)
    else:
        done = plan.forward(x, h_0, c_0, native, native.data.ptr, resets, lengths)
    if not plan.problem.training:
        return done
    *results, saved = done
    given = x, h_0, c_0, weights, resets
    arrays = CallArrays(backend, weights.spec, plan.device, plan.takes, *given)
    read = unchanged.NOTHING
    if is_watched:
        read = unchanged.Read.of_used(arrays, native, results[0])
    if embedding is None or known.is_on_host:  # the latter has no call with an allocator
        return (*results, RNNContext(arrays, plan, saved, read))
    kind = known.backend.library.kind
    return (*results, _EmbeddedContext(arrays, plan, saved, read, embedding, kind))


def _run_checked(
    x: AnyArray,
    hx: Any,
    weights: Any,
    call: Request,
    options: object,
    dropout: Dropout,
    found: RNNBackend | None,
    signature: tuple[Any, ...] | None,
    rows: RowArrays | None,
) -> tuple[Any, ...]:
    """`_run` of a network that is not known, or of arrays that have to be looked at closely."""
    (mode, training, num_layers, bidirectional, batch_first, backend), lengths, batch_sizes = call
    probability, state = dropout
    given: list[tuple[str, Any]] = []
    if training and "torch" in sys.modules:
        given = unchanged.tensors_of(x, hx, weights, rows and rows.resets)
    checked = rnn_options(options, mode)
    x = as_array("x", x)
    has_allocator = found is not None
    if found is None:
        found = rnn_backends.for_call(backend, x)
    spec, weights = weights_of(mode, weights, num_layers, bidirectional)
    h_0, c_0 = initial_states(spec, hx)
    resets, reset_to, on_device = rows or (None, None, None)
    reset_to = pair(spec, reset_to, "reset_to", RESET_NAMES)
    batch_first = check_flag("batch_first", batch_first)  # 1 equals True, and would find its plan
    batch_sizes = integers_or_none("batch_sizes", batch_sizes)
    device = found.device_of("x", x)
    generator = None
    if probability and spec.num_layers > 1:
        if 0 not in x.shape:  # the library makes it
            generator = found.generator(state, device, spec, checked.algorithm)
    elif probability:
        warn_of_dropout()
    rest = probability, None if generator is None else ref(generator), resets is not None
    settings = spec, device, batch_first, checked, training, *rest
    if on_device is None:
        lengths = integers_or_none("lengths", lengths)
    else:
        problem = problem_of(x, None, batch_sizes, found.asked(*settings, True))
        on_device = checked_lengths(found, device, on_device, problem.batch)
        lengths, error = None, found.device_lengths_refusal(problem, device)
        if error is not None:
            warn_of_copy(error)
            lengths = lengths_on_host(on_device, problem.steps)
            on_device = signature = None  # the next call of the network has other lengths
    asked = found.asked(*settings, on_device is not None)
    key = x.shape, lengths, batch_sizes, asked
    plan = found.plans.find(key)
    if plan is None:
        problem = problem_of(x, lengths, batch_sizes, asked)
        plan = found.plans.get(key, lambda: found.prepare(problem, device, generator))
    arrays = CallArrays(found, spec, device, plan.takes, x, h_0, c_0, weights)
    if not (weights.__class__ is RNNWeights and plan.takes(x, plan.x_shape)):
        x = arrays.array("x", x, plan.x_shape)
        if isinstance(weights, list):
            arrays.check_weights()
    h_0 = arrays.optional("h_0", h_0, plan.h_shape)
    c_0 = arrays.optional("c_0", c_0, plan.c_shape)
    replaced = None
    if resets is not None:
        replaced = Resets.of(arrays, plan.problem, resets, reset_to)
    arrays = arrays._replace(x=x, h_0=h_0, c_0=c_0, resets=replaced)
    if checked.validate and on_device is not None:
        arrays = arrays._replace(lengths=to_host(on_device))  # the caller may write to them
    native = found.native(weights, spec)
    more: dict[str, Any] = {} if replaced is None else {"resets": replaced}
    if on_device is not None:
        more["lengths"] = on_device
    *results, saved = plan.forward(x, h_0, c_0, native, **more)
    if not plan.problem.has_steps:
        pass  # nothing to compare, and no plan to know again
    elif checked.validate:
        validate.check_forward(arrays, plan.problem, results)
    elif signature is not None:
        if isinstance(found, DeviceRNNBackend):
            network = KnownNetwork(found, plan.finder.network, asked, weights._buffer)
            _remember(weights, signature, network)
        elif not has_allocator and KnownReference.can_know(found, weights):
            _remember(weights, signature, KnownReference(found, asked, weights))
    if not training:
        return (*results, None)
    read = unchanged.NOTHING
    if given or checked.validate:
        read = unchanged.Read.of(arrays, results[0], given, checksums=checked.validate)
    return (*results, RNNContext(arrays, plan, saved, read))


def _remember(
    weights: RNNWeights, signature: tuple[Any, ...], known: KnownNetwork | KnownReference
) -> None:
    if len(weights._networks) >= MAX_NETWORKS:
        weights._networks.clear()
    weights._networks[signature] = known


def _run_embedded(
    x: Any,
    hx: Any,
    weights: Any,
    call: Request,
    options: Any,
    dropout: Dropout,
    resets: Any,
    reset_to: Any,
) -> tuple[Any, ...]:
    """`_run` on arrays of another library; the results are objects of the user's allocator."""
    rest = dict(options)
    embedding = take_embedding(rest)
    of_rows = {"resets": resets, "reset_to": reset_to}
    return run_embedded(x, hx, weights, call, rest, dropout, embedding, **of_rows)


def run_embedded(
    x: Any,
    hx: Any,
    weights: Any,
    call: Request,
    options: object,
    dropout: Dropout,
    embedding: Embedding,
    *,
    is_watched: bool = True,
    resets: Any = None,
    reset_to: Any = None,
) -> tuple[Any, ...]:
    """Return (y, h_n, c_n, context) of a call with an allocator, whose objects the results are.

    ``options`` are the others. ``is_watched`` is whether the backward pass of a known call notices
    a write to a tensor of PyTorch; dnnffi.torch leaves that to autograd.
    """
    before = thread.use
    try:
        thread.use = checked_use(*embedding)
        rows = row_arrays(call[1], resets, reset_to)
        if weights.__class__ is RNNWeights:
            signature = _signed(call[0], options or None, dropout, True, rows)
            known = None if signature is None else weights._networks.get(signature)
            if known is not None and known.buffer is weights._buffer:
                of_call = _with_lengths_read(call, rows)
                if rows is None or rows.lengths is None:
                    call = of_call
                done = _run_known_embedded(
                    x, hx, weights, known, of_call, embedding, is_watched, rows
                )
                if done is not None:
                    y, h_n, c_n, context = done
                    return unwrap(y), unwrap(h_n), unwrap(c_n), context
        if advice := instead_of("x", x):
            raise TypeError(f"x must be one array; got {type(x).__name__}{advice}")
        found, kind, x = rnn_backends.for_allocator(call[0][-1], x)
        if isinstance(weights, RNNWeights):
            if kind == HOST:
                external_array("weights", weights._buffer, kind)
        else:
            arrays = enumerate(listed_weights(weights))
            weights = [external_array(f"weights[{i}]", w, kind) for i, w in arrays]
        hx = wrapped(("h_0", "c_0"), hx, kind)
        if rows is not None:
            resets = wrapped(("resets",), resets, kind)
            reset_to = wrapped(RESET_NAMES, reset_to, kind)
            if rows.lengths is not None:
                call = call[0], wrapped(("lengths",), rows.lengths, kind), call[2]
        of_rows = resets, reset_to
        *results, context = _run(x, hx, weights, call, options, dropout, found, *of_rows)
        results = in_user_memory(results, kind)
    finally:
        thread.use = before
    if context is not None:
        read = context._read.copied_to(results[0]) if kind == HOST else context._read
        made = context._call, context._plan, context._saved, read
        context = _EmbeddedContext(*made, embedding, kind)
    return (*map(unwrap, results), context)


def _run_known_embedded(
    x: Any,
    hx: Any,
    weights: RNNWeights,
    known: KnownNetwork,
    call: Request,
    embedding: Embedding,
    is_watched: bool,
    rows: RowArrays | None,
) -> tuple[Any, ...] | None:
    """`_run_known` on arrays that are read without a protocol; None where they are not."""
    # The buffer may be an array of CuPy, over a tensor: it is read on this stream or not at all.
    x, native = known_array(x), known_array(known.buffer)
    if x is None or x.kind != known.backend.library.kind:
        return None
    if hx is not None:
        hx = _known_states(hx)
        if hx is None:
            return None
    if rows is not None:
        known_rows = RowArrays(*map(_known_states, rows))
        pairs = zip(rows, known_rows, strict=True)
        if any(found is None and given is not None for given, found in pairs):
            return None
        rows = known_rows
    return _run_known(x, hx, weights, native, known, call, embedding, is_watched, rows)


def _known_states(states: Any) -> Any:
    """Return an array or a pair of them as `known_array`, which is None for what it does not read.

    None stays None.
    """
    if states.__class__ is tuple:
        return tuple(map(known_array, states))
    return None if states is None else known_array(states)


class _EmbeddedContext(RNNContext[Any]):
    """The context of a call with an allocator, which backward uses too."""

    def __init__(
        self,
        call: CallArrays,
        plan: Any,
        saved: Any,
        read: unchanged.Read,
        embedding: Embedding,
        kind: str,
    ) -> None:
        super().__init__(call, plan, saved, read)
        self._embedding = embedding
        self._kind = kind

    def backward(
        self,
        dy: ArrayT | None = None,
        dhx: Any = None,
        *,
        need: Iterable[GradientName] = _ALL_GRADIENTS,
        retain: bool = False,
    ) -> Gradients[ArrayT]:
        if "torch._dynamo" in sys.modules and is_compiling():
            return uncompiled(_EmbeddedContext.backward)(self, dy, dhx, need=need, retain=retain)
        check_flag("retain", retain)
        before = thread.use
        try:
            thread.use = checked_use(*self._embedding)
            if self._kind == HOST:
                return self._backward_on_host(dy, dhx, need, retain)
            given: Any = None if dy is None else device_array("dy", dy, self._kind)
            if dhx is not None:
                dhx = wrapped(("dh_n", "dc_n"), dhx, self._kind)
            x, hx, weights, reset_to = super().backward(given, dhx, need=need, retain=retain)
        finally:
            thread.use = before
        hx, reset_to = (
            tuple(map(unwrap, one)) if one.__class__ is tuple else unwrap(one)
            for one in (hx, reset_to)
        )
        return Gradients(unwrap(x), hx, weights, reset_to)

    def gradients(
        self, dy: Any, dh_n: Any, dc_n: Any, *, weights_needed: bool, retain: bool
    ) -> tuple[Any, Any, Any, Any, Any]:
        """Return the gradients of x, h_0, c_0, the weights and reset_to, for dnnffi.torch.

        As `backward`, of arrays in device memory that are read already. None stands for zeros,
        and for the gradient of what was None. The gradient of an `RNNWeights` is its buffer, that
        of reset_to a pair.
        """
        call, plan = self._call, self._plan
        before = thread.use
        try:
            thread.use = checked_use(*self._embedding)
            dy = call.optional("dy", dy, plan.y_shape)
            if dh_n is not None or dc_n is not None:
                dh_n = call.optional("dh_n", dh_n, plan.h_shape)
                dc_n = call.optional("dc_n", dc_n, plan.c_shape)
            found = self._spend(dy, dh_n, dc_n, weights_needed, retain)
            dx, dh_0, dc_0, dweights, of_resets = found
            if dweights is not None and call.weights.__class__ is not RNNWeights:
                dweights = call.weight_gradient(dweights)
        finally:
            thread.use = before
        dweights = dweights if dweights.__class__ is list else unwrap(dweights)
        of_resets = of_resets and tuple(map(unwrap, of_resets))
        if call.h_0 is None:
            return unwrap(dx), None, None, dweights, of_resets
        return unwrap(dx), unwrap(dh_0), unwrap(dc_0), dweights, of_resets

    def _backward_on_host(
        self, dy: Any, dhx: Any, need: Iterable[GradientName], retain: bool
    ) -> Gradients[Any]:
        """Return copies of the gradients, so that nothing is spent if the allocator fails."""
        dy = wrapped(("dy",), dy, HOST)
        dhx = wrapped(("dh_n", "dc_n"), dhx, HOST)
        saved = self._saved
        found = super().backward(dy, dhx, need=need, retain=True)
        found = Gradients(*map(_copied_to_user, found))
        if not retain:
            saved.take(Phase.FORWARD)
            self._saved = None
        return found


def _is_pair_of_none(dhx: Any) -> bool:
    return isinstance(dhx, tuple | list) and bool(dhx) and all(one is None for one in dhx)


def _copied_to_user(gradient: Any) -> Any:
    """Copy gradients on the host, of any structure, into objects of the user's allocator."""
    if isinstance(gradient, RNNWeights):
        return RNNWeights._of_result(allocated_copy(gradient._buffer), gradient.layout)
    if isinstance(gradient, tuple | list):
        return type(gradient)(map(_copied_to_user, gradient))
    return unwrap(allocated_copy(gradient))


def _checked(dropout: object, state: object) -> Dropout:
    """Return the arguments of a training call that are about dropout."""
    if dropout.__class__ is float and dropout == 0 and state is None:
        return _NO_DROPOUT
    probability = check_dropout(dropout)
    if state is not None and not isinstance(state, DropoutState):
        raise TypeError(f"dropout_state must be a DropoutState; got {type(state).__name__}")
    return probability, state


def lstm(
    x: ArrayT,
    hx: CellState[ArrayT],
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, tuple[ArrayT, ArrayT]]:
    """Run an LSTM for inference: return ``y, (h_n, c_n)``.

    Nothing is dropped, and nothing is saved for a backward pass: `lstm_forward` is for training.

    Symbols: T time steps, B rows (the batch), I input size, H hidden size, L layers, D directions
    (1 or 2), P projection size, O output size of a direction: P if there is a projection, else H.

    Parameters
    ----------
    x : [T, B, I]; [B, T, I] with ``batch_first``; [sum(batch_sizes), I] with ``batch_sizes``.
        float16, bfloat16, float32 or float64. An array of NumPy or CuPy, or any object with DLPack
        or ``__cuda_array_interface__``. T is at least 1; B may be 0
    hx : (h_0 [L*D, B, O], c_0 [L*D, B, H]), or None for zeros
    weights : an `RNNWeights`, which is checked once and has its own number of layers and
        directions; or a list of arrays in PyTorch's order. For each layer and direction: w_ih
        [4*H, I or O*D], w_hh [4*H, O], b_ih and b_hh [4*H] if there are biases, w_hr [P, H] if
        there is a projection. The gates are in the order i, f, g, o
    num_layers : L
    bidirectional : whether D is 2
    batch_first : whether x and y are [B, T, ...]
    lengths : number of steps of each row, from 0 to T, in any order: integers on the host, or an
        integer array [B] on the device of x, which dnnffi's own kernels read there, and in which
        others count as the nearest. Beyond the length of a row y is zero; h_n and c_n are the
        states after its last step
    batch_sizes : number of rows at each step of packed sequences, as in PyTorch's
        ``PackedSequence``. It never increases; all are 0 for an empty batch
    resets : [T, B] in the layout of x ([B, T], or packed), bool or integers, on the device of x or
        on the host. Where it is not zero at step t, the state before t is that of ``reset_to``, in
        every layer; with both directions the other one is cut at the same border. No gradient
        passes it. dnnffi's own kernels and the reference have resets, and Vulkan for inference
    reset_to : the state of resets, like hx, or with one row for all; None for zeros
    backend : "cudnn", "miopen", "reference", "vulkan" (inference on arrays on the host), or None:
        CuPy arrays on CUDA go to cuDNN, on ROCm to MIOpen, NumPy arrays to the reference
    options : a dictionary with any of these keys:

        - "algorithm": "auto" (default), or one of the backend's. cuDNN: "standard",
          "persist_static", "persist_dynamic", "persist_static_small_h", and "own" for dnnffi's own
          kernels. MIOpen: "default", "fundamental". Vulkan: "stepwise", "persistent"
        - "math": "default" (float32 may be computed in TF32), "strict" or "fast"
        - "clip": (low, high), bounds of the cell state; "clip_nan": "propagate" or "clip"
        - "tune": "auto" (a network that is called repeatedly is measured once, and then runs by the
          fastest candidate), "now" (measured before the first call) or "off"
        - "validate": True compares the results with those of the reference
        - "allocator": a function of a shape and the name of a dtype that returns a new array of
          another library, in device memory or on the host; "stream": the address of the stream to
          run on, or a function that returns it. See `dnnffi.foreign.using`

    Returns
    -------
    y : the outputs of all steps, in the layout of x; the last dimension is O*D
    h_n, c_n : the states after the last step, [L*D, B, O] and [L*D, B, H]

    Raises
    ------
    TypeError, ValueError
        The error names the argument, the value received and the value expected.
    LibraryNotFoundError
        There is no libcudnn, or no libMIOpen.
    UnsupportedError
        Nobody has it. cuDNN: more than 65,535 steps, or resets, in float64 or with a projection
        (dnnffi's own kernels have the rest); a persistent algorithm with lengths, a projection or
        no bias. MIOpen: resets, float64, bfloat16, a projection, clipping, a choice of math; before
        3.6, with biases, a row of more than 65,535 steps.
    CudnnError, MiopenError
        ``cudnnRNNForward`` failed; ``miopenRNNForward`` or, on packed sequences,
        ``miopenRNNForwardInference`` or ``miopenRNNForwardTraining``.
    ValidationError
        With "validate": the results differ from the reference's by more than rounding.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> x = np.ones((5, 2, 3), np.float32)  # T, B, I
    >>> y, (h_n, c_n) = dnnffi.lstm(x, None, weights)
    >>> y.shape, h_n.shape, c_n.shape
    ((5, 2, 4), (1, 2, 4), (1, 2, 4))
    >>> y, hx = dnnffi.lstm(x, (h_n, c_n), weights)  # continues where the first call ended
    """
    network = "lstm", False, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, c_n, _ = _run(x, hx, weights, call, options, resets=resets, reset_to=reset_to)
    return y, (h_n, c_n)


def lstm_forward(
    x: ArrayT,
    hx: CellState[ArrayT],
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    dropout: float = 0.0,
    dropout_state: DropoutState | None = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, tuple[ArrayT, ArrayT], RNNContext[ArrayT]]:
    """Run the forward pass of an LSTM in training: return ``y, (h_n, c_n), ctx``.

    ``ctx.backward`` returns the gradients. It reads x, hx, the weights and y again: do not write to
    them before it has run (see `RNNContext`). Arguments and errors are those of `lstm`, and two
    more arguments:

    Parameters
    ----------
    dropout : probability, from 0 to 1, that an output of a layer is dropped before the next layer
        reads it
    dropout_state : the random numbers of dropout; None for those of the device, whose seed is
        random

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> y, (h_n, c_n), ctx = dnnffi.lstm_forward(np.ones((5, 2, 3), np.float32), None, weights)
    >>> grads = ctx.backward(dy=2 * y)  # of the sum of y * y
    >>> weights.flat -= 0.1 * grads.weights.flat
    """
    network = "lstm", True, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, c_n, ctx = _run(
        *(x, hx, weights, call, options, _checked(dropout, dropout_state)),
        resets=resets,
        reset_to=reset_to,
    )
    return y, (h_n, c_n), ctx


def gru(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Run a GRU for inference: return ``y, h_n``.

    The reset gate r acts on the recurrent product ("reset after"): ``n = tanh(W x + b + r * (R h +
    b'))``. Arguments and errors are those of `lstm`, except: one state ``h_0`` [L*D, B, H] or None,
    weights of 3*H rows with the gates in the order r, z, n, and neither projection nor clipping.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, bidirectional=True)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> x = np.ones((2, 5, 3), np.float32)  # B, T, I
    >>> y, h_n = dnnffi.gru(x, None, weights, batch_first=True, lengths=[5, 2])
    >>> y.shape, h_n.shape
    ((2, 5, 8), (2, 2, 4))
    >>> bool(y[1, 2:].any())  # past the length of the second row
    False
    """
    network = "gru", False, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, _, _ = _run(x, h_0, weights, call, options, resets=resets, reset_to=reset_to)
    return y, h_n


def gru_forward(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    dropout: float = 0.0,
    dropout_state: DropoutState | None = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT, RNNContext[ArrayT]]:
    """Run the forward pass of a GRU in training: return ``y, h_n, ctx``.

    Arguments and errors are those of `gru`, and those that `lstm_forward` adds.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> x = np.ones((5, 2, 3), np.float32)
    >>> state = dnnffi.DropoutState(seed=0)
    >>> y, h_n, ctx = dnnffi.gru_forward(x, None, weights, dropout=0.5, dropout_state=state)
    >>> ctx.backward(dhx=np.ones_like(h_n), need=("x",)).x.shape
    (5, 2, 3)
    """
    network = "gru", True, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, _, ctx = _run(
        *(x, h_0, weights, call, options, _checked(dropout, dropout_state)),
        resets=resets,
        reset_to=reset_to,
    )
    return y, h_n, ctx


def rnn_tanh(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Run a plain RNN with tanh for inference: return ``y, h_n``.

    A step is ``h = tanh(W x + b + R h + b')``. Arguments and errors are those of `lstm`, except:
    one state ``h_0`` [L*D, B, H] or None, weights of H rows, and neither projection nor clipping.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> w_ih, w_hh = np.array([[1.0]]), np.array([[0.5]])
    >>> x = np.array([1.0, 0.0, 0.0]).reshape(3, 1, 1)
    >>> y, h_n = dnnffi.rnn_tanh(x, None, [w_ih, w_hh])
    >>> y.ravel().round(3).tolist()
    [0.762, 0.363, 0.18]
    """
    network = "rnn_tanh", False, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, _, _ = _run(x, h_0, weights, call, options, resets=resets, reset_to=reset_to)
    return y, h_n


def rnn_tanh_forward(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    dropout: float = 0.0,
    dropout_state: DropoutState | None = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT, RNNContext[ArrayT]]:
    """Run the forward pass of a plain RNN with tanh in training: return ``y, h_n, ctx``.

    Arguments and errors are those of `rnn_tanh`, and those that `lstm_forward` adds.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> w_ih, w_hh = np.array([[1.0]]), np.array([[0.5]])
    >>> x = np.array([1.0, 0.0, 0.0]).reshape(3, 1, 1)
    >>> y, h_n, ctx = dnnffi.rnn_tanh_forward(x, None, [w_ih, w_hh])
    >>> dw_ih, dw_hh = ctx.backward(dhx=np.ones_like(h_n), need="weights").weights
    >>> dw_ih.round(3).tolist()
    [[0.088]]
    """
    network = "rnn_tanh", True, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, _, ctx = _run(
        *(x, h_0, weights, call, options, _checked(dropout, dropout_state)),
        resets=resets,
        reset_to=reset_to,
    )
    return y, h_n, ctx


def rnn_relu(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Run a plain RNN with ReLU for inference: return ``y, h_n``.

    A step is ``h = relu(W x + b + R h + b')``. Arguments and errors are those of `lstm`, except:
    one state ``h_0`` [L*D, B, H] or None, weights of H rows, and neither projection nor clipping.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> one = np.array([[1.0]])
    >>> x = np.array([1.0, 2.0, -4.0, 3.0]).reshape(4, 1, 1)
    >>> y, h_n = dnnffi.rnn_relu(x, None, [one, one])  # a sum that does not fall below 0
    >>> y.ravel().tolist()
    [1.0, 3.0, 0.0, 3.0]
    """
    network = "rnn_relu", False, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, _, _ = _run(x, h_0, weights, call, options, resets=resets, reset_to=reset_to)
    return y, h_n


def rnn_relu_forward(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    dropout: float = 0.0,
    dropout_state: DropoutState | None = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT, RNNContext[ArrayT]]:
    """Run the forward pass of a plain RNN with ReLU in training: return ``y, h_n, ctx``.

    Arguments and errors are those of `rnn_relu`, and those that `lstm_forward` adds.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> one = np.array([[1.0]])
    >>> x = np.array([1.0, 2.0, -4.0, 3.0]).reshape(4, 1, 1)
    >>> y, h_n, ctx = dnnffi.rnn_relu_forward(x, None, [one, one])
    >>> ctx.backward(dhx=np.ones_like(h_n)).x.ravel().tolist()  # what came before the 0 is lost
    [0.0, 0.0, 0.0, 1.0]
    """
    network = "rnn_relu", True, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, _, ctx = _run(
        *(x, h_0, weights, call, options, _checked(dropout, dropout_state)),
        resets=resets,
        reset_to=reset_to,
    )
    return y, h_n, ctx
