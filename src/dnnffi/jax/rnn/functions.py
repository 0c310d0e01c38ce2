"""The public functions of recurrent networks on JAX arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dnnffi.backends.registry import named
from dnnffi.jax.arrays import as_jax, platform_of, refuse_embedding
from dnnffi.jax.primitives import varying_alike
from dnnffi.jax.rnn import operation, scan
from dnnffi.jax.rnn.call import RESET_STATES
from dnnffi.jax.rnn.implementations import SCAN, implementation_of
from dnnffi.jax.rnn.operation import Implementation
from dnnffi.jax.rnn.weights import (
    apart,
    check_dtypes,
    expected_names,
    flat_of,
    in_order,
    joined,
    laid_out,
    layers_named,
)
from dnnffi.rnn.backend import warn_of_dropout
from dnnffi.rnn.resets import check_given, check_rows
from dnnffi.spec.checks import ITEM_SIZES, brief, check_flag, check_integer, shown
from dnnffi.spec.names import LayoutName, Mode
from dnnffi.spec.options import RNNOptions, check_algorithm, rnn_options
from dnnffi.spec.problem import RNNProblem, check_dropout
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import MAX_ENTRIES
from dnnffi.spec.weights import DEFAULT_LAYOUT
from dnnffi.weights import RNNWeights


class _Static(NamedTuple):
    """Parameters of a call without its arrays; hashable."""

    spec: RNNSpec
    layout: LayoutName  # of a flat array of weights
    problem: RNNProblem | None
    implementation: Implementation | None
    batch_first: bool
    dropout: float
    options: RNNOptions
    unroll: int  # steps in one round of the scan's loop
    is_on_cpu: bool
    or_scan: bool  # whether the scan runs what the implementation refuses


def lstm(
    x: Any,
    hx: Any,
    weights: Any,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    num_layers: int = 1,
    bidirectional: bool = False,
    lengths: Any = None,
    resets: Any = None,
    reset_to: Any = None,
    batch_first: bool = False,
    dropout: float = 0.0,
    key: Any = None,
    implementation: str | None = None,
    options: Any = None,
) -> tuple[Any, tuple[Any, Any]]:
    """Compute an LSTM; return ``y, (h_n, c_n)``.

    Parameters
    ----------
    x : [T, B, I], or [B, T, I] with ``batch_first``
    hx : (h_0 [L*D, B, O], c_0 [L*D, B, H]), or None for zeros
    weights : an `RNNWeights`, as `pack`, `init` and its own methods make it, in any layout; or a
        flat array with ``spec`` and ``layout``; or a list of arrays in PyTorch's order, or a
        mapping of PyTorch's names to arrays as `unpack` makes it, from which the spec is inferred
    spec : the spec of a flat array; with it or an `RNNWeights`, ``num_layers`` and
        ``bidirectional`` may be left out
    layout : the layout of a flat array: "cudnn", "torch" or "miopen". It may be left out only if
        cuDNN's layout and PyTorch's order are the same for the spec, as they are for one layer in
        one direction without a projection
    lengths : the number of steps of each row, from 0 to T, in any order: beyond it y is zero, and
        h_n, c_n are the states at the last step of the row. Integers on the host, or an array [B]
        on the device, in which others than 0 to T count as the nearest: dnnffi's own kernels and
        the scan take one, and are compiled once for all lengths
    resets : [T, B], or [B, T] with ``batch_first``, bool or integers, or None. Where it is not
        zero at t, the state before step t is that of ``reset_to``, in every layer: a new episode
        begins there. A network of two directions is cut at the same border, so that its other
        direction passes no state from t to t - 1. No gradient passes a border. "cudnn" runs such a
        call on dnnffi's own kernels. Resets past the end of a row are ignored
    reset_to : the state of a reset, None for zeros: as ``hx``, with one row for all, [L*D, 1, .],
        or with a row for each of the batch. It has a gradient
    dropout, key : the probability that an element between two layers is dropped, and the key of
        `jax.random` that makes the masks, the same in every implementation. The network then runs
        one call per layer
    implementation : "cudnn", "miopen" (not run on AMD hardware yet), "scan" (``lax.scan``),
        "reference" (NumPy, on the host), or None: "cudnn" on CUDA, the scan elsewhere and for what
        "cudnn" refuses; the scan always computes a batch in which no row has a step
    options : as for `dnnffi.lstm`: algorithm, math, clip, clip_nan, and tune, where "off" ignores
        what was measured. "unroll": the number of steps in one round of the scan's loop, by default
        1 on a CPU and 10 elsewhere; cuDNN and MIOpen have no such loop

    All arrays have one dtype: float16, bfloat16, float32 or float64. Only weights of float32 may
    come with x and hx of float16 or bfloat16: the network then computes in the dtype of x, on
    weights that are cast in the call, and their gradients are float32. y is [T, B, O*D] or
    [B, T, O*D], of the dtype of x. Gradients are of first order, in reverse mode; the scan has all
    orders and modes.

    Raises
    ------
    TypeError, ValueError
        The error names the argument, and is raised during tracing.
    UnsupportedError, LibraryNotFoundError
        The named implementation cannot compute this, or was not found.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import dnnffi
    >>> from dnnffi import jax as djax
    >>> spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
    >>> weights = djax.init(jax.random.key(0), spec)
    >>> y, (h_n, c_n) = djax.lstm(jnp.ones((5, 2, 3)), None, weights)
    >>> y.shape, h_n.shape
    ((5, 2, 4), (1, 2, 4))

    The second row begins a new episode at step 3:

    >>> resets = jnp.zeros((5, 2), bool).at[3, 1].set(True)
    >>> y, _ = djax.lstm(jnp.ones((5, 2, 3)), None, weights, resets=resets)
    >>> bool((y[3, 1] == y[0, 1]).all()), bool((y[3, 0] == y[0, 0]).all())
    (True, False)
    """
    keywords = _Keywords(
        *(spec, layout, num_layers, bidirectional, lengths, resets, reset_to, batch_first),
        *(dropout, key, implementation, options),
    )
    y, h_n, c_n = _network("lstm", x, hx, weights, keywords)
    return y, (h_n, c_n)


def gru(
    x: Any,
    h_0: Any,
    weights: Any,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    num_layers: int = 1,
    bidirectional: bool = False,
    lengths: Any = None,
    resets: Any = None,
    reset_to: Any = None,
    batch_first: bool = False,
    dropout: float = 0.0,
    key: Any = None,
    implementation: str | None = None,
    options: Any = None,
) -> tuple[Any, Any]:
    """Compute a GRU in the reset-after form; return ``y, h_n``.

    Arguments are those of `lstm`, with h_0 [L*D, B, H] or None instead of hx.
    """
    keywords = _Keywords(
        *(spec, layout, num_layers, bidirectional, lengths, resets, reset_to, batch_first),
        *(dropout, key, implementation, options),
    )
    y, h_n, _ = _network("gru", x, h_0, weights, keywords)
    return y, h_n


def rnn_tanh(
    x: Any,
    h_0: Any,
    weights: Any,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    num_layers: int = 1,
    bidirectional: bool = False,
    lengths: Any = None,
    resets: Any = None,
    reset_to: Any = None,
    batch_first: bool = False,
    dropout: float = 0.0,
    key: Any = None,
    implementation: str | None = None,
    options: Any = None,
) -> tuple[Any, Any]:
    """Compute an RNN with tanh; return ``y, h_n``.

    Arguments are those of `lstm`, with h_0 [L*D, B, H] or None instead of hx.
    """
    keywords = _Keywords(
        *(spec, layout, num_layers, bidirectional, lengths, resets, reset_to, batch_first),
        *(dropout, key, implementation, options),
    )
    y, h_n, _ = _network("rnn_tanh", x, h_0, weights, keywords)
    return y, h_n


def rnn_relu(
    x: Any,
    h_0: Any,
    weights: Any,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    num_layers: int = 1,
    bidirectional: bool = False,
    lengths: Any = None,
    resets: Any = None,
    reset_to: Any = None,
    batch_first: bool = False,
    dropout: float = 0.0,
    key: Any = None,
    implementation: str | None = None,
    options: Any = None,
) -> tuple[Any, Any]:
    """Compute an RNN with ReLU; return ``y, h_n``.

    Arguments are those of `lstm`, with h_0 [L*D, B, H] or None instead of hx.
    """
    keywords = _Keywords(
        *(spec, layout, num_layers, bidirectional, lengths, resets, reset_to, batch_first),
        *(dropout, key, implementation, options),
    )
    y, h_n, _ = _network("rnn_relu", x, h_0, weights, keywords)
    return y, h_n


class _Keywords(NamedTuple):
    spec: Any
    layout: Any
    num_layers: Any
    bidirectional: Any
    lengths: Any
    resets: Any
    reset_to: Any
    batch_first: Any
    dropout: Any
    key: Any
    implementation: Any
    options: Any


def _network(mode: Mode, x: Any, hx: Any, weights: Any, keywords: _Keywords) -> Any:
    """y, h_n and c_n or None."""
    x = as_jax("x", x)
    spec, layout, weights = _weights(mode, weights, keywords)
    spec = _computed(spec, x)
    batch_first = check_flag("batch_first", keywords.batch_first)
    options, unroll = _options(keywords, mode)
    steps, batch = _sizes(x, spec, batch_first)
    states = _states("hx", ("h_0", "c_0"), hx, spec, (batch,))
    resets = _resets(keywords, x, spec, batch)
    dropout, key = _dropout(keywords, spec)
    lengths, on_device = keywords.lengths, None
    if isinstance(lengths, jax.Array):
        on_device, lengths = _lengths_on_device(lengths, steps, batch), None
    elif lengths is not None and not batch:
        lengths = None
    problem = None
    if batch:
        problem = RNNProblem.dense(
            spec,
            steps=steps,
            batch=batch,
            batch_first=batch_first,
            lengths=lengths,
            options=options,
        )._replace(has_resets=resets is not None, has_device_lengths=on_device is not None)
    elif steps < 1:
        raise ValueError(f"x must have at least one time step; got T = {steps}")
    able = None
    if problem is not None and problem.has_steps:
        able = problem
    arrays = (x, *states, *(weights if isinstance(weights, list) else [weights]))
    chosen = implementation_of(keywords.implementation, able, arrays)
    if chosen is None and problem is not None and problem.lengths is not None:
        # An operand of the scan: one program for all lengths.
        on_device = jnp.asarray(problem.lengths)
    by_handler = None if chosen is None else able
    is_on_cpu = platform_of(arrays) == "cpu"
    if unroll is None:
        unroll = scan.UNROLL_ON_CPU if is_on_cpu else scan.UNROLL
    loop = unroll, is_on_cpu, keywords.implementation is None
    static = _Static(spec, layout, by_handler, chosen, batch_first, dropout, options, *loop)
    return _run(static, x, states, weights, on_device, resets, key)


def _weights(mode: Mode, weights: Any, keywords: _Keywords) -> tuple[RNNSpec, LayoutName, Any]:
    """Return the spec, the layout of a flat array, and that array or a list of arrays."""
    spec = keywords.spec
    packed = isinstance(weights, RNNWeights)
    if spec is not None and not isinstance(spec, RNNSpec):
        raise TypeError(f"spec must be an RNNSpec; got {type(spec).__name__}")
    layers = check_integer("num_layers", keywords.num_layers)
    both = check_flag("bidirectional", keywords.bidirectional)
    described = weights.spec if packed and spec is None else spec
    if described is not None:
        if described.mode != mode:
            raise ValueError(f"spec is that of {described.mode!r}; this is {mode!r}")
        if layers not in (1, described.num_layers):
            raise ValueError(f"num_layers is {layers}; spec has {described.num_layers}")
        if both and not described.bidirectional:
            raise ValueError("bidirectional is True; spec is for one direction")
    if isinstance(weights, Mapping):
        if described is None:
            found_layers, found_both, names = layers_named(weights)
            if layers not in (1, found_layers):
                raise ValueError(f"num_layers is {layers}; weights have {found_layers} layer(s)")
            if both and not found_both:
                raise ValueError("bidirectional is True; weights are of one direction")
            layers, both = found_layers, found_both
        else:
            names = expected_names(described)
        weights = in_order(weights, names)
    if isinstance(weights, Sequence):
        arrays = [as_jax(f"weights[{index}]", array) for index, array in enumerate(weights)]
        if not arrays:
            raise ValueError("weights: got no arrays")
        if arrays[0].dtype.name not in ITEM_SIZES:
            raise TypeError(
                f"weights[0] must have one of the dtypes {', '.join(ITEM_SIZES)}; got "
                f"{arrays[0].dtype}"
            )
        shapes = [array.shape for array in arrays]
        if spec is None:
            spec = RNNSpec.from_weight_shapes(
                mode,
                shapes,
                num_layers=layers,
                bidirectional=both,
                dtype=arrays[0].dtype.name,
            )
        else:
            spec.check_weight_shapes(shapes)
        check_dtypes(arrays, spec.dtype)
        if keywords.layout is not None:
            raise ValueError("layout is for a flat array of weights; got a list of arrays")
        return spec, DEFAULT_LAYOUT, arrays
    if not packed and not hasattr(weights, "dtype"):
        raise TypeError(
            f"weights must be an RNNWeights, a flat array, a list of arrays or a mapping of "
            f"PyTorch's names to arrays; got {type(weights).__name__}"
        )
    flat, spec, layout = flat_of(weights, spec, keywords.layout)
    return spec, layout, flat


def _computed(spec: RNNSpec, x: Any) -> RNNSpec:
    """Return the spec of the computation: that of the weights, in the dtype of x."""
    dtype = x.dtype.name
    if dtype == spec.dtype:
        return spec
    if spec.dtype == "float32" and dtype in ("float16", "bfloat16"):
        return replace(spec, dtype=dtype)
    halves = " (or float16 or bfloat16)" if spec.dtype == "float32" else ""
    raise TypeError(
        f"x must have the dtype of the weights, {spec.dtype}{halves}; got {dtype}; use "
        f"x.astype({spec.dtype!r})"
    )


def _sizes(x: Any, spec: RNNSpec, batch_first: bool) -> tuple[int, int]:
    """T and B."""
    order = "[B, T, I]" if batch_first else "[T, B, I]"
    if x.ndim != 3:
        raise ValueError(f"x must have three dimensions, {order}; got shape {x.shape}")
    if x.shape[2] != spec.input_size:
        raise ValueError(f"x must be {order} with I = {spec.input_size}; got shape {x.shape}")
    first, second = x.shape[:2]
    return (second, first) if batch_first else (first, second)


def _states(
    argument: str, names: tuple[str, ...], hx: Any, spec: RNNSpec, rows: tuple[int, ...]
) -> tuple[Any, ...]:
    """h and, of an LSTM, c, of as many rows as one of ``rows``; none for zeros.

    Errors call the pair ``argument``, and its states ``names``.
    """
    if hx is None:
        return ()
    if spec.has_cell:
        if not isinstance(hx, tuple | list) or len(hx) != 2:
            raise TypeError(f"{argument} must be (h_0, c_0) or None; got {type(hx).__name__}")
    else:
        hx = (hx,)
    states = []
    for name, shape_of, array in zip(names, (spec.h_shape, spec.c_shape), hx, strict=False):
        array = as_jax(name, array)
        shapes = [shape_of(count) for count in rows]
        if array.shape not in shapes:
            expected = " or ".join(map(str, dict.fromkeys(shapes)))
            raise ValueError(f"{name} must have shape {expected}; got {array.shape}")
        if array.dtype.name != spec.dtype:
            raise TypeError(
                f"{name} must have the dtype of x, {spec.dtype}; got {array.dtype}; use "
                f"{name}.astype({spec.dtype!r})"
            )
        states.append(array)
    return tuple(states)


def _options(keywords: _Keywords, mode: str) -> tuple[RNNOptions, int | None]:
    """Return the options of a network, and "unroll", None if it was left out."""
    options, unroll = keywords.options, None
    refuse_embedding(options)
    if isinstance(options, Mapping) and "unroll" in options:
        unroll = _unroll(options["unroll"], keywords.implementation)
        options = {key: value for key, value in options.items() if key != "unroll"}
    checked = rnn_options(options, mode)
    if checked.validate:
        raise ValueError(
            "options['validate'] is of dnnffi's own functions; compare with "
            "implementation='scan' instead"
        )
    if checked.tune == "now":
        raise ValueError("options['tune'] must be auto or off; dnnffi.jax.tune measures")
    backend = named("miopen" if keywords.implementation == "miopen" else "cudnn")
    check_algorithm(backend.name, backend.title, "", checked)
    return checked, unroll


def _unroll(value: object, implementation: object) -> int:
    """Return the number of steps in one round of the scan's loop, checked."""
    if implementation not in (None, SCAN):
        raise ValueError(
            f"options['unroll'] is for the loop of implementation {SCAN!r}; got implementation "
            f"{implementation!r}. Leave one of them out"
        )
    help_text = "Leave it out for the default, 1 on a CPU and 10 elsewhere"
    try:
        number = check_integer("options['unroll']", value)
    except TypeError as error:
        raise TypeError(f"{error}: {brief(value)}. {help_text}") from None
    if number < 1:
        raise ValueError(
            f"options['unroll'] must be at least 1, the number of steps in one round of the loop; "
            f"got {shown(number)}. {help_text}"
        )
    return number


