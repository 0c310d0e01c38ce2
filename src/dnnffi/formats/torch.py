"""PyTorch's weights: the arrays of a module's state dictionary by their names."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from dnnffi.device.interface import AnyArray
from dnnffi.formats.network import (
    READS_FILES,
    Cell,
    Network,
    check_dims,
    check_mode,
    check_shape,
    modes_with,
    named,
    of_other_mode,
)
from dnnffi.formats.prefixes import Layers, rename_arrays, select_prefixes, stack_layers
from dnnffi.spec.checks import brief, clipped, listed
from dnnffi.spec.names import Mode
from dnnffi.spec.rnn import GATES, RNNSpec

# torch.nn.LSTM, GRU and RNN, in the order of the fields of `Cell`. LSTMCell, GRUCell and RNNCell
# have the first four without layer and direction.
_KINDS = {
    "w_ih": "weight_ih",
    "w_hh": "weight_hh",
    "b_ih": "bias_ih",
    "b_hh": "bias_hh",
    "w_hr": "weight_hr",
}
DIRECTIONS = ("", "_reverse")
_NAME = re.compile(r"(weight_ih|weight_hh|bias_ih|bias_hh|weight_hr)_l(0|[1-9]\d{0,3})(_reverse)?")
_CELL_NAME = re.compile("weight_ih|weight_hh|bias_ih|bias_hh")


def name_of(name: str, layer: int, direction: int) -> str:
    """PyTorch's name of an array."""
    return f"{_KINDS[name]}_l{layer}{DIRECTIONS[direction]}"


def read(
    state: object, mode: object = None, prefix: object = None, names: object = None
) -> Network:
    """Return the network of a state dictionary, as `RNNWeights.from_torch` describes."""
    if not isinstance(state, Mapping):
        advice = ""
        if hasattr(state, "state_dict"):
            advice = "; pass module.state_dict()"
        elif isinstance(state, str | os.PathLike):
            advice = READS_FILES
        elif isinstance(state, list | tuple):
            advice = "; RNNWeights.pack takes a list in PyTorch's order, from_keras one of Keras's"
        raise TypeError(
            f"state_dict must be a mapping of names; got {type(state).__name__}{advice}"
        )
    unnamed = [name for name in state if not isinstance(name, str)]
    if unnamed:
        raise TypeError(f"state_dict must have names that are str; got {listed(unnamed)}")
    where = "state_dict: "
    arrays = rename_arrays(where, state, prefix, names)
    prefixes = select_prefixes(where, arrays, find(arrays), prefix)
    return stack_layers([read_layers(where, arrays, one, mode) for one in prefixes])


def find(names: Iterable[str]) -> list[str]:
    """Return the prefixes under which there are networks or cells."""
    return list(
        dict.fromkeys(
            name.removesuffix(first)
            for name in names
            for first in ("weight_ih_l0", "weight_ih")
            if name.endswith(first)
        )
    )


def read_layers(where: str, arrays: Mapping[str, Any], prefix: str, mode: object) -> Layers:
    """Return the layers of the network under ``prefix``; ``where`` begins messages about names.

    Names with a dot or slash after the prefix belong to submodules and are not looked at.
    """
    # Dictionaries, not lists: a file may have thousands of layers and of other names.
    names = dict.fromkeys(
        name.removeprefix(prefix)
        for name in arrays
        if name.startswith(prefix) and not set("./") & set(name.removeprefix(prefix))
    )
    by_cell = _expected(names)
    expected = dict.fromkeys(name for layer in by_cell for cell in layer for name in cell.values())
    missing = [prefix + name for name in expected if name not in names]
    unexpected = [prefix + name for name in names if name not in expected]
    if missing or unexpected:
        parts = [
            f"{what}: {listed(some)}"
            for what, some in (("missing", missing), ("unexpected", unexpected))
            if some
        ]
        raise ValueError(f"{where}{'; '.join(parts)}")
    shown = clipped(prefix)
    cells = [
        [
            Cell(**{field: named(shown + name, arrays[prefix + name]) for field, name in c.items()})
            for c in layer
        ]
        for layer in by_cell
    ]
    first = by_cell[0][0]
    checked = _mode(shown + first["w_ih"], cells[0][0]) if mode is None else check_mode(mode)
    for layer, layer_cells in zip(by_cell, cells, strict=True):
        for fields, cell in zip(layer, layer_cells, strict=True):
            _check(cell, checked, {field: shown + name for field, name in fields.items()})
    return Layers(checked, cells)


