"""ONNX's weights: W, R and B of the operators LSTM, GRU and RNN, and what else a node may ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dnnffi.device.arrays import array_module
from dnnffi.device.interface import AnyArray
from dnnffi.formats.network import (
    Cell,
    Network,
    cells_of,
    check_dims,
    check_mode,
    check_shape,
    named,
    network,
    of_other_mode,
    order_from,
    order_of,
    refuse_projection,
    reordered,
)
from dnnffi.spec.names import Mode
from dnnffi.spec.rnn import GATES, RNNSpec

# Gates one after the other along axis 1 of W [D, G*H, I] and R [D, G*H, H], and in both halves of
# B [D, 2*G*H]. The operators call the cell's gate c, and a GRU's new state h.
ORDER = {"lstm": "iofg", "gru": "zrn", "rnn_tanh": "h", "rnn_relu": "h"}

# What each direction of a node computes by default, in lower case: ONNX's names are of either.
ACTIVATIONS = {
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
    "rnn_tanh": ("tanh",),
    "rnn_relu": ("relu",),
}

# Inputs of a node by their places.
_W, _R, _B, _P = 1, 2, 3, 7

# Attributes that do not change the function of the weights.
_HARMLESS = ("hidden_size", "layout", "output_sequence")

_BEFORE = (
    "linear_before_reset must be 1; with 0, which is ONNX's default, the GRU resets the state "
    "before the product: another function than cuDNN's, MIOpen's and PyTorch's"
)


def read(w: object, r: object, b: object, mode: object, linear_before_reset: object) -> Network:
    """The network of W, R and B of one node, or of lists of them, one for each layer."""
    mode = check_mode(mode)
    if mode == "gru" and linear_before_reset != 1:
        raise ValueError(f"{_BEFORE}; got {linear_before_reset!r}")
    if not isinstance(w, list | tuple):
        return network(mode, [_layer(("W", "R", "B"), (w, r, b), mode)])
    if not isinstance(r, list | tuple) or not isinstance(b, list | tuple | None):
        raise TypeError("R and B must be lists, one entry for each layer, as W is")
    b = [None] * len(w) if b is None else b
    if not len(w) == len(r) == len(b) or not w:
        raise ValueError(f"W, R and B must have an entry a layer; got {len(w)}, {len(r)}, {len(b)}")
    return network(
        mode,
        [
            _layer([f"{name}[{at}]" for name in "WRB"], parts, mode)
            for at, parts in enumerate(zip(w, r, b, strict=True))
        ],
    )


def read_nodes(nodes: Any, initializers: object, mode: object) -> Network:
    """The network of a node, or of a list of nodes, one for each layer."""
    if not isinstance(initializers, Mapping):
        raise TypeError(
            f"initializers must be a mapping of names to arrays; got {type(initializers).__name__}"
        )
    layers = nodes if isinstance(nodes, list | tuple) else [nodes]
    found = [_mode_of_node(node) for node in layers]
    if any(one != found[0] for one in found):
        raise ValueError(f"nodes must be of one mode; got {', '.join(found)}")
    if mode is not None and check_mode(mode) != found[0]:
        raise ValueError(f"mode is {mode!r}; the node is {found[0]!r}")
    cells = []
    for node in layers:
        inputs = [*node.input, *[""] * 8]
        names = [inputs[place] for place in (_W, _R, _B)]
        missing = [name or "W or R" for name in names[:2] if name not in initializers]
        missing += [name for name in names[2:] if name and name not in initializers]
        if missing:
            raise ValueError(f"initializers have no {', '.join(missing)}, which the node reads")
        values = [initializers[name] if name else None for name in names]
        layer = _layer(names, values, found[0])
        _check_attributes(node, found[0], layer)
        cells.append(layer)
    return network(found[0], cells)


def _layer(names: Sequence[str], values: Sequence[object], mode: Mode) -> list[Cell]:
    """The directions of one node."""
    w, r = named(names[0], values[0]), named(names[1], values[1])
    check_dims(names[0], w, "D, G*H, I")
    check_dims(names[1], r, "D, G*H, H")
    directions, rows, hidden = r.shape
    gates = len(GATES[mode])
    if directions not in (1, 2):
        raise ValueError(f"{names[1]} must have one or two directions; got shape {r.shape}")
    if rows != gates * hidden:
        cause = of_other_mode(rows, hidden)
        if hidden == gates * rows:
            cause = "; it is transposed"
        raise ValueError(
            f"{names[1]} must have shape [D, {gates}*H, H] for {mode}; got {tuple(r.shape)}{cause}"
        )
    if tuple(w.shape[:2]) != (directions, rows):
        cause = "; it is transposed" if (w.shape[0], w.shape[2]) == (directions, rows) else ""
        raise ValueError(
            f"{names[0]} must have shape ({directions}, {rows}, I); got {tuple(w.shape)}{cause}"
        )
    order = order_of(ORDER[mode], mode)
    if values[2] is None:
        return [Cell(*(reordered(part[d], order) for part in (w, r))) for d in range(directions)]
    b = named(names[2], values[2])
    check_shape(names[2], b, (directions, 2 * rows))
    return [
        Cell(*(reordered(part, order) for part in (w[d], r[d], b[d, :rows], b[d, rows:])))
        for d in range(directions)
    ]


def _attributes(node: Any) -> dict[str, Any]:
    """The attributes of a node by name: what the field of each says that its type names."""
    fields = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints", 8: "strings"}
    found = {}
    for attribute in node.attribute:
        value = getattr(attribute, fields.get(attribute.type, "type"))
        if isinstance(value, bytes):
            value = value.decode()
        elif not isinstance(value, int | float | str):
            value = [one.decode() if isinstance(one, bytes) else one for one in value]
        found[attribute.name] = value
    return found


def _mode_of_node(node: Any) -> Mode:
    operator = getattr(node, "op_type", None)
    if operator in ("LSTM", "GRU"):
        return "lstm" if operator == "LSTM" else "gru"
    if operator != "RNN":
        raise ValueError(
            f"the node must be an LSTM, a GRU or an RNN, of an ONNX graph; got "
            f"{type(node).__name__ if operator is None else operator}"
        )
    names = _attributes(node).get("activations") or ["tanh"]
    return "rnn_relu" if str(names[0]).lower() == "relu" else "rnn_tanh"


def _check_attributes(node: Any, mode: Mode, layer: Sequence[Cell]) -> None:
    """``ValueError`` naming what the node asks for and the weights alone are not."""
    attributes = _attributes(node)
    inputs = [*node.input, *[""] * 8]
    if inputs[_P]:
        raise ValueError(f"P: the node has peepholes ({inputs[_P]}), which no backend has")
    for name, value in attributes.items():
        if name in _HARMLESS:
            continue
        if name == "activations":
            wanted = ACTIVATIONS[mode] * len(layer)
            if tuple(str(one).lower() for one in value) != wanted:
                raise ValueError(
                    f"activations of {node.op_type} must be {', '.join(wanted)}; got "
                    f"{', '.join(map(str, value))}"
                )
        elif name in ("activation_alpha", "activation_beta"):
            if value:
                raise ValueError(f"{name} must not be given: no activation has one; got {value}")
        elif name == "direction":
            if value == "reverse" or (value == "bidirectional") != (len(layer) == 2):
                raise ValueError(
                    f"direction must be forward, or bidirectional with two directions of weights; "
                    f"got {value!r} and {len(layer)}"
                )
        elif name == "clip":
            raise ValueError(
                f"clip: the node limits what goes into its activations, to {value}; no backend does"
            )
        elif name == "input_forget":
            if value:
                raise ValueError("input_forget must be 0: input and forget gate are not coupled")
        elif name != "linear_before_reset":
            raise ValueError(f"unknown attribute {name} of the node")
    before = attributes.get("linear_before_reset", 0)
    if mode == "gru" and before != 1:
        raise ValueError(f"{_BEFORE}; the node has {before}")
    if attributes.get("direction", "forward") == "forward" and len(layer) == 2:
        raise ValueError("direction must be bidirectional: the weights have two directions")
    hidden = layer[0].w_hh.shape[1]
    if attributes.get("hidden_size", hidden) != hidden:
        raise ValueError(f"hidden_size is {attributes['hidden_size']}; the weights have {hidden}")


def write(spec: RNNSpec, arrays: Sequence[AnyArray]) -> tuple[Any, Any, Any]:
    """W, R and B of a node; of more than one layer, lists of them. B is None without biases."""
    refuse_projection(spec, "ONNX")
    order = order_from(ORDER[spec.mode], spec.mode)
    ws, rs, bs = [], [], []
    for layer in cells_of(spec, arrays):
        xp = array_module(layer[0].w_ih)
        ws.append(xp.stack([reordered(cell.w_ih, order) for cell in layer]))
        rs.append(xp.stack([reordered(cell.w_hh, order) for cell in layer]))
        if spec.bias:
            both = [[reordered(bias, order) for bias in (c.b_ih, c.b_hh)] for c in layer]
            bs.append(xp.stack([xp.concatenate(pair) for pair in both]))
    if spec.num_layers == 1:
        return ws[0], rs[0], bs[0] if bs else None
    return ws, rs, bs or None