def _dropout(keywords: _Keywords, spec: RNNSpec) -> tuple[float, Any]:
    """Return the probability, 0 where nothing is dropped, and the key."""
    dropout = check_dropout(keywords.dropout)
    if not dropout:
        return 0.0, None
    if spec.num_layers == 1:
        warn_of_dropout()
        return 0.0, None
    key = keywords.key
    if key is None:
        raise ValueError(f"key must be one of jax.random where dropout is {dropout}; got None")
    if not hasattr(key, "dtype"):
        raise TypeError(f"key must be one of jax.random; got {type(key).__name__}")
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed and key.dtype.name != "uint32":
        raise TypeError(f"key must be one of jax.random; got an array of {key.dtype}")
    if len(key.shape) != (0 if typed else 1):
        raise ValueError(f"key must be one key, not an array of keys; got shape {key.shape}")
    return dropout, key


def _resets(keywords: _Keywords, x: Any, spec: RNNSpec, batch: int) -> scan.Resets | None:
    """Return the resets of a call, checked; None without any."""
    check_given(keywords.resets, keywords.reset_to)
    if keywords.resets is None:
        return None
    steps = as_jax("resets", keywords.resets)
    if not (steps.dtype == bool or jnp.issubdtype(steps.dtype, jnp.integer)):
        raise TypeError(f"resets must be bool or integers; got {steps.dtype}")
    if steps.shape != x.shape[:2]:
        raise ValueError(
            f"resets must have the shape of x without its last dimension, {x.shape[:2]}; got "
            f"{steps.shape}"
        )
    names = ("reset_to[0]", "reset_to[1]") if spec.has_cell else ("reset_to",)
    states = _states("reset_to", names, keywords.reset_to, spec, (batch, 1))
    if len(states) == 2:
        check_rows(states[0].shape[1], states[1].shape[1])
    return scan.Resets(steps, *(*states, None, None)[:2])


