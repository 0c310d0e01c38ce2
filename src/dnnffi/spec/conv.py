"""The specification of a convolution and the shapes that follow from it.

Symbols: N batch, C input channels, K output channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dnnffi.spec.checks import INT64_MAX, brief, check_dtype, check_flag, check_range
from dnnffi.spec.names import DType, DTypeLike

RANKS = (1, 2, 3)
_TEXT = str | bytes | bytearray  # sequences, but not of sizes

Padding = int | Sequence[int] | Literal["same"]
SAME = "same"


@dataclass(frozen=True, slots=True, init=False)
class ConvSpec:
    """What a convolution is, apart from the number and size of its inputs.

    As in all of deep learning it is a correlation: the kernel is not flipped. ``kernel`` has one
    size for each of the one, two or three spatial dimensions; the others are one number for all of
    them or one each.

    Parameters
    ----------
    in_channels : C
    out_channels : K
    kernel : size of the kernel
    stride : step of the kernel over the input; of a transposed convolution, over the output
    padding : zeros put before and behind the input; of a transposed one, cut off the output. "same"
        stands for as many as leave the output the size of the input: stride must be 1, and the
        dilated kernel cover an odd number of positions
    dilation : distance of the kernel's elements
    groups : parts of the channels that are convolved each by itself; divides C and K
    transposed : the transposed convolution, which is backward data of the ordinary one
    output_padding : of a transposed convolution, positions more at the output's end
    dtype : "float16", "bfloat16", "float32" or "float64", or a library's own, as ``numpy.float32``

    Raises
    ------
    TypeError, ValueError
        Naming the field, what came and what was expected.

    Examples
    --------
    >>> import dnnffi
    >>> spec = dnnffi.ConvSpec(in_channels=3, out_channels=8, kernel=(3, 3), stride=2, padding=1)
    >>> spec.weight_shape, spec.x_shape(1, (9, 7)), spec.y_shape(1, (9, 7))
    ((8, 3, 3, 3), (1, 3, 9, 7), (1, 8, 5, 4))
    >>> spec.output_sizes((9, 7)), spec.input_sizes((5, 4))
    ((5, 4), (9, 7))
    """

    in_channels: int
    out_channels: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool
    output_padding: tuple[int, ...]
    dtype: DType

    def __init__(
        self,
        *,
        in_channels: int,
        out_channels: int,
        kernel: Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        transposed: bool = False,
        output_padding: int | Sequence[int] = 0,
        dtype: DTypeLike = "float32",
    ) -> None:
        kernel_sizes: object = kernel
        if isinstance(kernel_sizes, _TEXT) or not isinstance(kernel_sizes, Sequence):
            raise TypeError(f"kernel must be one size for each dimension; got {brief(kernel)}")
        rank = len(kernel_sizes)
        if rank not in RANKS:
            raise ValueError(f"kernel must have 1, 2 or 3 sizes; got {rank}")
        if not isinstance(padding, str):
            padding = per_dimension("padding", padding, rank, 0)
        found: dict[str, object] = {
            "in_channels": check_range("in_channels", in_channels, 1),
            "out_channels": check_range("out_channels", out_channels, 1),
            "kernel": per_dimension("kernel", kernel_sizes, rank, 1),
            "stride": per_dimension("stride", stride, rank, 1),
            "padding": padding,
            "dilation": per_dimension("dilation", dilation, rank, 1),
            "groups": check_range("groups", groups, 1),
            "transposed": check_flag("transposed", transposed),
            "output_padding": per_dimension("output_padding", output_padding, rank, 0),
            "dtype": check_dtype(dtype),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)
        if isinstance(padding, str):
            object.__setattr__(self, "padding", self._same_padding(padding))
        for name, channels in (("input", self.in_channels), ("output", self.out_channels)):
            if channels % self.groups:
                raise ValueError(
                    f"groups must divide the {name} channels, {channels}; got {self.groups}"
                )
        if not self.transposed and any(self.output_padding):
            raise ValueError(
                f"output_padding: only a transposed convolution has one; got {self.output_padding}"
            )
        for index, more in enumerate(self.output_padding):
            limit = max(self.stride[index], self.dilation[index])
            if more >= limit:
                raise ValueError(
                    f"output_padding[{index}] must be smaller than the larger of stride and "
                    f"dilation, {limit}; got {more}"
                )

    @classmethod
    def from_weight_shape(
        cls,
        shape: Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        transposed: bool = False,
        output_padding: int | Sequence[int] = 0,
        dtype: DTypeLike = "float32",
        name: str = "w",
    ) -> ConvSpec:
        """Take channels and kernel from the shape of the weights, the argument called ``name``.

        Examples
        --------
        >>> import dnnffi
        >>> spec = dnnffi.ConvSpec.from_weight_shape((8, 1, 3, 3), groups=4)
        >>> spec.in_channels, spec.out_channels, spec.kernel
        (4, 8, (3, 3))
        """
        groups = check_range("groups", groups, 1)
        form = "[C, K/groups, ...]" if transposed else "[K, C/groups, ...]"
        if len(shape) - 2 not in RANKS:
            raise ValueError(
                f"{name} must have 3, 4 or 5 dimensions, {form}; got {brief(tuple(shape))}"
            )
        if not all(shape):
            raise ValueError(
                f"{name} must have no dimension of size 0; got shape {brief(tuple(shape))}"
            )
        many, few = shape[0], shape[1] * groups
        return cls(
            in_channels=many if transposed else few,
            out_channels=few if transposed else many,
            kernel=tuple(shape[2:]),
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            transposed=transposed,
            output_padding=output_padding,
            dtype=dtype,
        )

    @property
    def rank(self) -> int:
        """The number of spatial dimensions."""
        return len(self.kernel)

    @property
    def depthwise(self) -> bool:
        """Whether there are groups, and each has one channel on the side of the larger image.

        That is one input channel, or of a transposed convolution one output channel.
        """
        return self.groups > 1 and self.weight_shape[1] == 1

    @property
    def span(self) -> tuple[int, ...]:
        """What the dilated kernel covers in each dimension: dilation * (kernel - 1) + 1."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def _same_padding(self, asked: str) -> tuple[int, ...]:
        """What "same" stands for."""
        if asked != SAME:
            raise ValueError(f"padding must be integers or {SAME!r}; got {brief(asked)}")
        if set(self.stride) != {1} or any(self.output_padding):
            raise ValueError(
                f"padding={SAME!r} needs stride 1 and no output padding; got stride {self.stride}, "
                f"output_padding {self.output_padding}"
            )
        for index, span in enumerate(self.span):
            if span % 2 == 0:
                raise ValueError(
                    f"padding={SAME!r} puts as many zeros before as behind: the dilated kernel "
                    f"must cover an odd number of positions; in spatial dimension {index} it "
                    f"covers {span}. Pad x instead"
                )
        return tuple(span // 2 for span in self.span)

    @property
    def adjoint(self) -> ConvSpec:
        """The ordinary convolution whose backward data this transposed one is, or its reverse.

        The weights are the same array. The reverse has no output padding.
        """
        return replace(
            self,
            in_channels=self.out_channels,
            out_channels=self.in_channels,
            transposed=not self.transposed,
            output_padding=(0,) * self.rank,
        )

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of ``w``: [K, C/groups, ...]; of a transposed convolution [C, K/groups, ...]."""
        if self.transposed:
            return (self.in_channels, self.out_channels // self.groups, *self.kernel)
        return (self.out_channels, self.in_channels // self.groups, *self.kernel)

    @property
    def bias_shape(self) -> tuple[int]:
        """Shape of the bias: [K]."""
        return (self.out_channels,)

    def x_shape(self, batch: int, sizes: Sequence[int]) -> tuple[int, ...]:
        """Shape of ``x`` [N, C, ...] with these spatial sizes."""
        return (batch, self.in_channels, *sizes)

    def y_shape(self, batch: int, sizes: Sequence[int]) -> tuple[int, ...]:
        """Shape of ``y`` [N, K, ...] from the spatial sizes of ``x``."""
        return (batch, self.out_channels, *self.output_sizes(sizes))

    def output_sizes(self, sizes: Sequence[int], name: str = "x") -> tuple[int, ...]:
        """The spatial sizes of ``y`` from those of ``x``, the argument called ``name``.

        Raises ``ValueError`` where the padded input is smaller than the kernel's span, or the
        padding of a transposed convolution leaves nothing.
        """
        self._check_sizes(name, sizes)
        outputs = []
        for index, (size, span) in enumerate(zip(sizes, self.span, strict=True)):
            stride, padding = self.stride[index], self.padding[index]
            if self.transposed:
                output = (size - 1) * stride - 2 * padding + span + self.output_padding[index]
                if output < 1:
                    raise ValueError(
                        f"padding[{index}] cuts off all of the output: {name} has size {size} "
                        f"there, stride {stride}, the kernel spans {span}, and padding is {padding}"
                    )
            else:
                padded = size + 2 * padding
                if padded < span:
                    raise ValueError(
                        f"{name} is smaller than the kernel: spatial dimension {index} has size "
                        f"{size}, {padded} with its padding, and the kernel spans {span} "
                        f"(size {self.kernel[index]}, dilation {self.dilation[index]})"
                    )
                output = (padded - span) // stride + 1
            outputs.append(output)
        return tuple(outputs)

    def input_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The smallest spatial sizes of ``x`` from which ``y`` gets these.

        With a stride of s, x of up to s - 1 more gives the same; of a transposed convolution there
        is one size only. Raises ``ValueError`` where no input gives such an output.
        """
        self._check_sizes("y", sizes)
        inputs = []
        for index, (size, span) in enumerate(zip(sizes, self.span, strict=True)):
            stride, padding = self.stride[index], self.padding[index]
            if self.transposed:
                steps, rest = divmod(size - span + 2 * padding - self.output_padding[index], stride)
                found, possible = steps + 1, not rest
            else:
                least = (size - 1) * stride + span - 2 * padding
                found, possible = max(1, least), True
                possible = found < least + stride
            if found < 1 or not possible:
                raise ValueError(f"y: no input gives size {size} in spatial dimension {index}")
            inputs.append(found)
        return tuple(inputs)

    def _check_sizes(self, name: str, sizes: Sequence[int]) -> None:
        if len(sizes) != self.rank:
            raise ValueError(
                f"{name} must have {self.rank} spatial dimensions, as the kernel; got {len(sizes)}"
            )
        for index, size in enumerate(sizes):
            if size < 1:
                raise ValueError(
                    f"{name} must have no spatial dimension of size 0; dimension {index} has "
                    f"size {size}"
                )


def per_dimension(name: str, value: object, rank: int, least: int) -> tuple[int, ...]:
    """``value``, one integer or one a spatial dimension, as a tuple; errors name the argument."""
    if isinstance(value, Sequence) and not isinstance(value, _TEXT):
        if len(value) != rank:
            raise ValueError(
                f"{name} must be one integer, or {rank} for as many spatial dimensions; "
                f"got {len(value)}"
            )
        return tuple(check_range(f"{name}[{i}]", one, least) for i, one in enumerate(value))
    return (check_range(name, value, least),) * rank


def check_shape(name: str, value: object) -> tuple[int, ...]:
    """``value`` as a shape of 3 to 5 dimensions; errors name the argument."""
    if isinstance(value, _TEXT) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a tuple of integers; got {type(value).__name__}")
    if len(value) - 2 not in RANKS:
        raise ValueError(f"{name} must be a shape of 3, 4 or 5 dimensions; got {len(value)}")
    return tuple(
        check_range(f"{name}[{index}]", size, 0, INT64_MAX) for index, size in enumerate(value)
    )
