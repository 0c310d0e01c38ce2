"""Keras's weights: kernel, recurrent kernel and bias of a layer, as get_weights() lists them.

A flat list of four or six arrays has no structure: it may be that of a Bidirectional layer or of
cells in a row. The shapes tell them apart unless I = H.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnnffi.device.arrays import array_module
from dnnffi.device.interface import AnyArray
from dnnffi.formats import keras_layers
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
from dnnffi.spec.likely_cause import layers_of_keras
from dnnffi.spec.names import Mode
from dnnffi.spec.rnn import GATES, RNNSpec

# One after the other along the last axis of each array: kernel [I, G*H], recurrent [H, G*H]. The
# cell's gate is c in Keras's papers.
ORDER = {"lstm": "ifgo", "gru": "zrn", "rnn_tanh": "h", "rnn_relu": "h"}

# Arrays of two cells one after the other, without and with biases.
_FLAT_LENGTHS = (4, 6)

Reading = list[list[keras_layers.NamedCell]]
"""One way to read the arrays: for each layer, the cells of its directions."""

_NO_RESET_AFTER = (
    "a GRU with reset_after=False is another function than cuDNN's, MIOpen's and PyTorch's: it "
    "resets the state before the product, and no weights make one of the other"
)


def read(
    weights: object, mode: object, reset_after: object = True, bidirectional: object = None
) -> Network:
    """Return the network of a layer or of what its ``get_weights`` gives, or of a list of such.

    ``bidirectional`` says whether it has two directions, or None to see it in the shapes.
    """
    wanted = None if bidirectional is None else check_flag("bidirectional", bidirectional)
    resets_after = check_flag("reset_after", reset_after)
    layers = [weights] if keras_layers.is_layer(weights) else weights
    if isinstance(layers, list | tuple) and layers and all(map(keras_layers.is_layer, layers)):
        found, cells = keras_layers.read_layers("weights", layers)
        if mode is not None and check_mode(mode) != found:
            raise ValueError(f"mode is {mode!r}; the layer is {found!r}")
        checked_mode, readings = found, [cells]
    else:
        readings = _readings(weights, wanted)
        if mode is None:
            raise ValueError('the arrays do not show the mode; pass mode="lstm", "gru", ...')
        checked_mode = check_mode(mode)
    if not resets_after and checked_mode == "gru":
        raise ValueError(f"reset_after must be True: {_NO_RESET_AFTER}")
    made = _the_one_that_fits(checked_mode, readings)
    if wanted is not None and made.spec.bidirectional != wanted:
        directions = "two directions" if made.spec.bidirectional else "one direction"
        raise ValueError(f"bidirectional is {wanted}; weights are those of {directions}")
    return made


def _readings(weights: object, bidirectional: bool | None) -> list[Reading]:
    """Return the ways to read lists of arrays, by the number of arrays alone."""
    if not isinstance(weights, list | tuple) or not weights:
        raise TypeError(
            f"weights must be a layer, the list of a layer's arrays, or a list of these; got "
            f"{described(weights)}"
        )
    layers: list[tuple[str, Any]] = [("weights", weights)]
    if isinstance(weights[0], list | tuple):
        layers = [(f"weights[{at}]", one) for at, one in enumerate(weights)]
    by_layer = [_directions(name, layer) for name, layer in layers]
    if bidirectional or not any(
        len(layer) in _FLAT_LENGTHS and len(directions) == 2
        for (_, layer), directions in zip(layers, by_layer, strict=True)
    ):
        return [by_layer]
    in_a_row = [
        [
            [(f"{name}, cell {at // count}", layer[at : at + count])]
            for name, layer in layers
            for at in range(0, len(layer), count)
        ]
        for count in (3, 2)
        if all(len(layer) % count == 0 for _, layer in layers)
    ]
    return in_a_row if bidirectional is False and in_a_row else [by_layer, *in_a_row]


def _the_one_that_fits(mode: Mode, readings: Sequence[Reading]) -> Network:
    """Return the network of the only reading whose shapes fit together.

    Raises the error of the first where none fits, and ``ValueError`` where several do.
    """
    fitting: list[Network] = []
    errors: list[Exception] = []
    for cells in readings:
        try:
            checked = [
                [read_cell(where, arrays, mode) for where, arrays in layer] for layer in cells
            ]
            fitting.append(network(mode, checked))
        except (TypeError, ValueError) as error:
            errors.append(error)
    if not fitting:
        raise _whole_model_error(mode, readings[0]) or errors[0]
    if len(fitting) > 1:
        shown = " or ".join(
            f"{one.spec.num_layers} layer(s) of {one.spec.num_directions} direction(s) "
            f"{'with' if one.spec.bias else 'without'} biases"
            for one in fitting
        )
        raise ValueError(
            f"weights: these arrays fit different networks, {shown}. Pass bidirectional=True for "
            f"a Bidirectional layer, a list with the list of each cell for cells in a row (or "
            f"bidirectional=False, where that leaves one), or the layer itself"
        )
    return fitting[0]


def _whole_model_error(mode: Mode, reading: Reading) -> ValueError | None:
    """Return an error that names the layers of a ``model.get_weights()``; else None."""
    if len(reading) != 1:
        return None
    values = [value for _, arrays in reading[0] for value in arrays]
    shapes = [tuple(getattr(value, "shape", ())) for value in values]
    layers = layers_of_keras(shapes, len(GATES[mode]))
    if not layers or len(shapes) <= 3:
        return None
    return ValueError(
        f"weights: these {len(shapes)} arrays look like model.get_weights(), which lists those of "
        f"all layers in one row. Pass those of a layer, {' or '.join(layers)}, or several in a list"
    )


def _directions(name: str, layer: Any) -> list[keras_layers.NamedCell]:
    """Return the arrays of each direction: of a pair, or of what ``Bidirectional`` lists."""
    if not isinstance(layer, list | tuple):
        raise TypeError(f"{name} must be a list of arrays; got {type(layer).__name__}")
    if len(layer) == 2 and all(isinstance(one, list | tuple) for one in layer):
        return [(f"{name}[{at}]", one) for at, one in enumerate(layer)]
    if len(layer) in _FLAT_LENGTHS:
        half = len(layer) // 2
        return [(f"{name}, forward", layer[:half]), (f"{name}, backward", layer[half:])]
    return [(name, layer)]


def read_cell(where: str, values: Sequence[Any], mode: Mode) -> Cell:
    """Return the cell of a layer, or of one of CuDNNLSTM's kind, from its arrays.

    Raises ``TypeError`` or ``ValueError`` naming the array at fault; ``where`` begins its name.
    """
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
    if is_cudnn_format(recurrent, bias) and mode in keras_layers.CUDNN_LAYERS.values():
        return _cudnn_cell(kernel, recurrent, bias, order)
    if mode != "gru":
        check_shape(names[2], bias, (columns,))
        return Cell(gated(kernel.T), gated(recurrent.T), gated(bias), zeros_like(bias))
    if tuple(bias.shape) == (columns,):
        raise ValueError(
            f"{names[2]} must have shape {(2, columns)}; got {(columns,)}: {_NO_RESET_AFTER}"
        )
    check_shape(names[2], bias, (2, columns))
    return Cell(gated(kernel.T), gated(recurrent.T), gated(bias[0]), gated(bias[1]))


def is_cudnn_format(recurrent: AnyArray, bias: AnyArray | None) -> bool:
    """Whether arrays are CuDNNLSTM's or CuDNNGRU's, which have two biases in one row, [2*G*H]."""
    return bias is not None and tuple(bias.shape) == (2 * recurrent.shape[-1],)


def _cudnn_cell(
    kernel: AnyArray, recurrent: AnyArray, bias: AnyArray, order: Sequence[int]
) -> Cell:
    """Return the cell of CuDNNLSTM or CuDNNGRU, whose arrays have the shapes of other layers.

    Their memory is cuDNN's: the block [I, H] of a gate is a matrix [H, I] row by row, and the block
    [H, H] of the recurrent kernel is not transposed. The input biases of all gates come first. As
    tf_keras converts them (``hdf5_format._convert_rnn_weights``).
    """
    inputs, columns = kernel.shape
    hidden = recurrent.shape[0]
    xp = array_module(kernel)
    blocks = [
        [block.reshape(hidden, inputs) for block in xp.split(kernel, len(order), axis=1)],
        xp.split(recurrent, len(order), axis=1),
    ]
    w_ih, w_hh = (xp.concatenate([some[at] for at in order]) for some in blocks)
    return Cell(w_ih, w_hh, reordered(bias[:columns], order), reordered(bias[columns:], order))


def write(spec: RNNSpec, arrays: Sequence[AnyArray]) -> list[Any]:
    """Return the list that ``set_weights`` of a layer takes; for several layers a list of these."""
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
