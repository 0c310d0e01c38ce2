"""LSTM, GRU and plain RNNs on arrays: the functions that users call.

Symbols: T time steps, B batch, I input size, H hidden size, P projection size (0 = none), L layers,
D directions, O = P or H, G gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dnnffi.device.arrays import as_array
from dnnffi.device.external import device_array
from dnnffi.device.interface import Array
from dnnffi.dropout import DropoutState
from dnnffi.errors import ContextError
from dnnffi.execution.embedding import Embedding, given, wrapped, wrapped_weights
from dnnffi.rnn import known_calls as rnn_calls
from dnnffi.rnn import validate
from dnnffi.rnn.call import Call, initial_states, pair
from dnnffi.rnn.engines import engine, engine_without_cupy, weights_of
from dnnffi.spec.checks import check_flag
from dnnffi.spec.options import DEFAULTS, EMBEDDING, RNNOptions, rnn_options
from dnnffi.spec.problem import RNNProblem, check_dropout
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import as_integers
from dnnffi.weights import RNNWeights

Weights = RNNWeights | Sequence[Array]
State = Array | None
CellState = tuple[Array, Array] | None


class Gradients(NamedTuple):
    """What `RNNContext.backward` returns; what was not needed is None.

    ``x`` has the shape of x; ``hx`` the structure of hx (None where hx was None); ``weights`` the
    form that the weights had: a list in the same order, or an `RNNWeights` of the same layout.
    """

    x: Array | None
    hx: Any
    weights: Any


_GRADIENTS = frozenset(Gradients._fields)


class RNNContext:
    """What a training forward keeps for its backward."""

    def __init__(self, call: Call, plan: Any, saved: Any) -> None:
        self._call = call
        self._plan = plan
        self._saved = saved

    def backward(
        self,
        dy: Array | None = None,
        dhx: Any = None,
        *,
        need: Iterable[str] = ("x", "hx", "weights"),
        retain: bool = False,
    ) -> Gradients:
        """Gradients of sum(dy * y) + sum(dh_n * h_n) + sum(dc_n * c_n).

        Parameters
        ----------
        dy : shape of y, or None for zeros; padding past a row's length is not read
        dhx : shape of h_n, for an LSTM (dh_n, dc_n), either of them None for zeros; or None
        need : which of "x", "hx", "weights" to compute
        retain : keep what the forward left, at the cost of a copy of the reserve space, so that
            backward can be called again

        Raises
        ------
        ContextError
            The context was already used without ``retain``.
        TypeError, ValueError
            Naming the argument, what came and what was expected.
        CudnnError, MiopenError
            From the library's backward data or backward weights.
        """
        try:
            wanted = frozenset((need,) if isinstance(need, str) else need)
        except TypeError:
            raise TypeError(f"need must be names out of x, hx, weights; got {need!r}") from None
        if unknown := wanted - _GRADIENTS:
            raise ValueError(f"need: unknown {sorted(map(str, unknown))}; known are x, hx, weights")
        check_flag("retain", retain)
        call, plan = self._call, self._plan
        problem: RNNProblem = plan.problem
        dh_n, dc_n = pair(problem.spec, dhx, "dhx", ("dh_n", "dc_n"), partial=True)
        dy = call.optional("dy", dy, problem.y_shape)
        dh_n = call.optional("dh_n", dh_n, problem.h_shape)
        dc_n = call.optional("dc_n", dc_n, problem.c_shape)
        if self._saved is None:
            raise ContextError(
                "backward was already called and spent the reserve space; call it with "
                "retain=True to be able to call it again"
            )
        dx, dh_0, dc_0, dweights = plan.backward(
            self._saved, dy, dh_n, dc_n, weights_needed="weights" in wanted, retain=retain
        )
        if not retain:
            self._saved = None
        if problem.options.validate:
            validate.check_backward(call, problem, dy, dh_n, dc_n, (dx, dh_0, dc_0), dweights)
        dhx_0: Any = None
        if "hx" in wanted and call.h_0 is not None:
            dhx_0 = (dh_0, dc_0) if problem.spec.has_cell else dh_0
        return Gradients(
            dx if "x" in wanted else None,
            dhx_0,
            None if dweights is None else call.weight_gradient(dweights),
        )


def _run(
    mode: str,
    training: bool,
    dropout: float,
    dropout_state: DropoutState | None,
    x: Array,
    hx: Any,
    weights: Any,
    num_layers: int,
    bidirectional: bool,
    batch_first: Any,
    lengths: Any,
    batch_sizes: Any,
    backend: Any,
    options: object,
) -> tuple[Any, ...]:
    """Check, find the plan, hand over: (y, h_n, c_n), and for training the context."""
    if options is None:
        checked = DEFAULTS
    elif isinstance(options, dict) and not options.keys().isdisjoint(EMBEDDING):
        return _run_embedded(
            options,
            backend,
            mode,
            training,
            dropout,
            dropout_state,
            x,
            hx,
            weights,
            num_layers,
            bidirectional,
            batch_first,
            lengths,
            batch_sizes,
        )
    else:
        checked = rnn_options(options, mode)
    x = as_array("x", x)
    plan: Any
    native: list[Any]
    known = signature = None
    if checked is DEFAULTS and lengths is None and batch_sizes is None and not dropout:
        signature = rnn_calls.sign(
            x, weights, mode, training, num_layers, bidirectional, batch_first, backend
        )
        if signature is not None:
            known = rnn_calls.find(weights, signature, x)
    if known is not None:
        found, plan, *native = known
        spec, device = weights.spec, plan.device
        h_0, c_0 = initial_states(spec, hx)
    else:
        found = engine(backend, x)
        spec, weights = weights_of(mode, weights, num_layers, bidirectional)
        h_0, c_0 = initial_states(spec, hx)
        if batch_first.__class__ is not bool:
            # Before the look-up: 1 equals True, and would find its plan.
            batch_first = check_flag("batch_first", batch_first)
        if lengths is not None:
            lengths = as_integers("lengths", lengths)
        if batch_sizes is not None:
            batch_sizes = as_integers("batch_sizes", batch_sizes)
        device = found.place("x", x)
        generator = None
        if dropout and spec.num_layers > 1:
            generator = found.generator(dropout_state, device)
        rest = batch_first, lengths, batch_sizes, checked, training, dropout
        key = (spec, x.shape, device, *rest, generator)
        plan = found.plans.find(key)
        if plan is None:
            problem = _problem(spec, x, *rest)
            plan = found.plans.get(key, lambda: found.plan(problem, device, generator))
    takes = plan.takes
    if not (
        (known is not None or (weights.__class__ is RNNWeights and takes(x, plan.x_shape)))
        and (h_0 is None or takes(h_0, plan.h_shape))
        and (c_0 is None or takes(c_0, plan.c_shape))
    ):
        call = Call(found, spec, device, takes, x, h_0, c_0, weights)
        x = call.array("x", x, plan.x_shape)
        h_0 = call.optional("h_0", h_0, plan.h_shape)
        c_0 = call.optional("c_0", c_0, plan.c_shape)
        if isinstance(weights, list):
            call.check_weights()
    if known is None:
        native = [found.native(weights, spec)]
        if signature is not None and native[0] is weights.buffer:
            rnn_calls.add(weights, signature, found, plan)
    if not training and not checked.validate:
        return plan.infer(x, h_0, c_0, *native)  # type: ignore[no-any-return]
    call = Call(found, spec, device, takes, x, h_0, c_0, weights)
    if training:
        *results, saved = plan.forward(x, h_0, c_0, *native)
        results.append(RNNContext(call, plan, saved))
    else:
        results = plan.infer(x, h_0, c_0, *native)
    if checked.validate:
        validate.check_forward(call, plan.problem, results[:3])
    return tuple(results)


def _run_embedded(
    options: dict[str, Any],
    backend: str | None,
    mode: str,
    training: bool,
    dropout: float,
    dropout_state: DropoutState | None,
    x: Any,
    hx: Any,
    weights: Any,
    num_layers: int,
    bidirectional: bool,
    batch_first: Any,
    lengths: Any,
    batch_sizes: Any,
) -> tuple[Any, ...]:
    """`_run` on arrays of another library; the results are objects of the user's allocator."""
    rest = dict(options)
    embedding = Embedding.taken_from(rest)
    with embedding.used():
        x = device_array("x", x)
        found = engine_without_cupy(backend, x)
        kind = found.library.kind
        y, h_n, c_n, *more = _run(
            mode,
            training,
            dropout,
            dropout_state,
            x,
            wrapped(("h_0", "c_0"), hx, kind),
            wrapped_weights(weights, kind),
            num_layers,
            bidirectional,
            batch_first,
            lengths,
            batch_sizes,
            found,
            rest,
        )
    contexts = [_EmbeddedContext(context, embedding, kind) for context in more]
    return given(y), given(h_n), given(c_n), *contexts


