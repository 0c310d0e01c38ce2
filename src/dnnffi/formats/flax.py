"""Flax's weights: cells of linen and nnx, as parameters by name or as the cell of nnx itself.

Parameters show neither activations nor the initial state. A cell has them, and what dnnffi does not
compute is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dnnffi.device.arrays import array_module
from dnnffi.device.interface import AnyArray
from dnnffi.formats.network import (
    Cell,
    Network,
    check_dims,
    check_shape,
    function_name,
    is_defined_in,
    is_one_of,
    layers_of,
    mode_of,
    named,
    network,
    zeros_like,
)
from dnnffi.spec.checks import listed
from dnnffi.spec.names import Mode

# Dense layers of x and of h, in PyTorch's order of gates: kernels [I, H] and [H, H].
GATES = (
    (("ii", "if", "ig", "io"), ("hi", "hf", "hg", "ho")),  # LSTMCell, OptimizedLSTMCell of linen
    (("ii", "if_", "ig", "io"), ("hi", "hf", "hg", "ho")),  # LSTMCell of nnx
    (("ir", "iz", "in"), ("hr", "hz", "hn")),  # GRUCell of linen
    (("i",), ("h",)),  # SimpleCell of linen
    (("dense_i",), ("dense_h",)),  # OptimizedLSTMCell, GRUCell, SimpleCell of nnx: kernels [I, G*H]
)

# Classes of nnx that are taken as objects. A subclass may compute anything.
CELLS = ("LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell")

_PACKAGES = ("flax", "jax", "jaxlib")

# Attributes of a cell of nnx that are functions, and the names that these have in JAX and Flax.
_FUNCTIONS = {"gate_fn": ("sigmoid", "logistic"), "activation_fn": ("tanh",)}

# Attributes of a dense layer of nnx that are functions; other ones may compute something else.
_DENSE_FUNCTIONS = ("dot_general", "promote_dtype")

_PASS_PARAMETERS = "if they are right all the same, pass the parameters: nnx.state(cell, nnx.Param)"


def read(params: object, mode: object) -> Network:
    """The network of a cell's parameters, or of a list of layers or of pairs of directions."""
    layers = layers_of("params", params, lambda value: not isinstance(value, list | tuple))
    found: list[Mode] = []
    cells = []
    for layer in layers:
        directions = [_cell(name, value, mode) for name, value in layer]
        found += [one for one, _ in directions]
        cells.append([cell for _, cell in directions])
    if len(set(found)) > 1:
        modes = ", ".join(dict.fromkeys(found))
        raise ValueError(f"params must be of one mode; got {modes}")
    return network(found[0], cells)


