"""Offsets of every gate's matrix and bias in a flat weight buffer.

cuDNN's order was read from the library itself (``cudnnGetRNNWeightParams``, 9.19, on a GPU): for
each layer and direction the input matrices gate by gate, the recurrent matrices gate by gate, then
the projection; after the matrices of all layers, in the same order, the input biases and the
recurrent biases gate by gate. Nothing is padded, and the algorithm does not change it.

So was MIOpen's (``miopenGetRNNLayerParamOffset``, 3.4, on an emulated device): for each layer the
input matrices of one direction after the other, then the recurrent matrices of one direction after
the other; after the matrices of all layers the biases in the same order. Its gates come in another
order than PyTorch's, i f o g and z r n. It has no projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from dnnffi.errors import UnsupportedError
from dnnffi.spec.checks import check_bytes, check_choice
from dnnffi.spec.names import LayoutName
from dnnffi.spec.rnn import RNNSpec

DEFAULT_LAYOUT: LayoutName = "cudnn"
"""Layout of every flat buffer that is made without naming one, whichever arrays it is made of."""


class Parameter(NamedTuple):
    """One gate's part of one weight array, or a whole projection.

    ``name`` is w_ih, w_hh, b_ih, b_hh or w_hr; ``gate`` one of i f g o, r z n, h, and None for
    w_hr. ``offset`` counts elements from the start of the flat buffer. ``shape`` is [H, I or O*D],
    [H, O], [H] or [P, H].
    """

    layer: int
    direction: int
    name: str
    gate: str | None
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)


class Block(NamedTuple):
    """One whole weight array in PyTorch's order, contiguous in the buffer: offset and shape."""

    offset: int
    shape: tuple[int, ...]


class Move(NamedTuple):
    """A run of elements that two layouts both keep together: its two offsets and its size."""

    source: int
    target: int
    size: int


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """A flat weight buffer: ``size`` in elements and the ``parameters`` in buffer order."""

    spec: RNNSpec
    name: LayoutName
    size: int
    parameters: tuple[Parameter, ...]

    def blocks(self) -> tuple[Block, ...]:
        """Offset and shape of each weight array, in PyTorch's order.

        Raises ``ValueError`` where a layout does not keep the gates of an array together and in
        PyTorch's order.

        Examples
        --------
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> dnnffi.weight_layout(spec, "cudnn").blocks()[1]  # w_hh
        Block(offset=36, shape=(12, 4))
        """
        found = _blocks(self)
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def find_blocks(self) -> tuple[Block, ...] | None:
        """Return the same, but None where the arrays cannot be views of the buffer.

        Examples
        --------
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> dnnffi.weight_layout(spec, "miopen").find_blocks() is None  # another order of gates
        True
        """
        found = _blocks(self)
        return None if isinstance(found, str) else found

    def moves_to(self, other: WeightLayout) -> tuple[Move, ...]:
        """Return the fewest copies from a buffer of this layout to the ``other`` of its spec.

        Examples
        --------
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, bias=False)
        >>> miopen = dnnffi.weight_layout(spec, "miopen")
        >>> dnnffi.weight_layout(spec, "torch").moves_to(miopen)[0]
        Move(source=0, target=12, size=12)
        """
        if other.spec != self.spec:
            raise ValueError(f"the other layout is of {other.spec}; this one of {self.spec}")
        return _moves(self, other)


def weight_layout(spec: RNNSpec, backend: LayoutName) -> WeightLayout:
    """Return the layout of the flat weight buffer of ``spec``, computed without any library.

    ``backend`` is "cudnn" (the buffer that ``cudnnRNNForward`` reads), "miopen" (the one that
    ``miopenRNNForward`` reads) or "torch" (the arrays of ``torch.nn`` in their order, one after the
    other). Raises ``ValueError`` for another name and for more bytes than 64 bits count,
    `UnsupportedError` for a projection in MIOpen's.

    Examples
    --------
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
    >>> layout = dnnffi.weight_layout(spec, "miopen")
    >>> layout.size
    108
    >>> [(p.name, p.gate, p.offset) for p in layout.parameters[:4]]
    [('w_ih', 'z', 0), ('w_ih', 'r', 12), ('w_ih', 'n', 24), ('w_hh', 'z', 36)]
    """
    if not isinstance(spec, RNNSpec):
        raise TypeError(f"spec must be an RNNSpec; got {type(spec).__name__}")
    backend = check_choice("backend", backend, _ORDERS)
    if backend == "miopen" and spec.proj_size:
        raise UnsupportedError(
            "MIOpen",
            "",
            f"it has no projection (proj_size {spec.proj_size}); the backends 'cudnn' and "
            f"'reference' have",
        )
    return _layout(spec, backend)


