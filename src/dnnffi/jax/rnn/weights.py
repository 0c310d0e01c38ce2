"""How do weights lie in a JAX array? In cuDNN's layout, of which arrays are slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dnnffi.jax.arrays import as_jax, check_enabled
from dnnffi.spec.checks import is_ordered
from dnnffi.spec.names import LayoutName
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import weight_layout

LAYOUT: LayoutName = "cudnn"


def pack(arrays: Sequence[Any], spec: RNNSpec) -> Any:
    """One flat array, in cuDNN's layout, of arrays in PyTorch's order.

    ``arrays``: for each layer, for each direction, w_ih [G*H, I or O*D], w_hh [G*H, O], then b_ih
    and b_hh [G*H] if there are biases, then w_hr [P, H] if there is a projection; all of the spec's
    dtype. Differentiable. Raises ``TypeError`` or ``ValueError`` naming the array at fault.
    """
    layout = weight_layout(spec, LAYOUT)
    if not is_ordered(arrays):
        raise TypeError(f"arrays must be a sequence of arrays; got {type(arrays).__name__}")
    checked = [as_jax(f"weights[{index}]", array) for index, array in enumerate(arrays)]
    spec.check_weight_shapes([array.shape for array in checked])
    check_dtypes(checked, spec.dtype)
    in_order = sorted(zip(layout.blocks(), checked, strict=True), key=lambda pair: pair[0].offset)
    return jnp.concatenate([array.reshape(-1) for _, array in in_order])


def unpack(flat: Any, spec: RNNSpec) -> list[Any]:
    """The arrays in PyTorch's order of a flat array [size] in cuDNN's layout: `pack` undone.

    Differentiable. Raises ``TypeError`` or ``ValueError`` where ``flat`` is not of ``spec``.
    """
    flat = check_flat(flat, spec)
    arrays = []
    for block in weight_layout(spec, LAYOUT).blocks():
        size = 1
        for extent in block.shape:
            size *= extent
        part = jax.lax.slice(flat, (block.offset,), (block.offset + size,))
        arrays.append(part.reshape(block.shape))
    return arrays


def laid_out(flat: Any, spec: RNNSpec, layout: LayoutName) -> Any:
    """A flat array in cuDNN's layout, in another layout. Differentiable."""
    if layout == LAYOUT:
        return flat
    moves = weight_layout(spec, LAYOUT).moves_to(weight_layout(spec, layout))
    in_order = sorted(moves, key=lambda move: move.target)
    parts = [jax.lax.slice(flat, (move.source,), (move.source + move.size,)) for move in in_order]
    return jnp.concatenate(parts)


def init(key: Any, spec: RNNSpec) -> Any:
    """Random weights as ``torch.nn`` begins: uniform in [-1/sqrt(H), 1/sqrt(H)].

    A flat array [size] of the spec's dtype in cuDNN's layout, from a key of `jax.random`.
    """
    size = weight_layout(spec, LAYOUT).size
    dtype = check_enabled(spec.dtype)
    bound = spec.hidden_size**-0.5
    # Drawn in float32 at least: numbers of 16 bits come in few values.
    wide = jnp.dtype("float32") if dtype.itemsize == 2 else dtype
    return jax.random.uniform(key, (size,), wide, -bound, bound).astype(dtype)


def check_flat(flat: Any, spec: RNNSpec) -> Any:
    """``flat`` as an array of JAX, if it has the weights of ``spec``."""
    flat = as_jax("weights", flat)
    size = weight_layout(spec, LAYOUT).size
    if flat.shape != (size,):
        raise ValueError(f"weights must have shape ({size},) for {spec}; got {flat.shape}")
    check_dtypes([flat], spec.dtype, "weights")
    return flat


def check_dtypes(arrays: Sequence[Any], dtype: str, name: str = "") -> None:
    """Raise ``TypeError`` for the first array of another dtype."""
    check_enabled(dtype)
    for index, array in enumerate(arrays):
        if array.dtype.name != dtype:
            label = name or f"weights[{index}]"
            raise TypeError(f"{label} must have dtype {dtype}; got {array.dtype.name}")
