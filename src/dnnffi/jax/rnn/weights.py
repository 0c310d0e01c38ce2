"""Weights of networks in JAX: `RNNWeights` as a pytree, and flat arrays in a layout.

Importing this registers `dnnffi.RNNWeights` with JAX, as a node whose only leaf is its buffer. Spec
and layout are part of the tree's structure, so `jax.jit` compiles one program for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from dnnffi.jax.arrays import as_jax, check_enabled
from dnnffi.spec.checks import is_ordered
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


def pack(arrays: Sequence[Any], spec: RNNSpec) -> RNNWeights:
    """Return arrays in PyTorch's order as an `RNNWeights` over one flat array of JAX.

    ``arrays``: for each layer, for each direction, w_ih [G*H, I or O*D], w_hh [G*H, O], then b_ih
    and b_hh [G*H] if there are biases, then w_hr [P, H] if there is a projection; all of the spec's
    dtype. The layout is the default one, cuDNN's. Differentiable. Raises ``TypeError`` or
    ``ValueError`` naming the array at fault.

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
    if not is_ordered(arrays):
        raise TypeError(f"arrays must be a sequence of arrays; got {type(arrays).__name__}")
    checked = [as_jax(f"weights[{index}]", array) for index, array in enumerate(arrays)]
    spec.check_weight_shapes([array.shape for array in checked])
    check_dtypes(checked, spec.dtype)
    return RNNWeights._of_result(joined(checked, spec), layout)


def unpack(
    weights: Any, spec: RNNSpec | None = None, *, layout: LayoutName | None = None
) -> list[Any]:
    """Return the arrays of ``weights`` in PyTorch's order: the inverse of `pack`.

    ``weights`` is an `RNNWeights`, or a flat array [size] with its ``spec`` and ``layout``, of
    which the layout may be left out only if it does not matter, as in `lstm`. Differentiable.
    Raises ``TypeError`` or ``ValueError`` if ``weights`` do not fit ``spec``.

    Examples
    --------
    >>> import jax
    >>> import dnnffi.jax
    >>> spec = dnnffi.RNNSpec(mode="rnn_tanh", input_size=3, hidden_size=4)
    >>> weights = dnnffi.jax.init(jax.random.key(0), spec)
    >>> [array.shape for array in dnnffi.jax.unpack(weights)]
    [(4, 3), (4, 4), (4,), (4,)]
    """
    flat, spec, name = flat_of(weights, spec, layout)
    return apart(flat, spec, name)


def init(key: Any, spec: RNNSpec) -> RNNWeights:
    """Return random weights as ``torch.nn`` draws them: uniform in [-1/sqrt(H), 1/sqrt(H)].

    An `RNNWeights` over a flat array of the spec's dtype in the default layout, cuDNN's, from a key
    of `jax.random`.

    Examples
    --------
    >>> import jax
    >>> import dnnffi.jax
    >>> spec = dnnffi.RNNSpec(mode="rnn_tanh", input_size=3, hidden_size=4)
    >>> weights = dnnffi.jax.init(jax.random.key(0), spec)
    >>> jax.tree.map(lambda array: array.shape, weights).flat
    (36,)
    """
    layout = weight_layout(spec, DEFAULT_LAYOUT)
    dtype = check_enabled(spec.dtype)
    bound = spec.hidden_size**-0.5
    # Drawn in float32 at least: numbers of 16 bits come in few values.
    wide = jnp.dtype("float32") if dtype.itemsize == 2 else dtype
    flat = jax.random.uniform(key, (layout.size,), wide, -bound, bound).astype(dtype)
    return RNNWeights._of_result(flat, layout)


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
