"""One convolution problem: an operation, shapes and options, for which a plan is made.

A problem is one operation, because libraries search and build for each operation separately. It
has a layout and no strides, or every view with gaps would have a plan of its own: plans copy such
arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Self, get_args

from dnnffi.spec.checks import (
    ITEM_SIZES,
    brief,
    check_bytes,
    check_choice,
    check_flag,
    check_number,
)
from dnnffi.spec.conv import ConvSpec, check_shape
from dnnffi.spec.conv_options import DEFAULTS, ConvOptions, ConvOptionsDict, conv_options
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST, LAYOUTS, packed_strides
from dnnffi.spec.names import Activation, MemoryLayout, Operation

FORWARD: Operation = "forward"
BACKWARD_DATA: Operation = "backward_data"
BACKWARD_WEIGHTS: Operation = "backward_weights"
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

ARGUMENTS = {
    FORWARD: ("x", "w", "bias", "residual"),
    BACKWARD_DATA: ("dy", "w"),
    BACKWARD_WEIGHTS: ("dy", "x"),
}
"""Names of the arrays that each operation reads, in order."""

RESULTS = {FORWARD: "y", BACKWARD_DATA: "dx", BACKWARD_WEIGHTS: "dw"}
"""Names of the results of the operations."""

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)


class ConvProblem(NamedTuple):
    """One problem, for which a plan is made. Built by `ConvProblem.of`; hashable.

    ``operation`` is "forward", "backward_data" or "backward_weights"; ``sizes`` are the spatial
    sizes of x; ``spec`` has the padding for them as numbers (`ConvSpec.resolved`); ``layout`` is
    the memory layout of all arrays, "channels_first" or "channels_last", whatever their shapes,
    which are [N, C, ...]. The fields from ``activation`` to ``bias`` are for "forward":
    y = activation(conv(x, w) + alpha*residual + bias).

    Examples
    --------
    >>> import dnnffi
    >>> spec = dnnffi.ConvSpec(in_channels=3, out_channels=8, kernel=(3, 3), padding="same")
    >>> problem = dnnffi.ConvProblem.of("backward_weights", spec, (2, 3, 9, 7))
    >>> problem.argument_shapes, problem.result_shape
    (((2, 8, 9, 7), (2, 3, 9, 7)), (8, 3, 3, 3))
    >>> problem.strides(problem.x_shape)
    (756, 252, 28, 4)
    """

    operation: Operation
    spec: ConvSpec
    batch: int
    sizes: tuple[int, ...]
    layout: MemoryLayout
    activation: Activation | None
    residual: bool
    alpha: float
    bias: bool
    options: ConvOptions

    @classmethod
    def of(
        cls,
        operation: Operation,
        spec: ConvSpec,
        x_shape: Sequence[int],
        *,
        layout: MemoryLayout = CHANNELS_FIRST,
        activation: Activation | None = None,
        residual: bool = False,
        alpha: float = 1.0,
        bias: bool = False,
        options: ConvOptions | ConvOptionsDict | None = DEFAULTS,
    ) -> Self:
        """Return a problem on ``x`` of a shape [N, C, ...]; errors name the argument at fault."""
        if not isinstance(spec, ConvSpec):
            raise TypeError(f"spec must be a ConvSpec; got {type(spec).__name__}")
        residual, bias = check_flag("residual", residual), check_flag("bias", bias)
        if type(options) is not ConvOptions:
            options = conv_options(options)
        operation = check_choice("operation", operation, OPERATIONS)
        layout = check_choice("layout", layout, LAYOUTS)
        if operation != FORWARD and (activation or residual or bias):
            raise ValueError(f"activation, residual and bias are for 'forward'; got {operation!r}")
        name = "x_shape" if operation == BACKWARD_DATA else "x"
        if not isinstance(x_shape, Sequence):
            raise TypeError(f"{name} must be a tuple of integers; got {type(x_shape).__name__}")
        if len(x_shape) != spec.rank + 2:
            raise ValueError(
                f"{name} must have {spec.rank + 2} dimensions, as the weights; got "
                f"{brief(tuple(x_shape))}"
            )
        batch, channels, *sizes = x_shape = check_shape(name, x_shape)
        if channels != spec.in_channels:
            raise ValueError(
                f"{name} must have {spec.in_channels} channels (from the weights, "
                f"{spec.groups} group(s)); got shape {x_shape}"
            )
        y_shape = (batch, spec.out_channels, *spec.output_sizes(sizes, name))
        spec = spec.resolved(sizes)
        for what, shape in ((name, x_shape), ("y", y_shape), ("w", spec.weight_shape)):
            check_bytes(what, shape, spec.dtype)
        return cls(
            operation,
            spec,
            batch,
            tuple(sizes),
            layout,
            check_activation(activation),
            residual,
            check_number("alpha", alpha) if residual else 1.0,
            bias,
            options,
        )

    @property
    def channels_last(self) -> bool:
        """Whether the channels of a position lie beside each other in memory."""
        return self.layout == CHANNELS_LAST

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Bytes from one element to the next in each dimension of an array without gaps."""
        item = ITEM_SIZES[self.spec.dtype]
        return tuple([stride * item for stride in packed_strides(shape, self.channels_last)])

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of ``x`` and ``dx``."""
        return self.spec.x_shape(self.batch, self.sizes)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of ``y``, ``dy`` and the residual."""
        return _y_shape(self.spec, self.batch, self.sizes)

    @property
    def argument_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the arrays that the operation reads.

        "forward" reads x, w, bias and residual (`present` tells which the problem has),
        "backward_data" reads dy and w, "backward_weights" dy and x.
        """
        if self.operation == FORWARD:
            return (self.x_shape, self.spec.weight_shape, self.spec.bias_shape, self.y_shape)
        if self.operation == BACKWARD_DATA:
            return (self.y_shape, self.spec.weight_shape)
        return (self.y_shape, self.x_shape)

    @property
    def present(self) -> tuple[bool, ...]:
        """Whether each of `argument_shapes` exists: a forward call may have no bias."""
        return (True, True, self.bias, self.residual)[: len(ARGUMENTS[self.operation])]

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of what the operation returns: y, dx or dw."""
        if self.operation == FORWARD:
            return self.y_shape
        return self.x_shape if self.operation == BACKWARD_DATA else self.spec.weight_shape

    @property
    def epilogue(self) -> tuple[str, ...]:
        """Steps that follow the convolution, out of residual, bias and the activation."""
        return tuple(
            filter(None, ("residual" * self.residual, "bias" * self.bias, self.activation))
        )

    def __str__(self) -> str:
        """Return the problem in words, for error messages."""
        factors = {"residual": f"{self.alpha} * "}
        more = "".join(f" + {factors.get(part, '')}{part}" for part in self.epilogue)
        return f"{self.operation}{more} of {self.spec}, x {list(self.x_shape)} {self.layout}"


@lru_cache(maxsize=1024)  # asked several times for each problem
def _y_shape(spec: ConvSpec, batch: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return spec.y_shape(batch, sizes)


def check_activation(activation: object) -> Activation | None:
    """``activation``, "relu" or None; ``ValueError`` says what came."""
    # The class first: an array would compare by its elements.
    if activation is None:
        return None
    for known in ACTIVATIONS:
        if isinstance(activation, str) and activation == known:
            return known
    raise ValueError(f"activation must be 'relu' or None; got {brief(activation)}")
