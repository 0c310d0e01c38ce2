"""Parts that all formats share: arrays by name, the order of gates, and the network they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dnnffi.device.arrays import (
    array_module,
    as_array,
    cannot_be_seen,
    device_of,
    is_external,
    to_host,
)
from dnnffi.device.interface import AnyArray
from dnnffi.spec.checks import ITEM_SIZES, brief, check_choice, clipped, listed
from dnnffi.spec.names import Mode
from dnnffi.spec.rnn import GATES, RNNSpec
from dnnffi.spec.weights import DEFAULT_LAYOUT


class Network(NamedTuple):
    """A network in PyTorch's order: what `RNNWeights.pack` takes."""

    spec: RNNSpec
    arrays: list[AnyArray]

    def layout(self, backend: object) -> Any:
        """Return the name of the layout for ``backend``; None stands for the default layout."""
        if backend is None:
            return DEFAULT_LAYOUT
        return "torch" if isinstance(backend, str) and backend == "reference" else backend


class Cell(NamedTuple):
    """One layer and direction: arrays in PyTorch's shapes and order of gates."""

    w_ih: AnyArray
    w_hh: AnyArray
    b_ih: AnyArray | None = None
    b_hh: AnyArray | None = None
    w_hr: AnyArray | None = None


def check_mode(mode: object, known: Sequence[Mode] = tuple(GATES)) -> Mode:
    """``mode``, one of the ``known``; errors as those of `check_choice`."""
    return check_choice("mode", mode, known)


def named(name: str, value: object) -> AnyArray:
    """``value`` as an array of a dtype that networks have; ``TypeError`` naming it otherwise."""
    array = computable(name, value)
    if array.dtype.name not in ITEM_SIZES:
        raise TypeError(
            f"{name} must have one of the dtypes {', '.join(ITEM_SIZES)}; got "
            f"{clipped(str(array.dtype))}"
        )
    return array


def computable(name: str, value: object) -> AnyArray:
    """``value`` as an array of any dtype; ``TypeError`` naming it if it is no array.

    Without CuPy an array on a device is copied to the host, where it can be computed with.
    """
    try:
        array = as_array(name, value)
    except (BufferError, RuntimeError) as error:
        raise cannot_be_seen(name, error) from error
    return to_host(array) if is_external(array.__class__) else array


def is_defined_in(value: object, packages: Sequence[str]) -> bool:
    """Whether a function or class comes from one of these packages, by its ``__module__``."""
    return str(getattr(value, "__module__", "")).partition(".")[0] in packages


def is_one_of(value: object, classes: Sequence[str], packages: Sequence[str]) -> bool:
    """Whether the class of ``value`` itself, not only a base of it, is one of these, by name."""
    return type(value).__name__ in classes and is_defined_in(type(value), packages)


def function_name(function: object, packages: Sequence[str]) -> str:
    """Return the name of a function, after its module if that is not of these packages.

    A function of the user that is called "tanh" may be another function than tanh.
    """
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        return brief(function)
    if is_defined_in(function, packages):
        return name
    return clipped(f"{getattr(function, '__module__', None)}.{name}")


def check_shape(name: str, array: AnyArray, shape: tuple[int, ...]) -> None:
    """``ValueError`` naming the array unless it has ``shape``; says so where it is transposed."""
    found = tuple(array.shape)
    if found != shape:
        transposed = "; it is transposed" if len(shape) == 2 and found == shape[::-1] else ""
        raise ValueError(f"{name} must have shape {shape}; got {brief(found)}{transposed}")


def check_dims(name: str, array: AnyArray, dims: str) -> None:
    """``ValueError`` naming the array unless it has the dimensions ``dims``, none of them 0."""
    shape = tuple(array.shape)
    if len(shape) != dims.count(",") + 1 or 0 in shape:
        raise ValueError(f"{name} must have shape [{dims}]; got {brief(shape)}")


def modes_with(rows: int, hidden: int) -> list[Mode]:
    """Return the modes whose gates have ``rows`` rows with this hidden size."""
    return [mode for mode, gates in GATES.items() if rows == len(gates) * hidden]


def of_other_mode(rows: int, hidden: int) -> str:
    """Return words for an error: the modes that have arrays of ``rows``; empty if none has."""
    modes = modes_with(rows, hidden)
    return f"; it is that of mode {' or '.join(map(repr, modes))}" if modes else ""


def mode_of(name: str, array: AnyArray, rows: int, hidden: int, mode: object) -> Mode:
    """Return the mode of a format that does not name it, by an array's ``rows`` a hidden unit.

    ``mode`` is what the caller says, or None; it tells "rnn_relu" from "rnn_tanh".
    """
    modes = modes_with(rows, hidden)
    if not modes:
        raise ValueError(
            f"{name}: {rows} is not 4 (LSTM), 3 (GRU) or 1 (RNN) times the hidden size {hidden}; "
            f"got shape {tuple(array.shape)}"
        )
    if mode is None:
        return modes[0]
    asked = check_mode(mode)
    if asked not in modes:
        raise ValueError(f"mode is {mode!r}; {name} is that of {' or '.join(modes)}")
    return asked


def reordered(array: AnyArray, order: Sequence[int], axis: int = 0) -> AnyArray:
    """Return the blocks of ``array`` along an axis, one for each gate, in another order."""
    if list(order) == sorted(order):
        return array
    xp = array_module(array)
    blocks = xp.split(array, len(order), axis=axis)
    return xp.concatenate([blocks[index] for index in order], axis=axis)