def _lengths_on_device(lengths: Any, steps: int, batch: int) -> Any:
    """Lengths on the device as int32 from 0 to T: others count as the nearest of these."""
    if lengths.shape != (batch,) or not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise ValueError(
            f"lengths on the device must be integers [{batch}], one for each row of the batch; got "
            f"shape {lengths.shape}, {lengths.dtype}"
        )
    if jnp.iinfo(lengths.dtype).max > MAX_ENTRIES:
        lengths = jnp.clip(lengths, 0, MAX_ENTRIES)
    return jnp.clip(lengths.astype("int32"), 0, steps)


@partial(jax.jit, static_argnums=0)
def _run(
    static: _Static,
    x: Any,
    states: tuple[Any, ...],
    weights: Any,
    lengths: Any,
    resets: scan.Resets | None,
    key: Any,
) -> Any:
    # Weights of float32 for x of 16 bits; JAX casts their gradients back.
    weights = jax.tree.map(lambda array: array.astype(static.spec.dtype), weights)
    if not static.dropout:
        return _layers(static, x, states, weights, lengths, resets)
    spec = static.spec
    arrays = weights if isinstance(weights, list) else apart(weights, spec, static.layout)
    of_layer = spec.arrays_per_direction * spec.num_directions
    masks = jax.random.split(key, spec.num_layers - 1)
    ended: list[Any] = []
    for layer in range(spec.num_layers):
        if layer:
            kept = jax.random.bernoulli(masks[layer - 1], 1 - static.dropout, x.shape)
            scale = 1 / (1 - static.dropout) if static.dropout < 1 else 0.0
            x = jnp.where(kept, x * jnp.asarray(scale, x.dtype), 0)
        single = replace(spec, input_size=spec.layer_input_size(layer), num_layers=1)
        problem = static.problem and static.problem._replace(spec=single)
        its = slice(layer * spec.num_directions, (layer + 1) * spec.num_directions)
        x, h_n, c_n = _layers(
            static._replace(spec=single, problem=problem),
            x,
            tuple(state[its] for state in states),
            arrays[layer * of_layer : (layer + 1) * of_layer],
            lengths,
            resets and resets.of(its),
        )
        ended.append((h_n, c_n))
    h_n, c_n = zip(*ended, strict=True)
    return x, jnp.concatenate(h_n), jnp.concatenate(c_n) if spec.has_cell else None


