"""Keras's weights: kernel, recurrent kernel and bias of a layer, as get_weights() lists them."""

from __future__ import annotations

from collections.abc import Sequence
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
    described,
    named,
    network,
    of_other_mode,
    order_from,
    order_of,
    refuse_projection,
    reordered,
    zeros_like,
)
from dnnffi.spec.checks import check_flag
from dnnffi.spec.names import Mode
from dnnffi.spec.rnn import GATES, RNNSpec

# One after the other along the last axis of each array: kernel [I, G*H], recurrent [H, G*H]. The
# cell's gate is c in Keras's papers.
ORDER = {"lstm": "ifgo", "gru": "zrn", "rnn_tanh": "h", "rnn_relu": "h"}

_NO_RESET_AFTER = (
    "a GRU with reset_after=False is another function than cuDNN's, MIOpen's and PyTorch's: it "
    "resets the state before the product, and no weights make one of the other"
)


def read(weights: object, mode: object, reset_after: object = True) -> Network:
    """The network of what ``get_weights`` of one layer gives, or of a list of such."""
    mode = check_mode(mode)
    if not check_flag("reset_after", reset_after) and mode == "gru":
        raise ValueError(f"reset_after must be True: {_NO_RESET_AFTER}")
    if not isinstance(weights, list | tuple) or not weights:
        raise TypeError(
            f"weights must be the list of a layer's arrays, or a list of such lists; got "
            f"{described(weights)}"
        )
    nested = isinstance(weights[0], list | tuple)
    layers = [(f"weights[{at}]", one) for at, one in enumerate(weights)]
    cells = [
        [_cell(where, arrays, mode) for where, arrays in _directions(name, layer)]
        for name, layer in (layers if nested else [("weights", weights)])
    ]
    return network(mode, cells)


def _directions(name: str, layer: Any) -> list[tuple[str, Sequence[Any]]]:
    """The arrays of each direction: of a pair, or of what ``Bidirectional`` lists."""
    if not isinstance(layer, list | tuple):
        raise TypeError(f"{name} must be a list of arrays; got {type(layer).__name__}")
    if len(layer) == 2 and all(isinstance(one, list | tuple) for one in layer):
        return [(f"{name}[{at}]", one) for at, one in enumerate(layer)]
    if len(layer) in (4, 6):
        half = len(layer) // 2
        return [(f"{name}, forward", layer[:half]), (f"{name}, backward", layer[half:])]
    return [(name, layer)]


def _cell(where: str, values: Sequence[Any], mode: Mode) -> Cell:
    if len(values) not in (2, 3):
        raise ValueError(
            f"{where} must have kernel, recurrent kernel and, with use_bias, bias; got "
            f"{len(values)} arrays"
        )
    names = [f"{where}: {name}" for name in ("kernel", "recurrent_kernel", "bias")]
    kernel, recurrent, *rest = map(named, names, values)
    check_dims(names[0], kernel, "I, G*H")
    check_dims(names[1], recurrent, "H, G*H")
    gates = len(GATES[mode])
    hidden, columns = recurrent.shape
    if columns != gates * hidden:
        cause = of_other_mode(columns, hidden)
        if hidden == gates * columns:
            cause = "; it is transposed"
        raise ValueError(
            f"{names[1]} must have shape [H, {gates}*H] for {mode}; got {hidden, columns}{cause}"
        )
    inputs = kernel.shape[1 if kernel.shape[0] == columns else 0]  # if need be of a transposed one
    if kernel.shape[1] != columns:
        check_shape(names[0], kernel, (inputs, columns))
    order = order_of(ORDER[mode], mode)

    def gated(array: AnyArray) -> AnyArray:
        return reordered(array, order)

    if not rest:
        return Cell(gated(kernel.T), gated(recurrent.T))
    bias = rest[0]
    if mode != "gru":
        check_shape(names[2], bias, (columns,))
        return Cell(gated(kernel.T), gated(recurrent.T), gated(bias), zeros_like(bias))
    if tuple(bias.shape) == (columns,):
        raise ValueError(
            f"{names[2]} must have shape {(2, columns)}; got {(columns,)}: {_NO_RESET_AFTER}"
        )
    check_shape(names[2], bias, (2, columns))
    return Cell(gated(kernel.T), gated(recurrent.T), gated(bias[0]), gated(bias[1]))


def write(spec: RNNSpec, arrays: Sequence[AnyArray]) -> list[Any]:
    """What ``set_weights`` of the layer takes; of more than one, a list of such lists."""
    refuse_projection(spec, "Keras")
    order = order_from(ORDER[spec.mode], spec.mode)
    layers: list[list[AnyArray]] = []
    for layer in cells_of(spec, arrays):
        listed: list[AnyArray] = []
        for cell in layer:
            listed += [reordered(array, order).T for array in (cell.w_ih, cell.w_hh)]
            if cell.b_ih is not None and cell.b_hh is not None:
                if spec.mode == "gru":
                    pair = [reordered(bias, order) for bias in (cell.b_ih, cell.b_hh)]
                    listed.append(array_module(pair[0]).stack(pair))
                else:
                    listed.append(reordered(cell.b_ih + cell.b_hh, order))
        layers.append(listed)
    return layers[0] if spec.num_layers == 1 else layers
