"""Flax's weights: cells, RNN and Bidirectional of linen and nnx, as parameters or as nnx's objects.

Parameters show neither activations nor the initial state. An object of nnx has them, and settings
that dnnffi does not compute are refused.
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

# Names under which linen and nnx have what RNN and Bidirectional contain.
_CELL = "cell"
_DIRECTIONS = ("forward_rnn", "backward_rnn")
_RANDOM_STATE = "rngs"  # in the state of nnx's RNN that is not filtered for parameters

_PACKAGES = ("flax", "jax", "jaxlib")

# Attributes of a cell of nnx that are functions, and the names that these have in JAX and Flax.
_FUNCTIONS = {"gate_fn": ("sigmoid", "logistic"), "activation_fn": ("tanh",)}

# Attributes of a dense layer of nnx that are functions; other ones may compute something else.
_DENSE_FUNCTIONS = ("dot_general", "promote_dtype")

_PASS_PARAMETERS = "if they are right all the same, pass the parameters: nnx.state(cell, nnx.Param)"


def read(params: object, mode: object) -> Network:
    """Return the network of a cell, RNN or Bidirectional, or a list of layers or of directions.

    ``params`` has the parameters by name, or is the object of nnx.
    """
    layers = layers_of("params", params, lambda value: not isinstance(value, list | tuple))
    found: list[Mode] = []
    cells = []
    for layer in layers:
        directions = [_cell(name, value, mode) for name, value in _directions(layer)]
        found += [one for one, _ in directions]
        cells.append([cell for _, cell in directions])
    if len(set(found)) > 1:
        modes = ", ".join(dict.fromkeys(found))
        raise ValueError(f"params must be of one mode; got {modes}")
    return network(found[0], cells)


def _directions(layer: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the cells of a layer with their names; a Bidirectional must be its only entry."""
    layer = [(name, _parameters(params)) for name, params in layer]
    inner = [[_entry(params, one) for one in _DIRECTIONS] for _, params in layer]
    if all(one is None for pair in inner for one in pair):
        return [
            _cell_of_rnn(name, params, direction) for direction, (name, params) in enumerate(layer)
        ]
    name, params = layer[0]
    if len(layer) != 1 or None in inner[0]:
        raise ValueError(
            f"{name} must be a cell or an RNN, one direction of a pair, or a Bidirectional alone "
            f"with forward_rnn and backward_rnn"
        )
    _check_wrapper(name, params, "Bidirectional", _DIRECTIONS)
    # The default of Flax concatenates the directions.
    merge = None if isinstance(params, Mapping) else getattr(params, "merge_fn", None)
    if merge is not None and function_name(merge, ("flax",)) != "_concatenate":
        raise ValueError(
            f"{name}.merge_fn must be Flax's default, which concatenates the directions; got "
            f"{function_name(merge, ('flax',))}. Pass [[{name}.forward_rnn, {name}.backward_rnn]] "
            f"and merge the halves of y"
        )
    # Bidirectional calls both with a `reverse` of its own.
    return [
        _cell_of_rnn(f"{name}.{one}", _parameters(value), None)
        for one, value in zip(_DIRECTIONS, inner[0], strict=True)
    ]


def _cell_of_rnn(name: str, params: Any, direction: int | None) -> tuple[str, Any]:
    """Return the cell of an RNN with its name; a cell is returned as it is.

    ``direction`` is 0 or 1; None in a Bidirectional, which ignores the ``reverse`` of its RNNs.
    """
    cell = _entry(params, _CELL)
    if cell is None:
        return name, params
    _check_wrapper(name, params, "RNN", (_CELL,))
    is_reversed = not isinstance(params, Mapping) and getattr(params, "reverse", False)
    if is_reversed and direction == 0:
        raise ValueError(
            f"{name}.reverse must be False: no network runs backward only. Pass {name}.cell, and "
            f"to the call x with its steps reversed"
        )
    return f"{name}.{_CELL}", _parameters(cell)


