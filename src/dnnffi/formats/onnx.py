"""ONNX's weights: W, R and B of the operators LSTM, GRU and RNN, and checks of their nodes."""

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
    computable,
    named,
    network,
    of_other_mode,
    order_from,
    order_of,
    refuse_projection,
    reordered,
)
from dnnffi.spec.checks import brief, clipped, listed
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

# Domains under which ONNX lists its own operators. Another domain may give a name another meaning.
DOMAINS = ("", "ai.onnx")

# Inputs of a node in their order, the same in all versions of the operators (1, 3, 7, 14, 22).
INPUTS = {
    "LSTM": ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
    "GRU": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    "RNN": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
}

# Attributes of all versions of an operator, each with the field of AttributeProto that has its
# value. "output_sequence" is in version 1, "layout" from version 14 on; both change the shapes of
# inputs and outputs only.
_SHARED_ATTRIBUTES = {
    "activation_alpha": "floats",
    "activation_beta": "floats",
    "activations": "strings",
    "clip": "f",
    "direction": "s",
    "hidden_size": "i",
    "layout": "i",
    "output_sequence": "i",
}
ATTRIBUTES = {
    "LSTM": _SHARED_ATTRIBUTES | {"input_forget": "i"},
    "GRU": _SHARED_ATTRIBUTES | {"linear_before_reset": "i"},
    "RNN": _SHARED_ATTRIBUTES,
}

# AttributeProto.type of an attribute whose value is in the field.
_FIELD_TYPES = {"f": 1, "i": 2, "s": 3, "floats": 6, "strings": 8}

_BEFORE = (
    "linear_before_reset must be 1; with 0, which is ONNX's default, the GRU resets the state "
    "before the product: another function than cuDNN's, MIOpen's and PyTorch's"
)


def read(w: object, r: object, b: object, mode: object, linear_before_reset: object) -> Network:
    """Return the network of W, R and B of one node, or of lists of them, one for each layer."""
    mode = check_mode(mode)
    if mode == "gru" and linear_before_reset != 1:
        raise ValueError(f"{_BEFORE}; got {brief(linear_before_reset)}")
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
    """Return the network of a node, or of a list of nodes, one for each layer."""
    if not isinstance(initializers, Mapping):
        raise TypeError(
            f"initializers must be a mapping of names to arrays; got {type(initializers).__name__}"
        )
    layers = nodes if isinstance(nodes, list | tuple) else [nodes]
    if not layers:
        raise ValueError("nodes must have at least one node; got none")
    return read_layers([(node, initializers) for node in layers], mode, is_mapping=True)


def read_layers(
    layers: Sequence[tuple[Any, Mapping[Any, Any]]], mode: object, *, is_mapping: bool
) -> Network:
    """Read the network of nodes, one for each layer, each with its constants by name.

    ``is_mapping`` says that the caller of dnnffi gave the constants, for messages.
    """
    found = [_mode_of_node(node) for node, _ in layers]
    if any(one != found[0] for one in found):
        modes = ", ".join(dict.fromkeys(found))
        raise ValueError(f"nodes must be of one mode; got {modes}")
    if mode is not None and check_mode(mode) != found[0]:
        raise ValueError(f"mode is {mode!r}; the node is {found[0]!r}")
    cells = []
    for node, constants in layers:
        inputs = _inputs(node)
        names = [inputs.get(name, "") for name in "WRB"]
        missing = [name or "W or R" for name in names[:2] if name not in constants]
        missing += [name for name in names[2:] if name and name not in constants]
        if missing:
            raise ValueError(f"initializers have no {listed(missing)}, which the node reads")
        values = [constants[name] if name else None for name in names]
        layer = _layer([clipped(name) for name in names], values, found[0])
        attributes = _attributes(node)
        _check_attributes(node.op_type, attributes, found[0], layer)
        _check_other_inputs(inputs, constants, attributes.get("layout", 0), is_mapping)
        cells.append(layer)
    return network(found[0], cells)


def _layer(names: Sequence[str], values: Sequence[object], mode: Mode) -> list[Cell]:
    """Return the directions of one node."""
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
    """Return the attributes of a node by name.

    Raises ``ValueError`` for an attribute that the operator does not have, for a second one of the
    same name, for another type, and for a reference to a parameter of a function.
    """
    known = ATTRIBUTES[node.op_type]
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        name = attribute.name
        if name not in known:
            raise ValueError(f"unknown attribute {clipped(name)} of the node, an {node.op_type}")
        if name in found:
            raise ValueError(f"the node has the attribute {name} twice")
        field = known[name]
        if attribute.type != _FIELD_TYPES[field]:
            raise ValueError(
                f"{name} must be an attribute of type {_FIELD_TYPES[field]} (AttributeProto.type, "
                f"its value in the field {field!r}); got type {attribute.type}"
            )
        if getattr(attribute, "ref_attr_name", ""):
            raise ValueError(
                f"{name} is the parameter {clipped(attribute.ref_attr_name)} of a function, whose "
                f"value the node does not have; inline the function before reading the node"
            )
        value = getattr(attribute, field)
        if field == "s":
            value = _decoded(value)
        elif field == "strings":
            value = [_decoded(one) for one in value]
        found[name] = value
    return found