def order_of(gates: str, mode: Mode) -> list[int]:
    """Return the places of PyTorch's gates in a format that has ``gates`` in this order."""
    return [gates.index(gate) for gate in GATES[mode]]


def order_from(gates: str, mode: Mode) -> list[int]:
    """Return the place in PyTorch's order of each gate of the format."""
    return [GATES[mode].index(gate) for gate in gates]


def zeros_like(array: AnyArray) -> AnyArray:
    """Zeros of the same shape, dtype and device."""
    return array_module(array).zeros_like(array)


def network(mode: Mode, cells: Sequence[Sequence[Cell]]) -> Network:
    """Return the network of ``cells``: for each layer, one for each direction.

    Raises ``ValueError`` or ``TypeError`` where they do not fit together, naming layer and
    direction. A cell's own arrays have been checked against each other.
    """
    directions = len(cells[0])
    if directions not in (1, 2) or any(len(layer) != directions for layer in cells):
        counts = listed(len(layer) for layer in cells)
        raise ValueError(f"every layer must have one direction, or each two; got {counts}")
    first = cells[0][0]
    arrays: list[AnyArray] = []
    biased = first.b_ih is not None
    for at, layer in enumerate(cells):
        for direction, cell in enumerate(layer):
            where = f"layer {at}, direction {direction}"
            if (cell.b_ih is not None) != biased:
                raise ValueError(f"{where}: either all have biases or none")
            for name, array in zip(Cell._fields, cell, strict=True):
                if array is None:
                    continue
                if array.dtype != first.w_ih.dtype:
                    raise TypeError(
                        f"{where}: {name} must have the dtype of the first array, "
                        f"{first.w_ih.dtype}; got {array.dtype}"
                    )
                if device_of(array) != device_of(first.w_ih):
                    raise ValueError(
                        f"{where}: {name} must be where the first array is, "
                        f"{device_of(first.w_ih)}; it is on {device_of(array)}"
                    )
                arrays.append(array)
    spec = RNNSpec(
        mode=mode,
        input_size=first.w_ih.shape[1],
        hidden_size=first.w_ih.shape[0] // len(GATES[mode]),
        num_layers=len(cells),
        bidirectional=directions == 2,
        bias=biased,
        proj_size=0 if first.w_hr is None else first.w_hr.shape[0],
        dtype=first.w_ih.dtype.name,
    )
    for parameter, array in zip(spec.parameter_shapes(), arrays, strict=True):
        at, direction, name, shape = parameter
        if tuple(array.shape) != shape:
            raise ValueError(
                f"layer {at}, direction {direction}: {name} must have shape {shape} in PyTorch's "
                f"order to fit the layer before and the other direction; got {tuple(array.shape)}"
            )
    return Network(spec, arrays)


def cells_of(spec: RNNSpec, arrays: Sequence[AnyArray]) -> list[list[Cell]]:
    """Return cells from ``arrays`` in PyTorch's order, by layer and direction."""
    cells: list[list[Cell]] = [[] for _ in range(spec.num_layers)]
    each = spec.arrays_per_direction
    for index in range(0, len(arrays), each):
        part = [named("weights", array) for array in arrays[index : index + each]]
        projection = part.pop() if spec.proj_size else None
        w_ih, w_hh, b_ih, b_hh = part if spec.bias else (*part, None, None)
        cells[index // each // spec.num_directions].append(Cell(w_ih, w_hh, b_ih, b_hh, projection))
    return cells


def refuse_projection(spec: RNNSpec, format_name: str) -> None:
    """``ValueError`` for a projection where the format has none."""
    if spec.proj_size:
        raise ValueError(
            f"{format_name} has no LSTM with a projection; proj_size is {spec.proj_size}"
        )


READS_FILES = ": RNNWeights.load(path) reads files"
"""The end of an error message about a path in place of arrays."""


def described(value: object) -> str:
    """Describe a wrong argument: its type, or that it is empty or a path."""
    if isinstance(value, str | os.PathLike):
        return f"a path{READS_FILES}"
    empty = isinstance(value, list | tuple) and not value
    return f"{'an empty ' if empty else ''}{type(value).__name__}"


def layers_of(
    name: str, value: object, is_cell: Callable[[Any], bool]
) -> list[list[tuple[str, Any]]]:
    """Return a caller's argument as a list of layers of one or two named cells.

    It is a cell, or a list of layers; a layer is a cell, or a list of two, one for each direction.
    """
    if is_cell(value):
        return [[(name, value)]]
    if not isinstance(value, list | tuple) or not value:
        raise TypeError(
            f"{name} must be one layer, or a list of layers or of pairs of directions; got "
            f"{described(value)}"
        )
    layers = []
    for index, layer in enumerate(value):
        where = f"{name}[{index}]"
        if is_cell(layer):
            layers.append([(where, layer)])
        elif isinstance(layer, list | tuple) and len(layer) == 2 and all(map(is_cell, layer)):
            layers.append([(f"{where}[{d}]", one) for d, one in enumerate(layer)])
        else:
            raise TypeError(
                f"{where} must be the arrays of a layer, or a pair of them, one for each "
                f"direction; got {type(layer).__name__}"
            )
    return layers
