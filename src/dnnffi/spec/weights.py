"""Where every gate's matrix and bias lies in a flat weight buffer.

cuDNN's order was read from the library itself (``cudnnGetRNNWeightParams``, 9.19, on a GPU): for
each layer and direction the input matrices gate by gate, the recurrent matrices gate by gate, then
the projection; behind the matrices of all layers, in the same order, the input biases and the
recurrent biases gate by gate. Nothing is padded, and the algorithm does not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from dnnffi.spec.rnn import RNNSpec


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


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """A flat weight buffer: ``size`` in elements and the ``parameters`` in buffer order."""

    spec: RNNSpec
    name: str
    size: int
    parameters: tuple[Parameter, ...]

    def blocks(self) -> tuple[Block, ...]:
        """Offset and shape of each weight array, in PyTorch's order.

        Raises ``ValueError`` where a layout does not keep the gates of an array together and in
        PyTorch's order.
        """
        return _blocks(self)


def weight_layout(spec: RNNSpec, backend: str) -> WeightLayout:
    """The layout of the flat weight buffer of ``spec``, predicted without any library.

    ``backend`` is "cudnn" (the buffer that ``cudnnRNNForward`` reads) or "torch" (the arrays of
    ``torch.nn`` in their order, one after the other). Raises ``ValueError`` for another name.
    """
    if not isinstance(spec, RNNSpec):
        raise TypeError(f"spec must be an RNNSpec; got {type(spec).__name__}")
    if backend not in tuple(_ORDERS):
        raise ValueError(f"backend must be one of {', '.join(_ORDERS)}; got {backend!r}")
    return _layout(spec, backend)


@lru_cache(maxsize=256)
def _layout(spec: RNNSpec, name: str) -> WeightLayout:
    parameters = []
    offset = 0
    for layer, direction, array, gate, shape in _ORDERS[name](spec):
        parameters.append(Parameter(layer, direction, array, gate, offset, shape))
        offset += prod(shape)
    return WeightLayout(spec, name, offset, tuple(parameters))


@lru_cache(maxsize=256)
def _blocks(layout: WeightLayout) -> tuple[Block, ...]:
    first: dict[tuple[int, int, str], Parameter] = {}
    following: dict[tuple[int, int, str], int] = {}
    for gate in (*layout.spec.gates, None):
        for parameter in layout.parameters:
            if parameter.gate != gate:
                continue
            array = parameter[:3]
            is_first = first.setdefault(array, parameter) is parameter
            if not is_first and parameter.offset != following[array]:
                raise ValueError(f"the {layout.name} layout does not keep {array} together")
            following[array] = parameter.offset + parameter.size
    return tuple(
        Block(first[shape[:3]].offset, shape.shape) for shape in layout.spec.parameter_shapes()
    )


_Entry = tuple[int, int, str, str | None, tuple[int, ...]]


def _gates(spec: RNNSpec, layer: int, direction: int, name: str) -> Iterator[_Entry]:
    """The parts of one weight array, gate by gate in PyTorch's order."""
    if name == "w_hr":
        yield layer, direction, name, None, (spec.proj_size, spec.hidden_size)
        return
    shape: tuple[int, ...] = (spec.hidden_size,)
    if name == "w_ih":
        shape += (spec.layer_input_size(layer),)
    elif name == "w_hh":
        shape += (spec.output_size,)
    for gate in spec.gates:
        yield layer, direction, name, gate, shape


def _torch_order(spec: RNNSpec) -> Iterator[_Entry]:
    for layer, direction, name, _ in spec.parameter_shapes():
        yield from _gates(spec, layer, direction, name)


def _cudnn_order(spec: RNNSpec) -> Iterator[_Entry]:
    for kind in ("w", "b"):
        for layer, direction, name, _ in spec.parameter_shapes():
            if name.startswith(kind):
                yield from _gates(spec, layer, direction, name)


_ORDERS: dict[str, Callable[[RNNSpec], Iterator[_Entry]]] = {
    "cudnn": _cudnn_order,
    "torch": _torch_order,
}