def _expected(names: Collection[str]) -> list[list[dict[str, str]]]:
    """Return the names that a network has which has some of ``names``.

    For each layer and direction, the names by the fields of `Cell`.
    """
    found = [match for name in names if (match := _NAME.fullmatch(name))]
    is_cell = not found
    kinds = {match[1] for match in found} or {name for name in names if _CELL_NAME.fullmatch(name)}
    fields = ["w_ih", "w_hh"]
    if kinds & {"bias_ih", "bias_hh"}:
        fields += ["b_ih", "b_hh"]
    if is_cell:
        return [[{field: _KINDS[field] for field in fields}]]
    if "weight_hr" in kinds:
        fields.append("w_hr")
    num_layers = 1 + max(int(match[2]) for match in found)
    num_directions = 1 + any(match[3] for match in found)
    return [
        [
            {field: name_of(field, layer, direction) for field in fields}
            for direction in range(num_directions)
        ]
        for layer in range(num_layers)
    ]


def _mode(name: str, cell: Cell) -> Mode:
    """Return the mode that the shapes of a cell show; ``ValueError`` if they do not."""
    check_dims(name, cell.w_ih, "G*H, I")
    hidden = (cell.w_hh if cell.w_hr is None else cell.w_hr).shape[-1:]
    rows = cell.w_ih.shape[0]
    modes = modes_with(rows, hidden[0]) if hidden else []
    if len(modes) != 1:
        raise ValueError(
            f"{name} has shape {tuple(cell.w_ih.shape)}, and shapes do not show the mode of a "
            f"network with {rows} rows of gates and H {brief(hidden[0] if hidden else None)}: pass "
            f"mode={' or mode='.join(map(repr, modes or GATES))}"
        )
    return modes[0]


def _check(cell: Cell, mode: Mode, labels: Mapping[str, str]) -> None:
    """``ValueError`` naming the array at fault unless those of a cell fit each other."""
    check_dims(labels["w_ih"], cell.w_ih, "G*H, I")
    check_dims(labels["w_hh"], cell.w_hh, "G*H, O")
    if cell.w_hr is not None:
        check_dims(labels["w_hr"], cell.w_hr, "P, H")
    rows = cell.w_ih.shape[0]
    hidden = (cell.w_hh if cell.w_hr is None else cell.w_hr).shape[1]
    gates = len(GATES[mode])
    if rows != gates * hidden:
        if cell.w_hr is None and gates * cell.w_hh.shape[0] == rows == hidden:
            check_shape(labels["w_hh"], cell.w_hh, (rows, rows // gates))
        is_transposed = cell.w_ih.shape[1] == gates * hidden
        cause = "; it is transposed" if is_transposed else of_other_mode(rows, hidden)
        raise ValueError(
            f"{labels['w_ih']} must have {gates} times {hidden} rows (gates of {mode} times H); "
            f"got shape {tuple(cell.w_ih.shape)}{cause}"
        )
    output = hidden if cell.w_hr is None else cell.w_hr.shape[0]
    check_shape(labels["w_hh"], cell.w_hh, (rows, output))
    for name in ("b_ih", "b_hh"):
        if getattr(cell, name) is not None:
            check_shape(labels[name], getattr(cell, name), (rows,))


def write(spec: RNNSpec, arrays: Sequence[AnyArray], prefix: str = "") -> dict[str, AnyArray]:
    """``arrays`` in PyTorch's order by their names."""
    return {
        prefix + name_of(parameter.name, parameter.layer, parameter.direction): array
        for parameter, array in zip(spec.parameter_shapes(), arrays, strict=True)
    }