def _layers(
    static: _Static,
    x: Any,
    states: tuple[Any, ...],
    weights: Any,
    lengths: Any,
    resets: scan.Resets | None,
) -> tuple[Any, Any, Any]:
    """All layers at once, with nothing dropped."""
    spec = static.spec
    if static.implementation is not None and static.problem is not None:
        flat, layout = weights, static.layout
        if isinstance(weights, list):
            flat, layout = joined(weights, spec), DEFAULT_LAYOUT
        flat = laid_out(flat, spec, layout, static.implementation.layout)
        operands = {"x": x, "weights": flat} | dict(zip(("h_0", "c_0"), states, strict=False))
        if static.problem.has_device_lengths:
            operands["lengths"] = lengths
        if resets is not None:
            operands["resets"] = (resets.steps != 0).astype("uint8")
            reset_states = zip(RESET_STATES, resets[1:], strict=True)
            operands |= {name: state for name, state in reset_states if state is not None}
        unroll = static.unroll if static.or_scan else None
        found = operation.run(static.implementation, static.problem, operands, unroll)
        return (*found, None) if len(found) == 2 else tuple(found)
    arrays = weights if isinstance(weights, list) else apart(weights, spec, static.layout)
    h_0, c_0 = (*states, None, None)[:2]
    # Each varies over the mesh axes of a shard_map that any does, as the state of a loop must.
    every = (x, h_0, c_0, arrays, lengths, resets)
    leaves, structure = jax.tree.flatten(every)
    x, h_0, c_0, arrays, lengths, resets = structure.unflatten(varying_alike(leaves))
    return scan.network(
        spec,
        x,
        h_0,
        c_0,
        arrays,
        batch_first=static.batch_first,
        lengths=lengths,
        resets=resets,
        options=static.options,
        unroll=static.unroll,
        is_on_cpu=static.is_on_cpu,
    )
