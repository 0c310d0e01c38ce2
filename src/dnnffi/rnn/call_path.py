"""The way of a call of a network, from a function's arguments to the plan that runs it.

A call of a network that is known (`KnownNetwork`) checks its arrays alone. Any other is checked
closely, and makes its network known for the next call.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import ref

from dnnffi.device.arrays import as_array, instead_of, to_host
from dnnffi.device.external.array import DeviceArray, known_array
from dnnffi.device.external.host import HOST, external_array
from dnnffi.device.external.use import checked_use, thread
from dnnffi.device.interface import AnyArray
from dnnffi.device.torch_tensors import is_compiling, uncompiled
from dnnffi.dropout import DropoutState
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
from dnnffi.rnn.gradients import EmbeddedContext, RNNContext
from dnnffi.rnn.known import MAX_NETWORKS, KnownNetwork, KnownReference
from dnnffi.rnn.resets import RESET_NAMES, Resets
from dnnffi.rnn.row_arrays import (
    RowArrays,
    lengths_on_host,
    row_arrays,
    warn_of_copy,
)
from dnnffi.spec.checks import check_flag
from dnnffi.spec.options import rnn_options
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import as_integers, integers_or_none
from dnnffi.weights import RNNWeights

NetworkRequest = tuple[Any, bool, Any, Any, Any, Any]
"""Arguments of a call about its network, apart from weights, dropout and options: mode, training,
num_layers, bidirectional, batch_first, backend."""

Request = tuple[NetworkRequest, Any, Any]
"""The network, lengths and batch_sizes of a call."""

Dropout = tuple[float, DropoutState | None]
NO_DROPOUT: Dropout = (0.0, None)


def run(
    x: AnyArray,
    hx: Any,
    weights: Any,
    call: Request,
    options: object,
    dropout: Dropout = NO_DROPOUT,
    found: RNNBackend | None = None,
    resets: Any = None,
    reset_to: Any = None,
) -> tuple[Any, ...]:
    """Run a call: return (y, h_n, c_n, the context of a training forward pass or None).

    ``found`` is the backend where it is known already.
    """
    if "torch._dynamo" in sys.modules and is_compiling():
        return uncompiled(run)(x, hx, weights, call, options, dropout, found, resets, reset_to)
    if options is not None and embeds(options):
        return _run_embedded(x, hx, weights, call, options, dropout, resets, reset_to)
    signature = rows = None
    if resets is not None or reset_to is not None or call[1] is not None:
        rows = row_arrays(call[1], resets, reset_to)
    if weights.__class__ is RNNWeights:
        signature = signature_of(call[0], options, dropout, found is not None, rows)
        known = None if signature is None else weights._networks.get(signature)
        if known is not None:
            call = _with_lengths_read(call, rows)
            native = known.native if known.is_on_host else weights._buffer
            if found is not None:
                native = known_array(native)
            if found is None or found is known.backend:
                done = _run_known(x, hx, weights, native, known, call, None, rows)
                if done is not None:
                    return done
    return _run_checked(x, hx, weights, call, options, dropout, found, signature, rows)


def signature_of(
    network: NetworkRequest,
    options: object,
    dropout: Dropout,
    has_allocator: bool,
    rows: RowArrays | None,
) -> tuple[Any, ...] | None:
    """Return the key of a network among those of its `RNNWeights`.

    None for a call that has to be looked at closely, because an argument is not of the usual class:
    1, True and 1.0 are equal as keys.
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
    rows: RowArrays | None = None,
) -> tuple[Any, ...] | None:
    """`run` of a network that is known; None where the arrays have to be looked at closely.

    ``native`` is the weights as the backend's plans take them, None if they have to be looked at
    closely. ``embedding`` is for the context of the call.
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
    if not plan.accepts_all(x, h_0, c_0):
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
    arrays = CallArrays(backend, weights.spec, plan.device, plan.accepts, *given)
    read = unchanged.NOTHING
    if known.ndarray is DeviceArray:  # as which tensors are read; PyTorch counts writes to them
        read = unchanged.Read.of_used(arrays, native, results[0])
    if embedding is None or known.is_on_host:  # a known reference has none
        return (*results, RNNContext(arrays, plan, saved, read))
    kind = known.backend.library.kind
    return (*results, EmbeddedContext(arrays, plan, saved, read, embedding, kind))


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
    """`run` of a network that is not known, or of arrays that have to be looked at closely."""
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
    if probability:
        generator = _generator(found, x, spec, state, device, checked.algorithm)
    rest = probability, None if generator is None else ref(generator), resets is not None
    settings = spec, device, batch_first, checked, training, *rest
    if on_device is None:
        lengths = integers_or_none("lengths", lengths)
    else:
        problem = problem_of(x, None, batch_sizes, found.asked(*settings, True))
        lengths, on_device = _readable_lengths(found, device, on_device, problem)
        if on_device is None:
            signature = None  # the next call of the network has other lengths
    asked = found.asked(*settings, on_device is not None)
    key = x.shape, lengths, batch_sizes, asked
    plan = found.plans.find(key)
    if plan is None:
        problem = problem_of(x, lengths, batch_sizes, asked)
        plan = found.plans.get(key, lambda: found.prepare(problem, device, generator))
    arrays = CallArrays(found, spec, device, plan.accepts, x, h_0, c_0, weights)
    if not (weights.__class__ is RNNWeights and plan.accepts(x, plan.x_shape)):
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
            network = KnownNetwork(found, plan.finder.network, asked)
            _remember(weights, signature, network)
        elif not has_allocator and KnownReference.can_know(found, weights):
            _remember(weights, signature, KnownReference(found, asked, weights))
    if not training:
        return (*results, None)
    read = unchanged.NOTHING
    if given or checked.validate:
        read = unchanged.Read.of(arrays, results[0], given, checksums=checked.validate)
    return (*results, RNNContext(arrays, plan, saved, read))


def _generator(
    found: RNNBackend, x: AnyArray, spec: RNNSpec, state: Any, device: int, algorithm: str
) -> Any:
    """Return the random numbers of a call with dropout; None if nothing is dropped."""
    if spec.num_layers == 1:
        warn_of_dropout()
        return None
    if 0 in x.shape:
        return None  # making one would call the library, which has nothing to do
    return found.generator(state, device, spec, algorithm)


def _readable_lengths(
    found: RNNBackend, device: int, on_device: Any, problem: RNNProblem
) -> tuple[Any, Any]:
    """Return lengths on the host and on the device, one of them None.

    ``on_device`` are those of a call. Where no kernel reads them, they are copied to the host.
    """
    on_device = checked_lengths(found, device, on_device, problem.batch)
    error = found.device_lengths_refusal(problem, device)
    if error is None:
        return None, on_device
    warn_of_copy(error)
    is_strict = problem.options.validate
    return lengths_on_host(on_device, problem.steps, is_strict=is_strict), None


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
    """`run` on arrays of another library; the results are objects of the user's allocator."""
    options = dict(options)
    embedding = take_embedding(options)
    before = thread.use
    try:
        thread.use = checked_use(*embedding)
        rows = row_arrays(call[1], resets, reset_to)
        if weights.__class__ is RNNWeights:
            signature = signature_of(call[0], options or None, dropout, True, rows)
            known = None if signature is None else weights._networks.get(signature)
            if known is not None:
                of_call = _with_lengths_read(call, rows)
                if rows is None or rows.lengths is None:
                    call = of_call
                done = _run_known_embedded(x, hx, weights, known, of_call, embedding, rows)
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
        *results, context = run(x, hx, weights, call, options, dropout, found, *of_rows)
        results = in_user_memory(results, kind)
    finally:
        thread.use = before
    if context is not None:
        read = context._read.copied_to(results[0]) if kind == HOST else context._read
        made = context._call, context._plan, context._saved, read
        context = EmbeddedContext(*made, embedding, kind)
    return (*map(unwrap, results), context)


def _run_known_embedded(
    x: Any,
    hx: Any,
    weights: RNNWeights,
    known: KnownNetwork,
    call: Request,
    embedding: Embedding,
    rows: RowArrays | None,
) -> tuple[Any, ...] | None:
    """`_run_known` on arrays that are read without a protocol; None where they are not."""
    # The buffer may be an array of CuPy, over a tensor: it is read on this stream or not at all.
    x, native = known_array(x), known_array(weights._buffer)
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
    return _run_known(x, hx, weights, native, known, call, embedding, rows)


def _known_states(states: Any) -> Any:
    """Return an array or a pair of them as `known_array`, which is None for what it does not read.

    None stays None.
    """
    if states.__class__ is tuple:
        return tuple(map(known_array, states))
    return None if states is None else known_array(states)