def _check_wrapper(name: str, params: Any, class_name: str, names: tuple[str, ...]) -> None:
    """``ValueError`` for parameters other than ``names``, or an object of another class."""
    if isinstance(params, Mapping):
        unexpected = [one for one in params if one not in (*names, _RANDOM_STATE)]
        if unexpected:
            raise ValueError(f"{name} has unexpected names: {listed(unexpected)}")
    elif not is_one_of(params, (class_name,), ("flax",)):
        raise ValueError(
            f"{name} must be nnx.{class_name} itself; got "
            f"{type(params).__module__}.{type(params).__name__}, which may compute something else "
            f"from its weights: {_PASS_PARAMETERS}"
        )


def _parameters(params: Any) -> Any:
    """Return parameters out of linen's collection "params"."""
    while isinstance(params, Mapping) and list(params) == ["params"]:
        params = params["params"]
    return params


def _cell(name: str, params: Any, mode: object) -> tuple[Mode, Cell]:
    for of_x, of_h in GATES:
        if all(_entry(params, one) is not None for one in (*of_x, *of_h)):
            break
    else:
        is_mapping = isinstance(params, Mapping)
        names = listed(params) if is_mapping else type(params).__name__
        known = "; ".join(" ".join((*of_x, *of_h)) for of_x, of_h in GATES)
        inside = ""
        if is_mapping:
            networks = [one for one, value in params.items() if _is_network(value)]
            if networks:
                inside = (
                    f". It contains cells: pass {listed(f'{name}[{one!r}]' for one in networks)}"
                )
        raise ValueError(
            f"{name} must have the names of a cell of Flax ({known}), or of its RNN (cell) or "
            f"Bidirectional (forward_rnn backward_rnn); got {names or 'none'}{inside}"
        )
    if isinstance(params, Mapping):
        unexpected = [one for one in params if one not in (*of_x, *of_h)]
        if unexpected:
            raise ValueError(f"{name} has unexpected names: {listed(unexpected)}")
    else:
        mode = _check_object(name, params, mode)
    w_ih, b_ih = _stacked(name, params, of_x)
    w_hh, b_hh = _stacked(name, params, of_h)
    label = f"{name}: the kernel of {' '.join(of_h)}"
    rows, hidden = w_hh.shape
    if len(of_h) == 1 and rows % hidden:
        raise ValueError(f"{label} must have shape [H, G*H]; got {(hidden, rows)}")
    gates = len(of_h) if len(of_h) > 1 else rows // hidden  # one layer may have all gates
    check_shape(label, w_hh, (gates * hidden, hidden))
    found = mode_of(label, w_hh, gates, 1, mode)
    if w_ih.shape[0] != w_hh.shape[0]:
        check_shape(
            f"{name}: the kernel of {' '.join(of_x)}", w_ih.T, (w_ih.shape[1], w_hh.shape[0])
        )
    if b_ih is None and b_hh is None:
        return found, Cell(w_ih, w_hh)
    some = b_hh if b_ih is None else b_ih
    zeros = zeros_like(some)
    return found, Cell(w_ih, w_hh, zeros if b_ih is None else b_ih, zeros if b_hh is None else b_hh)


def _is_network(params: Any) -> bool:
    """Whether these are the parameters of a cell, or of an RNN or Bidirectional, by their names."""
    if not isinstance(params, Mapping):
        return False
    known = (*((*of_x, *of_h) for of_x, of_h in GATES), (_CELL,), _DIRECTIONS)
    return any(all(one in params for one in names) for names in known)


def _stacked(name: str, params: Any, gates: Sequence[str]) -> tuple[AnyArray, AnyArray | None]:
    """Return the kernels of dense layers, stacked in PyTorch's shape, and their biases."""
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
    """Return an array of a dense layer, out of nnx's variable; None if it has none."""
    value = _entry(dense, name)
    if value is not None and not isinstance(value, Mapping):
        # Flax 0.12.8 deprecates the attribute, which older versions have instead of the method.
        method = getattr(value, "get_raw_value", None)
        value = getattr(value, "raw_value", value) if method is None else method()
    return None if value is None else named(label, value)