class _EmbeddedContext(RNNContext):
    """The context of a call with an allocator, which backward uses too."""

    def __init__(self, context: RNNContext, embedding: Embedding, kind: str) -> None:
        super().__init__(context._call, context._plan, context._saved)
        self._embedding = embedding
        self._kind = kind

    def backward(
        self,
        dy: Array | None = None,
        dhx: Any = None,
        *,
        need: Iterable[str] = ("x", "hx", "weights"),
        retain: bool = False,
    ) -> Gradients:
        with self._embedding.used():
            dy = wrapped(("dy",), dy, self._kind)
            dhx = wrapped(("dh_n", "dc_n"), dhx, self._kind)
            x, hx, weights = super().backward(dy, dhx, need=need, retain=retain)
        hx = tuple(map(given, hx)) if isinstance(hx, tuple) else given(hx)
        return Gradients(given(x), hx, weights)


def _problem(
    spec: RNNSpec,
    x: Array,
    batch_first: bool,
    lengths: object,
    batch_sizes: object,
    options: RNNOptions,
    training: bool,
    dropout: float,
) -> RNNProblem:
    """The problem that the arguments describe; errors name the argument at fault."""
    shape = tuple(x.shape)
    rank, form = 3, "[B, T, I]" if batch_first else "[T, B, I]"
    if batch_sizes is not None:
        rank, form = 2, "[sum(batch_sizes), I]"
    if len(shape) != rank:
        raise ValueError(f"x must have {rank} dimensions, {form}; got shape {shape}")
    if shape[-1] != spec.input_size:
        raise ValueError(
            f"x must have {spec.input_size} as its last dimension (I, from the weights); "
            f"got shape {shape}"
        )
    if x.dtype.name != spec.dtype:
        raise TypeError(f"x must have the dtype of the weights, {spec.dtype}; got {x.dtype}")
    if options.validate and dropout and spec.num_layers > 1:
        raise ValueError(
            "options['validate'] needs dropout=0: the reference cannot draw a vendor's random "
            "numbers"
        )
    common: dict[str, Any] = {"training": training, "dropout": dropout, "options": options}
    if batch_sizes is not None:
        if lengths is not None:
            raise ValueError("lengths and batch_sizes exclude each other; give one")
        return RNNProblem.packed(spec, batch_sizes, shape[0], **common)
    batch, steps = shape[:2] if batch_first else shape[1::-1]
    return RNNProblem.dense(spec, steps, batch, batch_first=batch_first, lengths=lengths, **common)


