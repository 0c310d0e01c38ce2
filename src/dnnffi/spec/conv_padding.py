"""Rewrite a convolution with asymmetric padding as one with symmetric padding.

The image of a convolution is x, or y of a transposed one. If the image gets more zeros on one side,
the padding that remains is the same on both sides. A library that pads both sides alike convolves
this padded image. It takes one copy of the image before the convolution, or after it if the image
is the result.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Literal, NamedTuple

from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_problem import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, ConvProblem

ImageOperand = Literal["first", "second", "result"]

_IMAGES: dict[tuple[str, bool], ImageOperand] = {
    (FORWARD, False): "first",
    (BACKWARD_DATA, False): "result",
    (BACKWARD_WEIGHTS, False): "second",
    (FORWARD, True): "result",
    (BACKWARD_DATA, True): "first",
    (BACKWARD_WEIGHTS, True): "first",
}
"""The operand that is the image, by operation and whether the convolution is transposed."""


class PaddedImage(NamedTuple):
    """A symmetric convolution, and where the image of the asymmetric one is in its image.

    Attributes
    ----------
    problem : the symmetric convolution, on the padded image. If the image is a result, bias,
        residual and activation are not part of it: they follow the copy
    operand : the image, as `ConvAddresses` names it
    shape : of the image, [N, channels, ...]
    padded_shape : of the padded image
    offset : position of the image in the padded image, for each spatial dimension
    """

    problem: ConvProblem
    operand: ImageOperand
    shape: tuple[int, ...]
    padded_shape: tuple[int, ...]
    offset: tuple[int, ...]

    @property
    def is_result(self) -> bool:
        """Whether the convolution computes the image: then it is copied out of the padded one."""
        return self.operand == "result"

    @property
    def padded_bytes(self) -> int:
        """Bytes of the padded image."""
        return prod(self.padded_shape) * ITEM_SIZES[self.problem.spec.dtype]

    @classmethod
    def of(cls, problem: ConvProblem) -> PaddedImage | None:
        """Return the symmetric convolution of a problem; None if the problem is symmetric.

        Examples
        --------
        >>> from dnnffi.spec.conv_padding import PaddedImage
        >>> import dnnffi
        >>> w_shape = 8, 3, 3, 3
        >>> spec = dnnffi.ConvSpec.from_weight_shape(w_shape, stride=2, padding=((0, 1), (2, 1)))
        >>> image = PaddedImage.of(dnnffi.ConvProblem.of("forward", spec, (1, 3, 8, 8)))
        >>> image.problem.spec.padding, image.padded_shape, image.offset
        ((0, 1), (1, 3, 9, 9), (0, 1))
        """
        spec = problem.spec
        if is_symmetric(spec):
            return None
        sides = list(zip(spec.padding_before, spec.padding_after, strict=True))
        padding = tuple(min(pair) for pair in sides)
        more = [abs(after - before) for before, after in sides]
        shape = problem.y_shape if spec.transposed else problem.x_shape
        sizes = tuple(size + extra for size, extra in zip(shape[2:], more, strict=True))
        operand = _IMAGES[problem.operation, spec.transposed]
        symmetric = problem._replace(spec=replace(spec, padding=padding))
        if not spec.transposed:
            symmetric = symmetric._replace(sizes=sizes)
        if operand == "result":
            symmetric = symmetric._replace(activation=None, residual=False, alpha=1.0, bias=False)
        offset = tuple(before - least for (before, _), least in zip(sides, padding, strict=True))
        return cls(symmetric, operand, shape, (*shape[:2], *sizes), offset)


def is_symmetric(spec: ConvSpec) -> bool:
    """Return whether the padding before and after is the same in each dimension."""
    return spec.padding_before == spec.padding_after