def _decoded(text: bytes | str) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _inputs(node: Any) -> dict[str, str]:
    """Return the inputs that a node has, by ONNX's names: what the graph calls each."""
    known = INPUTS[node.op_type]
    names = list(node.input)
    if any(names[len(known) :]):
        raise ValueError(
            f"a node of {node.op_type} has {len(known)} inputs ({', '.join(known)}); this one has "
            f"{len(names)}"
        )
    return {one: name for one, name in zip(known, names, strict=False) if name}


def _check_other_inputs(
    inputs: Mapping[str, str], constants: Mapping[Any, Any], layout: int, is_mapping: bool
) -> None:
    """``ValueError`` for a constant that decides what the node computes, besides W, R and B.

    An initial state of zeros and an empty array of lengths are what a node without them has.
    """
    if "P" in inputs:
        raise ValueError(
            f"P: the node has peepholes ({clipped(inputs['P'])}), which no backend has"
        )
    for one in ("initial_h", "initial_c", "sequence_lens"):
        name = inputs.get(one)
        if name is None or name not in constants:
            continue
        value = computable(f"{one} ({clipped(name)})", constants[name])
        shown = clipped(repr(name))
        if is_mapping:
            what, removal = f"initializer {shown}", "Take {} out of the mapping"
            found = f"initializers.pop({shown})"
        else:
            what, found = f"constant {shown}", "its value"
            removal = "Read the node by from_onnx(node, initializers) without {}"
        if one == "sequence_lens":
            if 0 not in value.shape:
                raise ValueError(
                    f"sequence_lens: the node has lengths, the {what}, which are no weights. "
                    f"{removal.format('them')} and pass them to the call: lengths={found}"
                )
        elif bool((value != 0).any()):
            swapped = ".swapaxes(0, 1), because the node has layout=1" if layout else ""
            raise ValueError(
                f"{one}: the node begins from the {what}, which is not zero; weights have no "
                f"state. {removal.format('it')} and pass it to the call, in hx: {one} = "
                f"{found}{swapped}"
            )


def _mode_of_node(node: Any) -> Mode:
    operator = getattr(node, "op_type", None)
    if operator not in INPUTS:
        found = type(node).__name__ if operator is None else clipped(str(operator))
        raise ValueError(
            f"the node must be an LSTM, a GRU or an RNN, of an ONNX graph; got {found}"
        )
    domain = getattr(node, "domain", "")
    if domain not in DOMAINS:
        raise ValueError(
            f"the node must be of ONNX's own domain, '' or 'ai.onnx'; got {operator} of the domain "
            f"{brief(domain)}, which may be another function"
        )
    overload = getattr(node, "overload", "")
    if overload:
        raise ValueError(
            f"the node must be an operator; got the overload {brief(overload)} of a function "
            f"{operator} of the model"
        )
    if operator != "RNN":
        return "lstm" if operator == "LSTM" else "gru"
    names = _attributes(node).get("activations") or ["tanh"]
    return "rnn_relu" if names[0].lower() == "relu" else "rnn_tanh"


def _check_attributes(
    operator: str, attributes: Mapping[str, Any], mode: Mode, layer: Sequence[Cell]
) -> None:
    """``ValueError`` naming an attribute with which a node is another function of its weights."""
    for name, value in attributes.items():
        if name == "activations":
            wanted = ACTIVATIONS[mode] * len(layer)
            if tuple(one.lower() for one in value) != wanted:
                raise ValueError(
                    f"activations of {operator} must be {', '.join(wanted)}; got {listed(value)}"
                )
        elif name in ("activation_alpha", "activation_beta"):
            if value:
                raise ValueError(
                    f"{name} must not be given: no activation has one; got {listed(value)}"
                )
        elif name == "direction":
            if value != ("forward" if len(layer) == 1 else "bidirectional"):
                raise ValueError(
                    f"direction must be forward, or bidirectional with two directions of weights; "
                    f"got {brief(value)} and {len(layer)}"
                )
        elif name == "layout":
            if value not in (0, 1):
                raise ValueError(f"layout must be 0 or 1; got {value}")
        elif name == "clip":
            raise ValueError(
                f"clip: the node limits what goes into its activations, to {value}; no backend does"
            )
        elif name == "input_forget" and value:
            raise ValueError("input_forget must be 0: input and forget gate are not coupled")
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