def _train(mode: str, dropout: float, state: object, *arguments: Any) -> tuple[Any, ...]:
    dropout = check_dropout(dropout)
    if state is not None and not isinstance(state, DropoutState):
        raise TypeError(f"dropout_state must be a DropoutState; got {type(state).__name__}")
    return _run(mode, True, dropout, state, *arguments)


def lstm(
    x: Array,
    hx: CellState,
    weights: Weights,
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    backend: str | None = None,
    options: dict[str, Any] | None = None,
) -> tuple[Array, tuple[Array, Array]]:
    """LSTM inference: ``y, (h_n, c_n)``. Drops nothing and keeps nothing for backward.

    Parameters
    ----------
    x : [T, B, I]; [B, T, I] with ``batch_first``; packed [sum(batch_sizes), I]. float16, bfloat16,
        float32 or float64; NumPy, CuPy, or anything with DLPack or ``__cuda_array_interface__``
    hx : (h_0 [L*D, B, O], c_0 [L*D, B, H]), or None for zeros
    weights : arrays in PyTorch's order: for each layer, for each direction, w_ih [4*H, I or O*D],
        w_hh [4*H, O], then b_ih, b_hh [4*H] if there are biases, then w_hr [P, H] if there is a
        projection, gates i f g o; or an `RNNWeights`, which costs nothing per call and brings its
        own number of layers and directions
    num_layers, bidirectional : L, and whether D is 2
    lengths : one host integer a row, in any order, each from 1 to T. Past a row's length y is zero,
        and h_n, c_n are the state at its last step
    batch_sizes : rows still running at each step of packed sequences, never rising
    backend : "cudnn", "miopen", "reference", or None: CuPy arrays on CUDA go to cuDNN, on ROCm to
        MIOpen, NumPy arrays to the reference
    options : "algorithm": "auto" or one of the backend's: "standard", "persist_static",
        "persist_dynamic", "persist_static_small_h" (cuDNN), "default", "fundamental" (MIOpen);
        "math": "default" (float32 may use TF32), "strict" or "fast"; "clip": (low, high) of the
        cell state, "clip_nan": "propagate" or "clip"; "validate": True to compare with the
        reference; "tune": "auto" (a problem that is called again and again is measured once, and
        runs by what was fastest), "now" (measured before its first call) or "off"; "allocator": a
        function of a shape and the name of a dtype that makes the
        results, for arrays of other libraries without CuPy, "stream": the address to run on, or a
        function that returns it (see `dnnffi.foreign.using`)

    Returns
    -------
    y : in the layout of x, last dimension O*D
    h_n, c_n : [L*D, B, O], [L*D, B, H]

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what came and what was expected.
    LibraryNotFoundError
        There is no libcudnn, or libMIOpen.
    UnsupportedError
        The library cannot do this (cuDNN: more than 65,535 steps; a persistent algorithm with
        lengths, a projection or no bias. MIOpen: float64, bfloat16, a projection, clipping, a
        choice of math).
    CudnnError, MiopenError
        ``cudnnRNNForward`` failed; ``miopenRNNForward`` or, on packed sequences,
        ``miopenRNNForwardInference`` or ``miopenRNNForwardTraining``.
    ValidationError
        With ``validate``, where the results differ from the reference's beyond rounding.
    """
    y, h_n, c_n = _run(
        "lstm",
        False,
        0.0,
        None,
        x,
        hx,
        weights,
        num_layers,
        bidirectional,
        batch_first,
        lengths,
        batch_sizes,
        backend,
        options,
    )
    return y, (h_n, c_n)


