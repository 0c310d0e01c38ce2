"""Inputs that an output of a depthwise convolution needs, along one dimension at a time.

Forward and backward data are both gathers, so that nothing is added by several threads and the
bits are the same in every run. Output ``o`` of a forward pass needs the inputs

    i = stride*o + dilation*tap - padding

of all taps. For backward data, ``dx`` is the output and ``dy`` the input, and the same equation
holds with both exchanged: an output needs those inputs for which it has a whole solution. Which
these are depends on the output modulo the stride alone, so that a tile of outputs that begins at a
multiple of the stride has the same taps everywhere: they are constants of a kernel.
``axis.cuh`` has the same in CUDA.
"""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.backends.own.source import Constant
from dnnffi.spec.conv_problem import FORWARD, ConvProblem


class Axis(NamedTuple):
    """One dimension: sizes of what is read and written, and the ordinary convolution.

    ``padding`` is the padding before the image; the padding after it follows from the sizes.
    """

    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    forward: bool

    @property
    def span(self) -> int:
        """Distance between the first and the last tap, in positions of the image."""
        return self.dilation * (self.kernel - 1)

    def fits(self, tile: int) -> bool:
        """Return whether all tiles of ``tile`` outputs have the same taps."""
        return self.forward or tile % self.stride == 0

    def base(self, output: int) -> int:
        """Return the position from which a tile that begins at ``output`` counts its inputs."""
        return output * self.stride if self.forward else output // self.stride

    def low(self) -> int:
        """Return the first input that a tile needs, counted from its base."""
        if self.forward:
            return -self.padding
        return -((self.span - self.padding) // self.stride)

    def high(self, tile: int) -> int:
        """Return the last input that a tile of ``tile`` outputs needs, counted from its base."""
        if self.forward:
            return self.stride * (tile - 1) + self.span - self.padding
        return (tile - 1 + self.padding) // self.stride

    @property
    def beyond(self) -> int:
        """Number of positions past the last input that the outputs need."""
        return max(0, self.high(self.outputs) - (self.inputs - 1))

    def sizes(self, name: str, tile: int) -> dict[str, int]:
        """Return the constants that depend on the size of the image, which end in ``name``."""
        return {
            f"INPUTS_{name}": self.inputs,
            f"OUTPUTS_{name}": self.outputs,
            f"TILES_{name}": -(-self.outputs // tile),
        }

    def constants(self, name: str, tile: int) -> dict[str, Constant]:
        """Return the constants of a layer and a tile that end in ``name``; see ``axis.cuh``."""
        return {
            f"TILE_{name}": tile,
            f"LOW_{name}": self.low(),
            f"HIGH_{name}": self.high(tile),
            f"STRIDE_{name}": self.stride,
            f"PADDING_{name}": self.padding,
            f"DILATION_{name}": self.dilation,
            f"SPAN_{name}": self.span,
        }


def plane(values: tuple[int, ...], missing: int) -> tuple[int, int]:
    """Return the values of two dimensions; if there is one, ``missing`` is put before it."""
    first, second = (missing,) * (2 - len(values)) + values
    return first, second


def axes_of(problem: ConvProblem) -> tuple[Axis, Axis]:
    """Return the axes of a forward pass or of backward data; a single one is the second of two."""
    spec = problem.spec
    forward = (problem.operation == FORWARD) != spec.transposed
    y, x = (
        Axis(inputs, outputs, kernel, stride, padding, dilation, forward)
        for inputs, outputs, kernel, stride, padding, dilation in zip(
            plane(problem.argument_shapes[0][2:], 1),
            plane(problem.result_shape[2:], 1),
            plane(spec.kernel, 1),
            plane(spec.stride, 1),
            plane(spec.padding_before, 0),
            plane(spec.dilation, 1),
            strict=True,
        )
    )
    return y, x
