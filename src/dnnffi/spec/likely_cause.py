"""The likely cause of an error: compare weights of wrong shapes with common mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from dnnffi.spec.names import Mode

Shapes = list[tuple[int, ...]]


class Fits(Protocol):
    """Whether shapes are weights of a mode, with a number of layers and one of directions."""

    def __call__(
        self, mode: Mode, shapes: Shapes, stack: tuple[int, int] | None = None, /
    ) -> bool: ...


_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def likely_cause(
    mode: Mode,
    others: Sequence[Mode],
    shapes: Shapes,
    stack: tuple[int, int],
    num_gates: int,
    fits: Fits,
) -> str | None:
    """Return what is to be changed for ``shapes`` to fit, or None if no such change is known.

    ``others`` are the modes but ``mode``; ``stack`` is the number of layers and of directions of
    the call. ``fits`` says whether shapes are weights of a mode; with that stack by default.
    """
    modes = [other for other in others if fits(other, shapes)]
    if modes:
        return f"these are weights of mode {' or '.join(map(repr, modes))}"
    stacks = [_difference(one, stack) for one in _stacks(len(shapes)) if fits(mode, shapes, one)]
    if stacks:
        return f"they fit with {' or with '.join(stacks)}"
    if fits(mode, [shape[::-1] for shape in shapes]):
        return (
            "they fit transposed: matrices are [G*H, I] and [G*H, H] here, [I, G*H] and [H, G*H] "
            "in Keras and Flax (RNNWeights.from_keras, from_flax)"
        )
    if len(shapes) % 3 == 0:
        # The vector of each layer and direction twice.
        doubled = [shape for at, shape in enumerate(shapes) for _ in range(1 + (at % 3 == 2))]
        if fits(mode, doubled):
            return "one bias vector is given where there are two: b_ih and b_hh, zeros for instance"
        if fits(mode, [shape[::-1] for shape in doubled]):
            return (
                "they fit transposed and with two bias vectors: Keras's weights are taken by "
                "RNNWeights.from_keras"
            )
    if of_keras := layers_of_keras(shapes, num_gates):
        return (
            f"{' and '.join(of_keras)} are as a layer of Keras lists its arrays, and "
            f"model.get_weights() those of all layers: RNNWeights.from_keras takes those of a layer"
        )
    for directions in (1, 2):
        order = _sorted_names(len(shapes), stack[0], directions)
        if order and fits(mode, [shapes[at] for at in order]):
            return (
                "they fit in the alphabetical order of PyTorch's names, as files sort them: "
                "RNNWeights.from_torch(mapping, mode) goes by name"
            )
    return None


def _stacks(count: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of layers and directions that ``count`` arrays may be of, few layers first."""
    for layers in range(1, count // 2 + 1):
        for directions in (1, 2):
            each, rest = divmod(count, layers * directions)
            if not rest and each in (2, 3, 4, 5):
                yield layers, directions


def _difference(stack: tuple[int, int], asked: tuple[int, int]) -> str:
    """Return the keywords for a number of layers and of directions that the call has not given."""
    (layers, directions), parts = stack, []
    if layers != asked[0]:
        parts.append(f"num_layers={layers}")
    if directions != asked[1]:
        parts.append(f"bidirectional={directions == 2}")
    return ", ".join(parts)


def layers_of_keras(shapes: Shapes, num_gates: int) -> list[str]:
    """Return the parts of a list that are kernel [I, G*H], recurrent kernel [H, G*H] and bias."""
    found, at = [], 0
    while at + 1 < len(shapes):
        kernel, recurrent = shapes[at : at + 2]
        columns = num_gates * recurrent[0] if recurrent else 0
        if not columns or not recurrent[1:] == kernel[1:] == (columns,):
            at += 1
            continue
        biases = ((columns,), (2, columns), (2 * columns,))  # the last of CuDNNLSTM, CuDNNGRU
        end = at + 2 + (at + 2 < len(shapes) and shapes[at + 2] in biases)
        found.append(f"weights[{at}:{end}]")
        at = end
    return found


def _sorted_names(count: int, num_layers: int, directions: int) -> list[int]:
    """For each array in PyTorch's order, the place of its name among all names, sorted."""
    each, rest = divmod(count, num_layers * directions)
    if rest or each not in (2, 3, 4, 5):
        return []
    kinds = (*_KINDS[: each - each % 2], *("weight_hr",) * (each % 2))
    names = [
        f"{kind}_l{layer}{suffix}"
        for layer in range(num_layers)
        for suffix in ("", "_reverse")[:directions]
        for kind in kinds
    ]
    places = {name: place for place, name in enumerate(sorted(names))}
    return [places[name] for name in names]