def lstm_forward(
    x: Array,
    hx: CellState,
    weights: Weights,
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    dropout: float = 0.0,
    dropout_state: DropoutState | None = None,
    backend: str | None = None,
    options: dict[str, Any] | None = None,
) -> tuple[Array, tuple[Array, Array], RNNContext]:
    """LSTM training forward: ``y, (h_n, c_n), ctx``; ``ctx.backward`` gives the gradients.

    As `lstm`, and:

    Parameters
    ----------
    dropout : probability, from 0 to 1, that an output of a layer is dropped before the next one
    dropout_state : random numbers of the dropout; None for the device's own, seeded by chance
    """
    y, h_n, c_n, ctx = _train(
        "lstm",
        dropout,
        dropout_state,
        x,
        hx,
        weights,
        num_layers,
        bidirectional,
        batch_first,
        lengths,
        batch_sizes,
        backend,
        options,
    )
    return y, (h_n, c_n), ctx


def gru(
    x: Array,
    h_0: State,
    weights: Weights,
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    backend: str | None = None,
    options: dict[str, Any] | None = None,
) -> tuple[Array, Array]:
    """GRU inference: ``y, h_n``.

    The reset-after form, ``n = tanh(W x + b + r * (R h + b'))``, gates r z n. As `lstm`, with one
    state ``h_0`` [L*D, B, H] or None, weights of 3*H rows, and neither projection nor clipping.
    """
    y, h_n, _ = _run(
        "gru",
        False,
        0.0,
        None,
        x,
        h_0,
        weights,
        num_layers,
        bidirectional,
        batch_first,
        lengths,
        batch_sizes,
        backend,
        options,
    )
    return y, h_n


