"""The likely cause of an error: compare weights of wrong shapes with common mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dnnffi.spec.names import Mode

Shapes = list[tuple[int, ...]]

_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def likely_cause(
    mode: Mode,
    others: Sequence[Mode],
    shapes: Shapes,
    num_layers: int,
    fits: Callable[[Mode, Shapes], bool],
) -> str | None:
    """What about ``shapes`` is to be changed for them to fit, or None where no such thing helps.

    ``others`` are the modes but ``mode``; ``fits`` says whether shapes are weights of a mode.
    """
    modes = [other for other in others if fits(other, shapes)]
    if modes:
        return f"these are weights of mode {' or '.join(map(repr, modes))}"
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
    for directions in (1, 2):
        order = _sorted_names(len(shapes), num_layers, directions)
        if order and fits(mode, [shapes[at] for at in order]):
            return (
                "they fit in the alphabetical order of PyTorch's names, as files sort them: "
                "RNNWeights.from_torch(mapping, mode) goes by name"
            )
    return None


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
