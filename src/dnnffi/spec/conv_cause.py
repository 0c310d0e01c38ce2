"""The likely cause of an error: compare the shapes of a convolution with common mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

Shape = tuple[int, ...]
Shapes = dict[str, Shape]
"""Shapes of x, w and dy, as far as a call has them."""

Fits = Callable[[Shapes, int, bool], bool]
"""Whether shapes fit together, with a number of groups, of a transposed convolution or not."""


def conv_cause(
    shapes: Shapes, arrays: tuple[str, str], groups: int, transposed: bool, fits: Fits
) -> str | None:
    """Return what is to be changed for ``shapes`` to fit, or None if no such change is known.

    ``arrays`` are the names of the two arrays of the call, whose shapes may have been swapped. The
    others are shapes that the call was told.
    """
    if min(map(len, shapes.values())) < 3:
        return None  # without channels and a spatial dimension nothing can be compared
    if fits(shapes, groups, transposed):
        return None  # the error is about something else
    num_groups = _groups_for(shapes, transposed)
    fits_in_groups = num_groups > 1 and groups == 1 and fits(shapes, num_groups, transposed)
    if fits_in_groups and shapes["w"][1] == 1:
        return f"w fits a depthwise convolution: give groups={num_groups}"
    for changes, text in _other_axes(shapes):
        if fits({**shapes, **changes}, groups, transposed):
            return text
    first, second = arrays
    swapped = {**shapes, first: shapes[second], second: shapes[first]}
    if fits(swapped, groups, transposed):
        if arrays != ("x", "w") or not _are_in_order(shapes, groups, transposed):
            return f"they fit in the other order: {first} comes first, then {second}"
        if not transposed:
            return "add padding"
    if fits_in_groups:
        return f"they fit with groups={num_groups}"
    if fits(shapes, groups, not transposed):
        return f"they fit {'conv' if transposed else 'conv_transpose'}"
    return None


def _are_in_order(shapes: Shapes, groups: int, transposed: bool) -> bool:
    """Return whether x and w have the channels of one convolution, so that only sizes differ.

    False if w has a kernel that is not square and x as w would have a square one.
    """
    x_shape, w_shape = shapes["x"], shapes["w"]
    if len(x_shape) != len(w_shape) or (_is_square(x_shape) and not _is_square(w_shape)):
        return False
    return x_shape[1] == (w_shape[0] if transposed else w_shape[1] * groups)


def _groups_for(shapes: Shapes, transposed: bool) -> int:
    """Return the number of groups with which the channels of the larger image fit w; 0 if none."""
    image = shapes["dy"] if transposed and "dy" in shapes else shapes["x"]
    w_shape = shapes["w"]
    if len(w_shape) < 3 or len(image) < 3 or not w_shape[1]:
        return 0
    found, rest = divmod(image[1], w_shape[1])
    return 0 if rest else found


def _other_axes(shapes: Shapes) -> Iterator[tuple[Shapes, str]]:
    """Yield shapes with the axes in the order that dnnffi expects, and how to get there."""
    readings: list[list[tuple[str, Shape, str]]] = []
    for name, shape in shapes.items():
        ndim = len(shape)
        orders = [(_LAST_AXIS, (0, ndim - 1, *range(1, ndim - 1)))]
        if name == "w":
            orders.insert(0, (_OF_TENSORFLOW, (ndim - 1, ndim - 2, *range(ndim - 2))))
        readings.append([(name, shape, "")])
        for text, axes in orders:
            moved = tuple(shape[axis] for axis in axes)
            if name != "w" or _is_square(moved) or not _is_square(shape):
                readings[-1].append((name, moved, text.format(name=name, axes=axes)))
    for choice in product(*readings):
        text = "; ".join(text for *_, text in choice if text)
        if text:
            yield {name: shape for name, shape, _ in choice}, text


_OF_TENSORFLOW = (
    "{name} fits in the order of TensorFlow's and Keras's kernels, [..., C, K]: give "
    "{name}.transpose{axes}"
)
_LAST_AXIS = (
    "{name} fits with its last axis second, since channels are the second axis in every layout: "
    "give {name}.transpose{axes}"
)


def _is_square(w_shape: Shape) -> bool:
    """Whether the kernel has one size in all dimensions, as nearly all kernels have."""
    return len(set(w_shape[2:])) == 1