def _cell(name: str, params: Any, mode: object) -> tuple[Mode, Cell]:
    while isinstance(params, Mapping) and list(params) == ["params"]:
        params = params["params"]
    for of_x, of_h in GATES:
        if all(_entry(params, one) is not None for one in (*of_x, *of_h)):
            break
    else:
        is_mapping = isinstance(params, Mapping)
        names = listed(params) if is_mapping else type(params).__name__
        known = "; ".join(" ".join((*of_x, *of_h)) for of_x, of_h in GATES)
        raise ValueError(f"{name} must have the names of a cell of Flax ({known}); got {names}")
    if isinstance(params, Mapping):
        unexpected = [one for one in params if one not in (*of_x, *of_h)]
        if unexpected:
            raise ValueError(f"{name} has unexpected names: {listed(unexpected)}")
    else:
        mode = _check_object(name, params, mode)
    w_ih, b_ih = _stacked(name, params, of_x)
    w_hh, b_hh = _stacked(name, params, of_h)
    label = f"{name}: the kernel of {' '.join(of_h)}"
    found = mode_of(label, w_hh, w_hh.shape[0] // w_hh.shape[1], 1, mode)
    check_shape(label, w_hh, (w_hh.shape[0], w_hh.shape[1]))
    if w_ih.shape[0] != w_hh.shape[0]:
        check_shape(
            f"{name}: the kernel of {' '.join(of_x)}", w_ih.T, (w_ih.shape[1], w_hh.shape[0])
        )
    if b_ih is None and b_hh is None:
        return found, Cell(w_ih, w_hh)
    some = b_hh if b_ih is None else b_ih
    zeros = zeros_like(some)
    return found, Cell(w_ih, w_hh, zeros if b_ih is None else b_ih, zeros if b_hh is None else b_hh)


def _stacked(name: str, params: Any, gates: Sequence[str]) -> tuple[AnyArray, AnyArray | None]:
    """The kernels of some dense layers, one below the other in PyTorch's shape, and the biases."""
    kernels: list[AnyArray] = []
    biases: list[AnyArray | None] = []
    for gate in gates:
        dense = _entry(params, gate)
        if isinstance(dense, Mapping):
            unexpected = [one for one in dense if one not in ("kernel", "bias")]
            if unexpected:
                raise ValueError(f"{name}.{gate} has unexpected names: {listed(unexpected)}")
        elif dense is not None:
            _check_dense(f"{name}.{gate}", dense)
        kernel = _array(f"{name}.{gate}.kernel", dense, "kernel")
        if kernel is None:
            raise ValueError(f"{name}.{gate} must have a kernel")
        check_dims(f"{name}.{gate}.kernel", kernel, "in, out")
        if kernels:
            check_shape(f"{name}.{gate}.kernel", kernel, tuple(kernels[0].T.shape))
        bias = _array(f"{name}.{gate}.bias", dense, "bias")
        if bias is not None:
            check_shape(f"{name}.{gate}.bias", bias, (kernel.shape[1],))
        kernels.append(kernel.T)
        biases.append(bias)
    xp = array_module(kernels[0])
    stacked = xp.concatenate(kernels)
    present = [bias for bias in biases if bias is not None]
    if not present:
        return stacked, None
    filled = [zeros_like(present[0]) if bias is None else bias for bias in biases]
    return stacked, xp.concatenate(filled)


def _check_object(name: str, cell: Any, mode: object) -> object:
    """Return ``mode``, or "rnn_relu" where the cell's activation says so.

    Raises ``ValueError`` naming the attribute with which a cell is another function of its weights.
    """
    if not is_one_of(cell, CELLS, ("flax",)):
        raise ValueError(
            f"{name} must be one of nnx's cells {', '.join(CELLS)}, or its parameters; got "
            f"{type(cell).__module__}.{type(cell).__name__}, which may compute something else from "
            f"its weights: {_PASS_PARAMETERS}"
        )
    for attribute, expected in _FUNCTIONS.items():
        function = getattr(cell, attribute, None)
        if function is None:
            continue
        found = function_name(function, _PACKAGES)
        if found == "relu" and not hasattr(cell, "gate_fn") and mode in (None, "rnn_relu"):
            mode = "rnn_relu"
        elif found not in expected or mode == "rnn_relu":
            raise ValueError(f"{name}.{attribute} must be {expected[0]}; got {found}")
    if getattr(cell, "residual", False):
        raise ValueError(f"{name}.residual must be False: no backend adds the state to the sum")
    carry_init = getattr(cell, "carry_init", None)
    initializer = "zeros" if carry_init is None else function_name(carry_init, _PACKAGES)
    if initializer != "zeros":
        raise ValueError(
            f"{name}.carry_init must be zeros or None; got {initializer}. Weights have no initial "
            f"state: pass the parameters, nnx.state(cell, nnx.Param), and to the call the state, hx"
        )
    return mode


def _check_dense(name: str, dense: Any) -> None:
    """``ValueError`` unless a dense layer of a cell is nnx's ``Linear``: LoRA's has more arrays."""
    if not is_one_of(dense, ("Linear",), ("flax",)):
        raise ValueError(
            f"{name} must be an nnx.Linear; got {type(dense).__module__}.{type(dense).__name__}, "
            f"which may have more than a kernel and a bias"
        )
    for attribute in _DENSE_FUNCTIONS:
        function = getattr(dense, attribute, None)
        if function is not None and not is_defined_in(function, _PACKAGES):
            raise ValueError(
                f"{name}.{attribute} must be a function of JAX or Flax; got "
                f"{function_name(function, _PACKAGES)}"
            )


def _entry(params: Any, name: str) -> Any:
    return params.get(name) if isinstance(params, Mapping) else getattr(params, name, None)


def _array(label: str, dense: Any, name: str) -> AnyArray | None:
    """An array of a dense layer, out of the variable of nnx that holds it; None if it has none."""
    value = _entry(dense, name)
    if value is not None and not isinstance(value, Mapping):
        value = getattr(value, "raw_value", value)
    return None if value is None else named(label, value)
