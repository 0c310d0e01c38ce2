"""Weights of networks in JAX: `RNNWeights` as a pytree, and flat arrays in a layout.

Importing this registers `dnnffi.RNNWeights` with JAX, as a node whose only leaf is its buffer. Spec
and layout are part of the tree's structure, so `jax.jit` compiles one program for each of them.
`jax.export` writes them as JSON into the programs that take or return weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from math import isfinite, prod
from typing import Any, Literal, overload

import jax
import jax.export
import jax.numpy as jnp

from dnnffi import files
from dnnffi.errors import UnsupportedError
from dnnffi.formats.files import spec_of_entries
from dnnffi.formats.network import refuse_projection
from dnnffi.formats.torch import name_of
from dnnffi.jax.arrays import as_jax, check_enabled
from dnnffi.spec.checks import check_choice, check_flag, is_ordered, listed
from dnnffi.spec.names import LayoutName
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import DEFAULT_LAYOUT, layout_of_flat, weight_layout
from dnnffi.weights import RNNWeights

_FLAT = jax.tree_util.GetAttrKey("flat")


def _flatten(weights: RNNWeights) -> tuple[tuple[Any], tuple[RNNSpec, LayoutName]]:
    return (weights.flat,), (weights.spec, weights.backend)


def _flatten_with_keys(weights: RNNWeights) -> tuple[tuple[Any], tuple[RNNSpec, LayoutName]]:
    return ((_FLAT, weights.flat),), (weights.spec, weights.backend)


def _unflatten(structure: tuple[RNNSpec, LayoutName], leaves: tuple[Any]) -> RNNWeights:
    # JAX puts tracers, batches and placeholders here: nothing of the leaf can be checked.
    return RNNWeights._of_result(leaves[0], weight_layout(*structure))


jax.tree_util.register_pytree_with_keys(RNNWeights, _flatten_with_keys, _unflatten, _flatten)


def _to_json(structure: tuple[RNNSpec, LayoutName]) -> bytes:
    spec, layout = structure
    return json.dumps({"spec": asdict(spec), "layout": layout}).encode()


def _from_json(data: bytes | bytearray) -> tuple[RNNSpec, LayoutName]:
    """Return spec and layout out of an exported program; ``ValueError`` if it is damaged."""
    try:
        entries = files.parse_json(bytes(data))
        if not isinstance(entries, dict) or set(entries) != {"spec", "layout"}:
            raise ValueError("it must have the entries spec and layout")
        spec = spec_of_entries("spec", entries["spec"])
        return spec, weight_layout(spec, entries["layout"]).name
    except (TypeError, ValueError, RecursionError, UnsupportedError) as error:
        raise ValueError(f"{_SERIALIZED_NAME} of the exported program: {error}") from error


_SERIALIZED_NAME = "dnnffi.RNNWeights"

jax.export.register_pytree_node_serialization(
    RNNWeights,
    serialized_name=_SERIALIZED_NAME,
    serialize_auxdata=_to_json,
    deserialize_auxdata=_from_json,
)


def pack(arrays: Sequence[Any] | Mapping[str, Any], spec: RNNSpec) -> RNNWeights:
    """Return arrays in PyTorch's order, or by PyTorch's names, as an `RNNWeights`.

    ``arrays``: for each layer, for each direction, w_ih [G*H, I or O*D], w_hh [G*H, O], then b_ih
    and b_hh [G*H] if there are biases, then w_hr [P, H] if there is a projection; all of the spec's
    dtype. In a mapping their names are those that `unpack` returns with ``names=True``. The result
    is over one flat array of JAX in the default layout, cuDNN's. Differentiable. Raises
    ``TypeError`` or ``ValueError`` naming the array at fault.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import dnnffi.jax
    >>> spec = dnnffi.RNNSpec(mode="rnn_tanh", input_size=3, hidden_size=4)
    >>> arrays = [jnp.ones(parameter.shape) for parameter in spec.parameter_shapes()]
    >>> dnnffi.jax.pack(arrays, spec).flat.shape
    (36,)
    """
    layout = weight_layout(spec, DEFAULT_LAYOUT)
    if isinstance(arrays, Mapping):
        arrays = in_order(arrays, expected_names(spec))
    elif not is_ordered(arrays):
        raise TypeError(
            f"arrays must be a sequence of arrays or a mapping of PyTorch's names to arrays; got "
            f"{type(arrays).__name__}"
        )
    checked = [as_jax(f"weights[{index}]", array) for index, array in enumerate(arrays)]
    spec.check_weight_shapes([array.shape for array in checked])
    check_dtypes(checked, spec.dtype)
    return RNNWeights._of_result(joined(checked, spec), layout)


@overload
def unpack(
    weights: Any,
    spec: RNNSpec | None = None,
    *,
    layout: LayoutName | None = None,
    names: Literal[False] = False,
) -> list[Any]: ...


@overload
def unpack(
    weights: Any,
    spec: RNNSpec | None = None,
    *,
    layout: LayoutName | None = None,
    names: Literal[True],
) -> dict[str, Any]: ...


def unpack(
    weights: Any,
    spec: RNNSpec | None = None,
    *,
    layout: LayoutName | None = None,
    names: bool = False,
) -> list[Any] | dict[str, Any]:
    """Return the arrays of ``weights`` in PyTorch's order: the inverse of `pack`.

    ``weights`` is an `RNNWeights`, or a flat array [size] with its ``spec`` and ``layout``, of
    which the layout may be left out only if it does not matter, as in `lstm`. With ``names=True``
    the result is a dictionary by the names of ``torch.nn.LSTM`` (``weight_ih_l0``,
    ``weight_hh_l0``, ``bias_ih_l0``, ``bias_hh_l0``, ``weight_hr_l0`` of a projection,
    ``weight_ih_l0_reverse``, ``weight_ih_l1`` and so on), which `pack` and `lstm` take too.
    Differentiable. Raises ``TypeError`` or ``ValueError`` if ``weights`` do not fit ``spec``.

    Examples
    --------
    >>> import jax
    >>> import dnnffi.jax
    >>> spec = dnnffi.RNNSpec(mode="rnn_tanh", input_size=3, hidden_size=4)
    >>> weights = dnnffi.jax.init(jax.random.key(0), spec)
    >>> [array.shape for array in dnnffi.jax.unpack(weights)]
    [(4, 3), (4, 4), (4,), (4,)]
    >>> list(dnnffi.jax.unpack(weights, names=True))
    ['weight_ih_l0', 'weight_hh_l0', 'bias_ih_l0', 'bias_hh_l0']
    """
    flat, spec, name = flat_of(weights, spec, layout)
    arrays = apart(flat, spec, name)
    if not check_flag("names", names):
        return arrays
    return dict(zip(expected_names(spec), arrays, strict=True))


def init(
    key: Any, spec: RNNSpec, *, like: str = "torch", forget_bias: float | None = None
) -> RNNWeights:
    """Return random weights of the distributions with which a framework begins.

    An `RNNWeights` over a flat array of the spec's dtype in the default layout, cuDNN's.

    Parameters
    ----------
    key : of `jax.random`
    spec : the network
    like : "torch": all arrays are uniform in [-1/sqrt(H), 1/sqrt(H)] (``reset_parameters`` of
        ``torch.nn.RNNBase``).
        "keras": w_ih is uniform in [-a, a] with a = sqrt(6 / (inputs + G*H)) (Glorot and Bengio
        2010), w_hh [G*H, H] has orthonormal columns, biases are zero, except 1 for the forget gate
        of an LSTM (defaults of ``keras.layers.LSTM``, ``GRU`` and ``SimpleRNN``).
        "flax": w_ih is a normal distribution of standard deviation 1/sqrt(inputs), truncated at two
        standard deviations before scaling (LeCun et al. 1998), each gate [H, H] of w_hh is
        orthogonal, biases are zero (defaults of ``flax.linen``'s cells; ``flax.nnx``'s
        OptimizedLSTMCell and GRUCell make w_hh as Keras does)
    forget_bias : the bias of an LSTM's forget gate, which is then b_ih, and b_hh is zero there.
        None for that of the framework. 1 lets a new network remember (Gers et al. 2000, Jozefowicz
        et al. 2015)

    Raises
    ------
    TypeError, ValueError
        Naming the argument; a projection, which neither Keras's nor Flax's cells have, with
        "keras" and "flax"; ``forget_bias`` for a network that has no such bias.

    Examples
    --------
    >>> import jax
    >>> import dnnffi.jax
    >>> spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
    >>> weights = dnnffi.jax.init(jax.random.key(0), spec, like="flax", forget_bias=1)
    >>> jax.tree.map(lambda array: array.shape, weights).flat
    (144,)
    >>> w_ih, w_hh, b_ih, b_hh = dnnffi.jax.unpack(weights)
    >>> print(b_ih[4:8], b_hh[4:8])
    [1. 1. 1. 1.] [0. 0. 0. 0.]
    """
    layout = weight_layout(spec, DEFAULT_LAYOUT)
    like = check_choice("like", like, _LIKES)
    if like != "torch":
        refuse_projection(spec, like.capitalize())
    if forget_bias is not None:
        forget_bias = _check_forget_bias(forget_bias, spec)
    elif like == "keras" and spec.mode == "lstm" and spec.bias:
        forget_bias = 1.0
    dtype = check_enabled(spec.dtype)
    # Drawn in float32 at least: numbers of 16 bits come in few values.
    wide = jnp.dtype("float32") if dtype.itemsize == 2 else dtype
    if like == "torch":
        bound = spec.hidden_size**-0.5
        flat = jax.random.uniform(key, (layout.size,), wide, -bound, bound)
        if forget_bias is not None:
            arrays = apart(flat, spec, DEFAULT_LAYOUT)
            flat = joined(_with_forget_bias(arrays, spec, forget_bias), spec)
    else:
        arrays = _drawn(key, spec, like, wide)
        if forget_bias is not None:
            arrays = _with_forget_bias(arrays, spec, forget_bias)
        flat = joined(arrays, spec)
    return RNNWeights._of_result(flat.astype(dtype), layout)


_LIKES = ("torch", "keras", "flax")


def _check_forget_bias(value: object, spec: RNNSpec) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"forget_bias must be a number or None; got {type(value).__name__}")
    if not isfinite(value):
        raise ValueError(f"forget_bias must be finite; got {value}")
    if spec.mode != "lstm" or not spec.bias:
        raise ValueError(f"forget_bias is of an LSTM with biases; got {spec}. Leave it out")
    return float(value)


def _drawn(key: Any, spec: RNNSpec, like: str, dtype: Any) -> list[Any]:
    """Arrays in PyTorch's order with the distributions of Keras or Flax, and zero biases."""
    orthogonal = jax.nn.initializers.orthogonal()
    for_inputs = jax.nn.initializers.glorot_uniform()
    if like == "flax":
        for_inputs = jax.nn.initializers.lecun_normal()
    shapes = spec.parameter_shapes()
    arrays = []
    for parameter, one in zip(shapes, jax.random.split(key, len(shapes)), strict=True):
        # Initializers take the shapes of the frameworks: [inputs, outputs].
        if parameter.name == "w_ih":
            array = for_inputs(one, parameter.shape[::-1], dtype).T
        elif parameter.name == "w_hh" and like == "flax":
            size = spec.hidden_size
            gates = jax.random.split(one, spec.num_gates)
            array = jnp.concatenate([orthogonal(gate, (size, size), dtype) for gate in gates])
        elif parameter.name == "w_hh":
            array = orthogonal(one, parameter.shape[::-1], dtype).T
        else:
            array = jnp.zeros(parameter.shape, dtype)
        arrays.append(array)
    return arrays


