"""PyTorch's weights: the arrays of a module's state dictionary by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dnnffi.device.interface import AnyArray
from dnnffi.formats.network import (
    Cell,
    Network,
    check_dims,
    check_mode,
    check_shape,
    named,
    network,
    of_other_mode,
)
from dnnffi.spec.checks import clipped, listed
from dnnffi.spec.names import Mode
from dnnffi.spec.rnn import GATES, RNNSpec

# torch.nn.LSTM, GRU and RNN, in the order of the fields of `Cell`.
NAMES = {
    "w_ih": "weight_ih_l{}{}",
    "w_hh": "weight_hh_l{}{}",
    "b_ih": "bias_ih_l{}{}",
    "b_hh": "bias_hh_l{}{}",
    "w_hr": "weight_hr_l{}{}",
}
DIRECTIONS = ("", "_reverse")
_NAME = re.compile(r"(weight_ih|weight_hh|bias_ih|bias_hh|weight_hr)_l(0|[1-9]\d{0,3})(_reverse)?")


def name_of(name: str, layer: int, direction: int) -> str:
    """PyTorch's name of an array."""
    return NAMES[name].format(layer, DIRECTIONS[direction])


def read(state: object, mode: object, prefix: object = "") -> Network:
    """The network of a state dictionary: the names that begin with ``prefix``, in any order."""
    mode = check_mode(mode)
    if not isinstance(state, Mapping):
        advice = "; pass module.state_dict()" if hasattr(state, "state_dict") else ""
        raise TypeError(
            f"state_dict must be a mapping of names; got {type(state).__name__}{advice}"
        )
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str; got {type(prefix).__name__}")
    unnamed = [name for name in state if not isinstance(name, str)]
    if unnamed:
        raise TypeError(f"state_dict must have names that are str; got {listed(unnamed)}")
    values = {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }
    layers, expected = _expected(values)
    if not expected:
        raise ValueError(_none_found(state, prefix))
    missing = [prefix + name for name in expected if name not in values]
    unexpected = [prefix + name for name in values if name not in expected]
    if missing or unexpected:
        parts = [
            f"{what}: {listed(names)}"
            for what, names in (("missing", missing), ("unexpected", unexpected))
            if names
        ]
        raise ValueError(f"state_dict: {'; '.join(parts)}")
    shown_prefix = clipped(prefix)
    arrays = {name: named(shown_prefix + name, values[name]) for name in expected}
    directions = 1 + (name_of("w_ih", 0, 1) in expected)
    cells = [
        [
            Cell(*(arrays.get(name_of(name, layer, direction)) for name in Cell._fields))
            for direction in range(directions)
        ]
        for layer in range(layers)
    ]
    for layer, pair in enumerate(cells):
        for direction, cell in enumerate(pair):
            _check(cell, mode, [shown_prefix + name_of(name, layer, direction) for name in NAMES])
    return network(mode, cells)


def _expected(values: Mapping[str, Any]) -> tuple[int, list[str]]:
    """How many layers there are, and the names of such a network, in PyTorch's order."""
    found = [match for name in values if (match := _NAME.fullmatch(name))]
    kinds = {match[1] for match in found}
    layers = 1 + max((int(match[2]) for match in found), default=-1)
    names = ["w_ih", "w_hh"]
    if kinds & {"bias_ih", "bias_hh"}:
        names += ["b_ih", "b_hh"]
    if "weight_hr" in kinds:
        names.append("w_hr")
    directions = 1 + any(match[3] for match in found)
    return layers, [
        name_of(name, layer, direction)
        for layer in range(layers)
        for direction in range(directions)
        for name in names
    ]


def _none_found(state: Mapping[str, Any], prefix: str) -> str:
    """Why there is no network: the prefixes under which there are some, or the names that came."""
    first = name_of("w_ih", 0, 0)
    text = f"state_dict has no {clipped(prefix)}{first}"
    prefixes = [name.removesuffix(first) for name in state if name.endswith(first)]
    if prefixes:
        return f"{text}; there is one with prefix={listed(map(repr, prefixes), ' or prefix=')}"
    return f"{text}; its names are {listed(state) or 'none'}"


def _check(cell: Cell, mode: Mode, names: Sequence[str]) -> None:
    """``ValueError`` naming the array at fault unless those of a cell fit each other."""
    labels = dict(zip(Cell._fields, names, strict=True))
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
