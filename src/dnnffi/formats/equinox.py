"""Equinox's weights: LSTMCell and GRUCell, with PyTorch's matrices and one bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnnffi.device.arrays import array_module
from dnnffi.formats.network import (
    Cell,
    Network,
    check_dims,
    check_shape,
    is_one_of,
    layers_of,
    mode_of,
    named,
    network,
    zeros_like,
)
from dnnffi.spec.checks import listed
from dnnffi.spec.names import Mode

MODES = ("lstm", "gru")

_ARRAYS = ("weight_ih", "weight_hh", "bias", "bias_n")
# The other fields of a cell.
_SETTINGS = ("input_size", "hidden_size", "use_bias")
# Equinox's classes. A subclass may compute anything.
CELLS = ("LSTMCell", "GRUCell")


def read(cells: object) -> Network:
    """Return the network of a cell, or of a list of layers or of pairs of directions.

    A cell is an object of Equinox, or a mapping with weight_ih [G*H, I], weight_hh [G*H, H], bias
    [G*H] or None, and for a GRU bias_n [H] or None.
    """
    layers = layers_of("cell", cells, lambda value: not isinstance(value, list | tuple))
    found = [[_cell(name, value) for name, value in layer] for layer in layers]
    modes = [mode for layer in found for mode, _ in layer]
    if len(set(modes)) > 1:
        raise ValueError(f"cells must be of one mode; got {', '.join(dict.fromkeys(modes))}")
    return network(modes[0], [[cell for _, cell in layer] for layer in found])


def _cell(name: str, cell: Any) -> tuple[Mode, Cell]:
    fields = _fields(name, cell)
    # torch.nn.LSTMCell has these matrices too, and biases that would be lost.
    unexpected = [field for field in fields if field not in (*_ARRAYS, *_SETTINGS)]
    missing = [field for field in ("weight_ih", "weight_hh") if fields.get(field) is None]
    if missing:
        raise ValueError(
            f"{name} must be a cell of Equinox; this {type(cell).__name__} has no "
            f"{' and no '.join(missing)}"
        )
    if unexpected:
        is_torch = {"bias_ih", "bias_hh"} & set(unexpected)
        advice = "; PyTorch's cells have them: use RNNWeights.from_torch" if is_torch else ""
        raise ValueError(f"{name} has unexpected names: {listed(unexpected)}{advice}")
    arrays = {
        field: named(f"{name}.{field}", fields[field])
        for field in _ARRAYS
        if fields.get(field) is not None
    }
    if "bias" in arrays and not fields.get("use_bias", True):
        raise ValueError(f"{name} has a bias but use_bias=False, with which it is not added")
    w_ih, w_hh = arrays["weight_ih"], arrays["weight_hh"]
    check_dims(f"{name}.weight_ih", w_ih, "G*H, I")
    check_dims(f"{name}.weight_hh", w_hh, "G*H, H")
    rows, hidden = w_hh.shape
    mode = mode_of(f"{name}.weight_hh", w_hh, rows, hidden, None)
    if mode not in MODES:
        raise ValueError(f"{name}.weight_hh must be of an LSTM or a GRU; got shape {w_hh.shape}")
    check_shape(f"{name}.weight_ih", w_ih, (rows, w_ih.shape[1]))
    if "bias" not in arrays:
        if "bias_n" in arrays:
            raise ValueError(f"{name} has bias_n but no bias")
        return mode, Cell(w_ih, w_hh)
    bias = arrays["bias"]
    check_shape(f"{name}.bias", bias, (rows,))
    recurrent = zeros_like(bias)
    if mode == "gru":
        if "bias_n" not in arrays:
            raise ValueError(f"{name} has bias but no bias_n")
        check_shape(f"{name}.bias_n", arrays["bias_n"], (hidden,))
        recurrent = array_module(bias).concatenate([recurrent[: 2 * hidden], arrays["bias_n"]])
    elif "bias_n" in arrays:
        raise ValueError(f"{name} has bias_n, which an LSTM has not")
    return mode, Cell(w_ih, w_hh, bias, recurrent)


def _fields(name: str, cell: Any) -> Mapping[str, Any]:
    """Return the fields of a cell. Raises ``ValueError`` for no cell of Equinox."""
    if isinstance(cell, Mapping):
        return cell
    if is_one_of(cell, CELLS, ("equinox",)):
        return vars(cell)
    raise ValueError(
        f"{name} must be a cell of Equinox, {' or '.join(CELLS)}, or a mapping with its arrays; "
        f"got {type(cell).__module__}.{type(cell).__name__}, which may compute something else from "
        f"them"
    )
