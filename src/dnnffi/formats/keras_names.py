"""Keras's layers in files: found by the paths of their variables, checked by the model's config.

Keras 2 and the HDF5 files of Keras 3 name the variables of a cell: "lstm/lstm_cell/kernel:0".
The newer format numbers them: "layers/lstm/cell/vars/0". A Bidirectional layer has groups
"forward_..." and "backward_..." in both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dnnffi.device.interface import AnyArray
from dnnffi.formats import keras, keras_layers
from dnnffi.formats.network import check_mode, modes_with, named
from dnnffi.formats.outline import Description
from dnnffi.formats.prefixes import Layers
from dnnffi.spec.checks import clipped, listed
from dnnffi.spec.names import Mode

VARIABLES = ("kernel", "recurrent_kernel", "bias")

_NAMED = re.compile(r"(?P<group>(?:.*/)?)(?P<kind>kernel|recurrent_kernel|bias)(?::0)?")
_NUMBERED = re.compile(r"(?P<group>(?:.*/)?cell/(?:cells/[^/]+/)?vars/)(?P<index>[012])")
_LAYER = re.compile(r"(?:(?:layers|_layer_checkpoint_dependencies)/[^/]+/)+")
_OPTIMIZER_GROUP = "optimizer_weights/"  # moments of Adam, under the names of the variables
_DIRECTIONS = ("forward_", "backward_")

# Keras 2.3 changed the default recurrent_activation of LSTM and GRU from hard_sigmoid to sigmoid.
_FIRST_VERSION_WITH_SIGMOID = (2, 3)


class Variables(NamedTuple):
    """The names of a cell's variables, by `VARIABLES`, and the path of their group."""

    group: str
    names: dict[str, str]


def find(names: Iterable[str]) -> dict[str, list[Variables]]:
    """Return the recurrent layers, by prefix: for each, the cells of its directions."""
    groups: dict[str, dict[str, str]] = {}
    for name in names:
        if match := _NAMED.fullmatch(name):
            groups.setdefault(match["group"], {})[match["kind"]] = name
        elif match := _NUMBERED.fullmatch(name):
            groups.setdefault(match["group"], {})[VARIABLES[int(match["index"])]] = name
    cells = [
        Variables(group, found)
        for group, found in groups.items()
        if {"kernel", "recurrent_kernel"} <= set(found) and not group.startswith(_OPTIMIZER_GROUP)
    ]
    by_layer: dict[str, dict[str, list[Variables]]] = {}
    for cell in cells:
        layer, direction = _layer_and_direction(cell.group)
        by_layer.setdefault(layer, {}).setdefault(direction, []).append(cell)
    layers = {}
    for layer, directions in by_layer.items():
        if all(len(directions.get(one, ())) == 1 for one in _DIRECTIONS):
            layers[layer] = [directions[one][0] for one in _DIRECTIONS]
        else:
            layers |= {cell.group: [cell] for some in directions.values() for cell in some}
    return layers


def describe(config: object, version: object) -> Description:
    """Return what a model's config and Keras's version, as a text, say about layers."""
    layers: dict[str, Any] = {}
    for path, name, layer in _layers_of(config, ""):
        for key in (path, name):
            layers[key] = _AMBIGUOUS if key in layers else layer
    found = re.match(r"(\d+)\.(\d+)", version) if isinstance(version, str) else None
    return Description(layers, (int(found[1]), int(found[2])) if found else None)


def read_layers(
    arrays: Mapping[str, Any],
    cells: list[Variables],
    mode: object,
    description: Description | None,
) -> Layers:
    """Return the layer with these cells.

    ``description`` is None where the caller has named each array: settings are not looked at then.
    Raises ``ValueError`` naming a setting with which the layer is another function.
    """
    values = [
        {kind: named(clipped(name), arrays[name]) for kind, name in cell.names.items()}
        for cell in cells
    ]
    where = clipped(_layer_path(cells))
    config = None if description is None else _config(cells, description)
    recurrent = values[0]["recurrent_kernel"]
    wanted = None if mode is None else check_mode(mode)
    if config is None:
        found = _mode(where, recurrent) if wanted is None else wanted
        if description is not None:
            _check_unseen(where, found, values, description)
    else:
        found = _configured_mode(where, cells, config)
        if wanted not in (None, found):
            raise ValueError(f"mode is {wanted!r}; {where} is {found!r}")
    return Layers(
        found,
        [
            [
                keras.read_cell(
                    clipped(cell.group), [of[kind] for kind in VARIABLES if kind in of], found
                )
                for cell, of in zip(cells, values, strict=True)
            ]
        ],
    )


_AMBIGUOUS = object()
"""In place of a config: several layers have this name."""