def _with_forget_bias(arrays: Sequence[Any], spec: RNNSpec, value: float) -> list[Any]:
    """Set the forget gate's bias of every layer and direction: b_ih to ``value``, b_hh to 0."""
    forget = slice(spec.hidden_size, 2 * spec.hidden_size)
    values = {"b_ih": value, "b_hh": 0.0}
    return [
        array.at[forget].set(values[parameter.name]) if parameter.name in values else array
        for parameter, array in zip(spec.parameter_shapes(), arrays, strict=True)
    ]


def expected_names(spec: RNNSpec) -> list[str]:
    """Return PyTorch's names of the arrays of a network, in PyTorch's order."""
    return [name_of(one.name, one.layer, one.direction) for one in spec.parameter_shapes()]


def layers_named(names: Mapping[str, Any]) -> tuple[int, bool, list[str]]:
    """Return the network that a mapping of PyTorch's names describes.

    Number of layers, whether there are two directions, and the names that there must be.
    """
    num_layers = next(layer for layer in count() if name_of("w_ih", layer, 0) not in names) or 1
    kinds = ["w_ih", "w_hh"]
    bidirectional = any(name_of(kind, 0, 1) in names for kind in kinds)
    if any(name_of(kind, 0, 0) in names for kind in ("b_ih", "b_hh")):
        kinds += ["b_ih", "b_hh"]
    if name_of("w_hr", 0, 0) in names:
        kinds.append("w_hr")
    expected = [
        name_of(kind, layer, direction)
        for layer in range(num_layers)
        for direction in range(1 + bidirectional)
        for kind in kinds
    ]
    return num_layers, bidirectional, expected


