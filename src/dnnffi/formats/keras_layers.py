"""Layers of Keras, as objects or configs in files: checks of settings that weights do not show.

The arrays of a layer have neither its activations nor its direction. ``get_config()`` gives the
activations by name only, also those that a user wrote, so the functions themselves are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dnnffi.formats.network import function_name, is_defined_in, is_one_of
from dnnffi.spec.checks import brief, clipped
from dnnffi.spec.names import Mode

PACKAGES = ("keras", "tf_keras", "tensorflow")

# Classes that are taken. A subclass may compute anything.
LAYERS = ("LSTM", "GRU", "SimpleRNN", "RNN", "CuDNNLSTM", "CuDNNGRU")
CELLS: dict[str, tuple[Mode, ...]] = {
    "LSTMCell": ("lstm",),
    "GRUCell": ("gru",),
    "SimpleRNNCell": ("rnn_tanh", "rnn_relu"),
}
# Layers without a cell of their own, and without activations: they are cuDNN's.
CUDNN_LAYERS: dict[str, Mode] = {"CuDNNLSTM": "lstm", "CuDNNGRU": "gru"}

# Settings that a layer or cell must have, and why.
_REQUIRED = {
    "stateful": (False, "weights have no state: pass the arrays here, and the state to the call"),
    "reset_after": (True, "the GRU resets the state before the product, as no backend does"),
    "merge_mode": ("concat", "the output of dnnffi has both directions one after the other"),
}

# Settings that do not change the result in inference, or are seen in the arrays, the cells or the
# functions themselves.
_HARMLESS = {
    *("name", "trainable", "dtype", "seed", "unroll", "implementation", "batch_input_shape"),
    *("units", "use_bias", "unit_forget_bias", "dropout", "recurrent_dropout"),
    *("activation", "recurrent_activation", "go_backwards", "return_sequences", "return_state"),
    *("zero_output_for_mask", "time_major", "reverse_state_order"),
    *("cell", "cells", "layer", "backward_layer"),
}
_HARMLESS_ENDINGS = ("_initializer", "_regularizer", "_constraint")

NamedCell = tuple[str, Sequence[Any]]
"""The name of a cell in messages, and its arrays."""


def is_layer(value: object) -> bool:
    """Whether ``value`` is a layer rather than arrays."""
    return hasattr(value, "get_weights") and hasattr(value, "get_config")


def read_layers(name: str, layers: Sequence[Any]) -> tuple[Mode, list[list[NamedCell]]]:
    """Return the mode of layers, and for each layer the cells of its directions.

    Raises ``ValueError`` naming the layer and the setting that dnnffi does not compute.
    """
    found: list[tuple[Mode, str]] = []
    cells: list[list[NamedCell]] = []
    for at, layer in enumerate(layers):
        where = f"{name}[{at}]" if len(layers) > 1 else name
        is_last = at == len(layers) - 1
        if is_one_of(layer, ("Bidirectional",), PACKAGES):
            check_settings(where, layer.get_config())
            forward = _cells(f"{where}.forward_layer", layer.forward_layer, False, is_last)
            backward = _cells(f"{where}.backward_layer", layer.backward_layer, True, is_last)
            if not len(forward) == len(backward) == 1:
                raise ValueError(
                    f"{where} must have one cell in each direction: with more, the second cell of "
                    f"a direction reads that direction only; got {len(forward)} and {len(backward)}"
                )
            layer_cells = [[forward[0], backward[0]]]
        else:
            layer_cells = [[cell] for cell in _cells(where, layer, False, is_last)]
        for directions in layer_cells:
            found += [(_mode(cell_name, cell), cell_name) for cell_name, cell in directions]
            cells.append([(cell_name, _arrays(cell_name, cell)) for cell_name, cell in directions])
    mode = found[0][0]
    for other, cell_name in found:
        if other != mode:
            raise ValueError(f"layers must be of one mode, {mode!r}; {cell_name} is {other!r}")
    return mode, cells


def _cells(where: str, layer: Any, go_backwards: bool, is_last: bool) -> list[tuple[str, Any]]:
    """Return the cells of a layer of one direction, in the order in which they run."""
    if not is_one_of(layer, LAYERS, PACKAGES):
        hint = ""
        if hasattr(layer, "layers"):
            hint = "; pass model.layers[0], or a list of its recurrent layers"
        elif not is_defined_in(type(layer), PACKAGES):
            hint = (
                ", which may compute something else: if its weights are right all the same, pass "
                "layer.get_weights()"
            )
        raise ValueError(
            f"{where} must be a layer of Keras, {', '.join(LAYERS)} or Bidirectional; got "
            f"{_class_name(layer)}{hint}"
        )
    check_settings(where, layer.get_config())
    if bool(layer.go_backwards) != go_backwards:
        raise ValueError(
            f"{where} must have go_backwards={go_backwards}; got {brief(layer.go_backwards)}. "
            f"Where the input is reversed for the call, pass layer.get_weights()"
        )
    if not (is_last or layer.return_sequences):
        raise ValueError(f"{where} must have return_sequences=True for the next layer to read")
    if is_one_of(layer, tuple(CUDNN_LAYERS), PACKAGES):
        return [(where, layer)]
    if not is_one_of(layer.cell, ("StackedRNNCells",), PACKAGES):
        return [(where, layer.cell)]
    check_settings(where, layer.cell.get_config())
    return [(f"{where}.cell.cells[{at}]", cell) for at, cell in enumerate(layer.cell.cells)]


def _mode(where: str, cell: Any) -> Mode:
    """Return the mode of a cell; ``ValueError`` for another class, setting or activation."""
    if is_one_of(cell, tuple(CUDNN_LAYERS), PACKAGES):
        return CUDNN_LAYERS[type(cell).__name__]
    if not is_one_of(cell, tuple(CELLS), PACKAGES):
        raise ValueError(f"{where} must have cells of {', '.join(CELLS)}; got {_class_name(cell)}")
    check_settings(where, cell.get_config())
    packages = (*PACKAGES, "jax")
    return _mode_with(
        where,
        type(cell).__name__,
        function_name(cell.activation, packages),
        function_name(getattr(cell, "recurrent_activation", None), packages),
    )


def _mode_with(where: str, cell_class: str, activation: object, recurrent: object) -> Mode:
    """Return the mode of a cell. Raises ``ValueError`` for activations that dnnffi lacks."""
    modes = CELLS[cell_class]
    expected = ("tanh", "relu")[: len(modes)]
    if activation not in expected:
        raise ValueError(
            f"{where}: activation must be {' or '.join(expected)}; got {_shown(activation)}"
        )
    if modes[0] in ("lstm", "gru") and recurrent != "sigmoid":
        raise ValueError(f"{where}: recurrent_activation must be sigmoid; got {_shown(recurrent)}")
    return modes[expected.index(str(activation))]


def check_config(where: str, layer: Any, is_backward: bool) -> Mode:
    """Return the mode of a layer of one direction, by what Keras writes about it into a file.

    ``layer`` has the name of its class and its config, as ``keras.saving`` serializes them. Raises
    ``ValueError`` naming what dnnffi does not compute.
    """
    kind, settings = _described(where, layer)
    if kind not in LAYERS:
        raise ValueError(
            f"{where} must be a layer of Keras, {', '.join(LAYERS)} or Bidirectional; got "
            f"{clipped(kind)}, which may compute something else: if its weights are right all the "
            f"same, name each array with names="
        )
    check_settings(where, settings)
    goes_backwards = settings.get("go_backwards", False)
    if bool(goes_backwards) != is_backward:
        raise ValueError(
            f"{where} must have go_backwards={is_backward}; got {brief(goes_backwards)}. "
            f"Where the input is reversed for the call, name each array with names="
        )
    if kind in CUDNN_LAYERS:
        return CUDNN_LAYERS[kind]
    if kind != "RNN":
        return _mode_with_settings(where, f"{kind}Cell", settings)
    cell_kind, cell_settings = _described(where, settings.get("cell"))
    cells = [(cell_kind, cell_settings)]
    if cell_kind == "StackedRNNCells":
        cells = [_described(where, one) for one in cell_settings.get("cells", ())]
    modes: set[Mode] = set()
    for one_kind, one in cells:
        if one_kind not in CELLS:
            raise ValueError(
                f"{where} must have cells of {', '.join(CELLS)}; got {brief(one_kind)}"
            )
        check_settings(where, one)
        modes.add(_mode_with_settings(where, one_kind, one))
    if len(modes) != 1:
        raise ValueError(f"{where} must have cells of one mode; got {brief(sorted(modes))}")
    return modes.pop()


def _mode_with_settings(where: str, cell_class: str, settings: Mapping[str, Any]) -> Mode:
    return _mode_with(
        where, cell_class, settings.get("activation"), settings.get("recurrent_activation")
    )


def _described(where: str, layer: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a class, after its module if it is not Keras's, and its config."""
    settings = layer.get("config") if isinstance(layer, Mapping) else None
    if not isinstance(settings, Mapping):
        raise ValueError(f"{where}: the file must describe a layer; got {brief(layer)}")
    kind, module = str(layer.get("class_name")), layer.get("module")
    is_known = module is None or str(module).partition(".")[0] in PACKAGES
    return (kind if is_known else f"{module}.{kind}"), settings


def _shown(activation: object) -> str:
    return activation if isinstance(activation, str) else brief(activation)


def check_settings(where: str, settings: Mapping[str, Any]) -> None:
    """``ValueError`` naming a setting with which a layer is another function of its weights."""
    for key, value in settings.items():
        if key in _REQUIRED:
            expected, reason = _REQUIRED[key]
            if value != expected:
                raise ValueError(
                    f"{where} must have {key}={expected!r}; got {brief(value)}: {reason}"
                )
        elif key not in _HARMLESS and not key.endswith(_HARMLESS_ENDINGS):
            raise ValueError(
                f"{where} has the setting {clipped(key)}, which dnnffi does not know; if it does "
                f"not change the result, pass layer.get_weights()"
            )


def _arrays(where: str, cell: Any) -> Sequence[Any]:
    arrays: Sequence[Any] = cell.get_weights()
    if not arrays:
        raise ValueError(f"{where}: the layer has no weights yet; call it or its build() first")
    return arrays


def _class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__name__}"