def _layer_and_direction(group: str) -> tuple[str, str]:
    """Return the path of a cell's layer, and which of `_DIRECTIONS` it is, if any."""
    parts = group.split("/")
    for at, part in enumerate(parts):
        for direction in _DIRECTIONS:
            if part.startswith(direction):
                return "".join(f"{one}/" for one in parts[:at]), direction
    return group, ""


def _layer_path(cells: list[Variables]) -> str:
    return cells[0].group if len(cells) == 1 else _layer_and_direction(cells[0].group)[0]


def _layers_of(config: object, base: str) -> Iterator[tuple[str, str, Any]]:
    """Yield path, name and description of each layer of a model, those of models in it too."""
    inner = config.get("config") if isinstance(config, dict) else None
    # Keras 2.0 to 2.2 wrote a list for a Sequential model.
    layers = inner.get("layers") if isinstance(inner, dict) else inner
    if not isinstance(layers, list):
        return
    seen: Counter[str] = Counter()
    for layer in layers:
        if not isinstance(layer, dict) or not isinstance(layer.get("config"), dict | list):
            continue
        kind = _snake_case(str(layer.get("class_name")))
        path = f"{base}layers/{kind}{f'_{seen[kind]}' if seen[kind] else ''}/"
        seen[kind] += 1
        if isinstance(layer["config"], dict):
            yield path, str(layer["config"].get("name", layer.get("name"))), layer
        yield from _layers_of(layer, path)


def _snake_case(name: str) -> str:
    """Return a class's name as Keras writes it in paths: "simple_rnn"."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _config(cells: list[Variables], description: Description) -> Any:
    """Return the config of the layer with these cells; None if the file has none."""
    path = _layer_path(cells)
    if _NUMBERED.fullmatch(next(iter(cells[0].names.values()))):
        layer = _LAYER.match(path)
        keys = [layer[0].replace("_layer_checkpoint_dependencies/", "layers/")] if layer else []
    else:
        keys = path.split("/")[::-1]
    for key in keys:
        if key in description.layers:
            found = description.layers[key]
            if found is _AMBIGUOUS:
                raise ValueError(
                    f"{clipped(path)}: several layers of the model are called {clipped(key)!r}; "
                    f"pass names="
                )
            return found
    return None


def _configured_mode(where: str, cells: list[Variables], config: Any) -> Mode:
    """Return the mode that a layer's config says, and check its settings."""
    found = {
        keras_layers.check_config(where, one, is_backward)
        for one, is_backward in _directions(where, cells, config)
    }
    if len(found) > 1:
        raise ValueError(f"{where} must be of one mode; it is {listed(sorted(found))}")
    return found.pop()


def _directions(
    where: str, cells: list[Variables], config: Any
) -> list[tuple[Mapping[str, Any], bool]]:
    """Return the configs of a layer's directions, and whether it runs backwards."""
    is_bidirectional = config.get("class_name") == "Bidirectional"
    if is_bidirectional != (len(cells) == 2):
        raise ValueError(
            f"{where} must have one cell in each direction; the config says "
            f"{clipped(str(config.get('class_name')))}, and the file has {len(cells)} cells"
        )
    if not is_bidirectional:
        return [(config, False)]
    settings = config["config"]
    keras_layers.check_settings(where, settings)
    backward = settings.get("backward_layer")
    both = [(settings.get("layer"), False)]
    return both + ([(backward, True)] if backward is not None else [])


def _mode(where: str, recurrent: AnyArray) -> Mode:
    """Return the mode that the shape [H, G*H] shows."""
    shape = tuple(recurrent.shape)
    modes = modes_with(shape[1], shape[0]) if len(shape) == 2 else []
    if len(modes) != 1:
        raise ValueError(
            f"{where} has a recurrent kernel of shape {shape}, which does not show the mode; pass "
            f"mode={' or mode='.join(map(repr, modes or ('lstm', 'gru')))}"
        )
    return modes[0]


def _check_unseen(
    where: str, mode: Mode, values: list[dict[str, AnyArray]], description: Description
) -> None:
    """``ValueError`` for a layer whose settings are neither in the file nor the usual ones."""
    if mode not in ("lstm", "gru") or keras.is_cudnn_format(
        values[0]["recurrent_kernel"], values[0].get("bias")
    ):
        return
    advice = "name each array with names=, as {'...kernel:0': 'kernel'}"
    version = description.version
    if version is not None and version < _FIRST_VERSION_WITH_SIGMOID:
        raise ValueError(
            f"{where}: Keras {'.'.join(map(str, version))} used recurrent_activation="
            f"'hard_sigmoid' by default, and this file does not show the activation. If the layer "
            f"has 'sigmoid', {advice}"
        )
    if mode == "gru" and "bias" not in values[0]:
        raise ValueError(
            f"{where}: a GRU without biases does not show reset_after. If it is True, {advice}"
        )