def in_order(arrays: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    """Return a mapping's arrays in the order of ``names``; ``ValueError`` for any other names."""
    known = dict.fromkeys(names)
    missing = [name for name in known if name not in arrays]
    unexpected = [str(name) for name in arrays if name not in known]
    if missing or unexpected:
        parts = {"missing": missing, "unexpected": unexpected}
        raise ValueError(
            f"weights by name must have PyTorch's names; "
            f"{'; '.join(f'{what}: {listed(some)}' for what, some in parts.items() if some)}. "
            f"RNNWeights has methods for weights of other frameworks"
        )
    return [as_jax(f"weights[{name!r}]", arrays[name]) for name in known]


def flat_of(weights: Any, spec: RNNSpec | None, layout: object) -> tuple[Any, RNNSpec, LayoutName]:
    """Return the flat array of ``weights`` as an array of JAX, its spec and its layout.

    ``weights`` is an `RNNWeights`, or a flat array with ``spec`` and, if it matters, ``layout``.
    """
    if isinstance(weights, RNNWeights):
        if spec is not None and spec != weights.spec:
            raise ValueError(f"spec is {spec}; the weights are those of {weights.spec}")
        spec, found = weights.spec, weights.backend
        if layout is not None and layout_of_flat(spec, layout) != found:
            raise ValueError(f"layout is {layout!r}; the weights are in that of {found!r}")
        weights = weights.flat
    elif spec is None:
        raise TypeError("spec must be given with a flat array of weights; got None")
    else:
        found = layout_of_flat(spec, layout)
    flat = as_jax("weights", weights)
    size = weight_layout(spec, found).size
    if flat.shape != (size,):
        raise ValueError(f"weights must have shape ({size},) for {spec}; got {flat.shape}")
    check_dtypes([flat], spec.dtype, "weights")
    return flat, spec, found


def joined(arrays: Sequence[Any], spec: RNNSpec) -> Any:
    """Return ``arrays`` in PyTorch's order as one flat array in the default layout."""
    blocks = weight_layout(spec, DEFAULT_LAYOUT).blocks()
    in_order = sorted(zip(blocks, arrays, strict=True), key=lambda pair: pair[0].offset)
    return jnp.concatenate([array.reshape(-1) for _, array in in_order])


def apart(flat: Any, spec: RNNSpec, layout: LayoutName) -> list[Any]:
    """Return the arrays in PyTorch's order of a flat array in ``layout``."""
    blocks = weight_layout(spec, layout).find_blocks()
    if blocks is None:
        return apart(laid_out(flat, spec, layout, "torch"), spec, "torch")
    arrays = []
    for block in blocks:
        part = jax.lax.slice(flat, (block.offset,), (block.offset + prod(block.shape),))
        arrays.append(part.reshape(block.shape))
    return arrays


def laid_out(flat: Any, spec: RNNSpec, source: LayoutName, target: LayoutName) -> Any:
    """Return a flat array of layout ``source`` in the layout ``target``. Differentiable."""
    if source == target:
        return flat
    moves = weight_layout(spec, source).moves_to(weight_layout(spec, target))
    in_order = sorted(moves, key=lambda move: move.target)
    parts = [jax.lax.slice(flat, (move.source,), (move.source + move.size,)) for move in in_order]
    return jnp.concatenate(parts)


def check_dtypes(arrays: Sequence[Any], dtype: str, name: str = "") -> None:
    """Raise ``TypeError`` for the first array of another dtype."""
    check_enabled(dtype)
    for index, array in enumerate(arrays):
        if array.dtype.name != dtype:
            label = name or f"weights[{index}]"
            raise TypeError(f"{label} must have dtype {dtype}; got {array.dtype.name}")