def gru_forward(
    x: Array,
    h_0: State,
    weights: Weights,
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    dropout: float = 0.0,
    dropout_state: DropoutState | None = None,
    backend: str | None = None,
    options: dict[str, Any] | None = None,
) -> tuple[Array, Array, RNNContext]:
    """GRU training forward: ``y, h_n, ctx``. As `gru` and `lstm_forward`."""
    y, h_n, _, ctx = _train(
        "gru",
        dropout,
        dropout_state,
        x,
        h_0,
        weights,
        num_layers,
        bidirectional,
        batch_first,
        lengths,
        batch_sizes,
        backend,
        options,
    )
    return y, h_n, ctx


def rnn_tanh(
    x: Array,
    h_0: State,
    weights: Weights,
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    backend: str | None = None,
    options: dict[str, Any] | None = None,
) -> tuple[Array, Array]:
    """RNN inference with tanh: ``y, h_n``.

    ``h = tanh(W x + b + R h + b')``. As `lstm`, with one state ``h_0`` [L*D, B, H] or None,
    weights of H rows, and neither projection nor clipping.
    """
    y, h_n, _ = _run(
        "rnn_tanh",
        False,
        0.0,
        None,
        x,
        h_0,
        weights,
        num_layers,
        bidirectional,
        batch_first,
        lengths,
        batch_sizes,
        backend,
        options,
    )
    return y, h_n


def rnn_tanh_forward(
    x: Array,
    h_0: State,
    weights: Weights,
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    dropout: float = 0.0,
    dropout_state: DropoutState | None = None,
    backend: str | None = None,
    options: dict[str, Any] | None = None,
) -> tuple[Array, Array, RNNContext]:
    """RNN training forward: ``y, h_n, ctx``. As `rnn_tanh` and `lstm_forward`."""
    y, h_n, _, ctx = _train(
        "rnn_tanh",
        dropout,
        dropout_state,
        x,
        h_0,
        weights,
        num_layers,
        bidirectional,
        batch_first,
        lengths,
        batch_sizes,
        backend,
        options,
    )
    return y, h_n, ctx


def rnn_relu(
    x: Array,
    h_0: State,
    weights: Weights,
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    backend: str | None = None,
    options: dict[str, Any] | None = None,
) -> tuple[Array, Array]:
    """RNN inference with ReLU: ``y, h_n``.

    ``h = relu(W x + b + R h + b')``. As `lstm`, with one state ``h_0`` [L*D, B, H] or None,
    weights of H rows, and neither projection nor clipping.
    """
    y, h_n, _ = _run(
        "rnn_relu",
        False,
        0.0,
        None,
        x,
        h_0,
        weights,
        num_layers,
        bidirectional,
        batch_first,
        lengths,
        batch_sizes,
        backend,
        options,
    )
    return y, h_n


def rnn_relu_forward(
    x: Array,
    h_0: State,
    weights: Weights,
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    dropout: float = 0.0,
    dropout_state: DropoutState | None = None,
    backend: str | None = None,
    options: dict[str, Any] | None = None,
) -> tuple[Array, Array, RNNContext]:
    """RNN training forward: ``y, h_n, ctx``. As `rnn_relu` and `lstm_forward`."""
    y, h_n, _, ctx = _train(
        "rnn_relu",
        dropout,
        dropout_state,
        x,
        h_0,
        weights,
        num_layers,
        bidirectional,
        batch_first,
        lengths,
        batch_sizes,
        backend,
        options,
    )
    return y, h_n, ctx