def layout_of_flat(spec: RNNSpec, layout: object) -> LayoutName:
    """Return the layout of a flat array of weights that came without an `RNNWeights`.

    ``layout`` is its name. None is accepted only if cuDNN's layout and PyTorch's order put every
    parameter of ``spec`` in the same place. MIOpen's layout always has to be named. Raises
    ``ValueError`` otherwise, ``TypeError`` for an array, list or dict as ``layout``.
    """
    if layout is not None:
        return weight_layout(spec, check_choice("layout", layout, _ORDERS)).name
    default, torch = weight_layout(spec, DEFAULT_LAYOUT), weight_layout(spec, "torch")
    if default.parameters != torch.parameters:
        raise ValueError(
            f"weights: got a flat array without its layout, and the order of its elements depends "
            f"on the layout for {spec}. Pass an RNNWeights, or name the layout: layout='cudnn' "
            f"(what RNNWeights has by default), 'torch' or 'miopen'"
        )
    return DEFAULT_LAYOUT


@lru_cache(maxsize=256)
def _layout(spec: RNNSpec, name: LayoutName) -> WeightLayout:
    parameters = []
    offset = 0
    for layer, direction, array, gate, shape in _ORDERS[name](spec):
        parameters.append(Parameter(layer, direction, array, gate, offset, shape))
        offset += prod(shape)
    check_bytes("weights", (offset,), spec.dtype)
    return WeightLayout(spec, name, offset, tuple(parameters))


@lru_cache(maxsize=256)
def _blocks(layout: WeightLayout) -> tuple[Block, ...] | str:
    # What is wrong comes as text, so that it is found out once too.
    first: dict[tuple[int, int, str], Parameter] = {}
    following: dict[tuple[int, int, str], int] = {}
    for gate in (*layout.spec.gates, None):
        for parameter in layout.parameters:
            if parameter.gate != gate:
                continue
            array = parameter[:3]
            is_first = first.setdefault(array, parameter) is parameter
            if not is_first and parameter.offset != following[array]:
                return f"the {layout.name} layout does not keep {array} together"
            following[array] = parameter.offset + parameter.size
    return tuple(
        Block(first[shape[:3]].offset, shape.shape) for shape in layout.spec.parameter_shapes()
    )


@lru_cache(maxsize=256)
def _moves(source: WeightLayout, target: WeightLayout) -> tuple[Move, ...]:
    targets = {parameter[:4]: parameter.offset for parameter in target.parameters}
    moves: list[Move] = []
    for parameter in source.parameters:
        move = Move(parameter.offset, targets[parameter[:4]], parameter.size)
        last = moves[-1] if moves else None
        if last is not None and (last.source + last.size, last.target + last.size) == move[:2]:
            moves[-1] = last._replace(size=last.size + move.size)
        else:
            moves.append(move)
    return tuple(moves)


_Entry = tuple[int, int, str, str | None, tuple[int, ...]]


def _gates(
    spec: RNNSpec, layer: int, direction: int, name: str, order: tuple[str, ...] = ()
) -> Iterator[_Entry]:
    """Yield the parts of a weight array by gate: in PyTorch's order, or in the one given."""
    if name == "w_hr":
        yield layer, direction, name, None, (spec.proj_size, spec.hidden_size)
        return
    shape: tuple[int, ...] = (spec.hidden_size,)
    if name == "w_ih":
        shape += (spec.layer_input_size(layer),)
    elif name == "w_hh":
        shape += (spec.output_size,)
    for gate in order or spec.gates:
        yield layer, direction, name, gate, shape


def _torch_order(spec: RNNSpec) -> Iterator[_Entry]:
    for layer, direction, name, _ in spec.parameter_shapes():
        yield from _gates(spec, layer, direction, name)


def _cudnn_order(spec: RNNSpec) -> Iterator[_Entry]:
    for kind in ("w", "b"):
        for layer, direction, name, _ in spec.parameter_shapes():
            if name.startswith(kind):
                yield from _gates(spec, layer, direction, name)


_MIOPEN_GATES: dict[str, tuple[str, ...]] = {"lstm": ("i", "f", "o", "g"), "gru": ("z", "r", "n")}


def _miopen_order(spec: RNNSpec) -> Iterator[_Entry]:
    order = _MIOPEN_GATES.get(spec.mode, spec.gates)
    for names in (("w_ih", "w_hh"), ("b_ih", "b_hh") if spec.bias else ()):
        for layer in range(spec.num_layers):
            for name in names:
                for direction in range(spec.num_directions):
                    yield from _gates(spec, layer, direction, name, order)


_ORDERS: dict[LayoutName, Callable[[RNNSpec], Iterator[_Entry]]] = {
    "cudnn": _cudnn_order,
    "miopen": _miopen_order,
    "torch": _torch_order,
}
