"""The specification of a convolution and the shapes that follow from it.

Symbols: N batch, C input channels, K output channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeGuard

from dnnffi.spec.checks import INT64_MAX, brief, check_dtype, check_flag, check_range
from dnnffi.spec.names import DType, DTypeLike

RANKS = (1, 2, 3)
_TEXT = str | bytes | bytearray  # sequences, but not of sizes

Padding = int | Sequence[int | Sequence[int]] | Literal["same", "valid"]
"""The argument ``padding``: one integer, an integer or a pair for each dimension, or a name."""

Sides = tuple[int | tuple[int, int], ...]
"""Padding of each spatial dimension: one integer for both sides, or a pair (before, after)."""

SAME: Literal["same"] = "same"
VALID = "valid"


@dataclass(frozen=True, slots=True, init=False)
class ConvSpec:
    """A convolution, apart from the number and size of its inputs.

    As in all of deep learning it is a correlation: the kernel is not flipped. ``kernel`` has one
    size for each of the one, two or three spatial dimensions; stride, padding, dilation and
    output_padding are one number for all of them or one each.

    Parameters
    ----------
    in_channels : C
    out_channels : K
    kernel : size of the kernel
    stride : step of the kernel over the input; of a transposed convolution, over the output
    padding : zeros added on both sides of the input; of a transposed convolution, positions removed
        from both sides of the output. One integer, or for each dimension an integer or a pair
        (before, after). "valid" is 0. "same" gives an output of ceil(size / stride), of a
        transposed convolution size * stride; the side after gets the odd position, as in
        TensorFlow, Keras and XLA
    dilation : distance of the kernel's elements
    groups : number of groups of channels, each convolved separately; divides C and K
    transposed : the transposed convolution, which is backward data of the ordinary one
    output_padding : of a transposed convolution, extra positions at the end of the output
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
    >>> spec = dnnffi.ConvSpec(in_channels=3, out_channels=8, kernel=(3,), padding=((0, 1),))
    >>> spec.padding, spec.padding_before, spec.padding_after, spec.output_sizes((9,))
    (((0, 1),), (0,), (1,), (8,))
    """

    in_channels: int
    out_channels: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Sides | Literal["same"]
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
        found: dict[str, object] = {
            "in_channels": check_range("in_channels", in_channels, 1),
            "out_channels": check_range("out_channels", out_channels, 1),
            "kernel": per_dimension("kernel", kernel_sizes, rank, 1),
            "stride": per_dimension("stride", stride, rank, 1),
            "padding": check_padding(padding, rank),
            "dilation": per_dimension("dilation", dilation, rank, 1),
            "groups": check_range("groups", groups, 1),
            "transposed": check_flag("transposed", transposed),
            "output_padding": per_dimension("output_padding", output_padding, rank, 0),
            "dtype": check_dtype(dtype),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)
        if self.padding == SAME:
            self._set_same_padding()
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
        """Positions that the dilated kernel covers, by dimension: dilation * (kernel - 1) + 1."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def padding_before(self) -> tuple[int, ...]:
        """The padding before the first position of each dimension.

        Raises ``ValueError`` for "same" with a stride: see `resolved`.
        """
        return _sides(self.padding)[0]

    @property
    def padding_after(self) -> tuple[int, ...]:
        """The padding after the last position of each dimension, as `padding_before`."""
        return _sides(self.padding)[1]

    def resolved(self, sizes: Sequence[int]) -> ConvSpec:
        """Return the specification with padding "same" as numbers, for an x of these spatial sizes.

        It is this specification itself if the padding is known without them, as it is unless an
        ordinary convolution has a stride.

        Examples
        --------
        >>> import dnnffi
        >>> w_shape = 8, 3, 3, 3
        >>> spec = dnnffi.ConvSpec.from_weight_shape(w_shape, stride=2, padding="same")
        >>> spec.padding, spec.resolved((8, 9)).padding
        ('same', ((0, 1), 1))
        >>> spec.output_sizes((8, 9))
        (4, 5)
        """
        if self.padding != SAME:
            return self
        outputs = self.output_sizes(sizes)
        totals = [
            max((output - 1) * stride + span - size, 0)
            for output, stride, span, size in zip(
                outputs, self.stride, self.span, sizes, strict=True
            )
        ]
        return replace(self, padding=_halves(totals))

    def _set_same_padding(self) -> None:
        """Replace padding "same" by numbers if they do not depend on the size of x."""
        if any(self.output_padding):
            raise ValueError(
                f"padding={SAME!r} decides the size of the output: leave out output_padding; got "
                f"{self.output_padding}"
            )
        if not self.transposed and set(self.stride) != {1}:
            return
        pairs = list(zip(self.span, self.stride, strict=True))
        totals = [max(span - stride, 0) for span, stride in pairs]
        object.__setattr__(self, "padding", _halves(totals))
        if self.transposed:
            more = tuple(max(stride - span, 0) for span, stride in pairs)
            object.__setattr__(self, "output_padding", more)

    @property
    def adjoint(self) -> ConvSpec:
        """The ordinary convolution whose backward data this transposed one is, or its reverse.

        The weights are the same array. The reverse has no output padding. Raises ``ValueError`` for
        padding "same" with a stride: see `resolved`.
        """
        _sides(self.padding)
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
        """Return the spatial sizes of ``y`` from those of ``x``, the argument called ``name``.

        Raises ``ValueError`` where the padded input is smaller than the kernel's span, or the
        padding of a transposed convolution leaves nothing.
        """
        self._check_sizes(name, sizes)
        if self.padding == SAME:
            pairs = zip(sizes, self.stride, strict=True)
            return tuple(-(-size // stride) for size, stride in pairs)
        outputs = []
        for index, (size, span) in enumerate(zip(sizes, self.span, strict=True)):
            stride = self.stride[index]
            padding = self.padding_before[index] + self.padding_after[index]
            if self.transposed:
                output = (size - 1) * stride - padding + span + self.output_padding[index]
                if output < 1:
                    raise ValueError(
                        f"padding[{index}] cuts off all of the output: {name} has size {size} "
                        f"there, stride {stride}, the kernel spans {span}, and padding is "
                        f"{self.padding[index]}"
                    )
            else:
                padded = size + padding
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
        """Return the smallest spatial sizes of ``x`` from which ``y`` gets these.

        With a stride of s, x of up to s - 1 more gives the same; of a transposed convolution there
        is one size only. Raises ``ValueError`` where no input gives such an output.
        """
        self._check_sizes("y", sizes)
        if self.padding == SAME:
            pairs = zip(sizes, self.stride, strict=True)
            return tuple((size - 1) * stride + 1 for size, stride in pairs)
        inputs = []
        for index, (size, span) in enumerate(zip(sizes, self.span, strict=True)):
            stride = self.stride[index]
            padding = self.padding_before[index] + self.padding_after[index]
            if self.transposed:
                steps, rest = divmod(size - span + padding - self.output_padding[index], stride)
                found, possible = steps + 1, not rest
            else:
                least = (size - 1) * stride + span - padding
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


def per_dimension(name: str, value: object, rank: int, minimum: int) -> tuple[int, ...]:
    """``value``, one integer or one a spatial dimension, as a tuple; errors name the argument."""
    if _is_sequence(value):
        if len(value) != rank:
            raise ValueError(
                f"{name} must be one integer, or {rank} for as many spatial dimensions; "
                f"got {len(value)}"
            )
        return tuple(check_range(f"{name}[{i}]", one, minimum) for i, one in enumerate(value))
    return (check_range(name, value, minimum),) * rank


def check_padding(value: object, rank: int) -> Sides | Literal["same"]:
    """Return ``padding`` with an entry for each dimension, or "same"; errors name the entry.

    An entry is an integer, or a pair if its sides differ, so that equal paddings compare equal.
    """
    if isinstance(value, str):
        if value == SAME:
            return SAME
        if value == VALID:
            return (0,) * rank
        raise ValueError(
            f"padding must be integers, pairs (before, after), {SAME!r} or {VALID!r}; got "
            f"{brief(value)}"
        )
    if not _is_sequence(value):
        return per_dimension("padding", value, rank, 0)
    if len(value) != rank:
        pairs = ", ".join(["(before, after)"] * rank) + "," * (rank == 1)
        raise ValueError(
            f"padding must be one integer, or {rank} for as many spatial dimensions; got "
            f"{len(value)}. If two sides differ, give a pair for each dimension: ({pairs})"
        )
    return tuple(_check_side(index, entry) for index, entry in enumerate(value))


def _check_side(index: int, entry: object) -> int | tuple[int, int]:
    name = f"padding[{index}]"
    if not _is_sequence(entry):
        return check_range(name, entry, 0)
    if len(entry) != 2:
        raise ValueError(
            f"{name} must be an integer or a pair (before, after); got {brief(tuple(entry))}"
        )
    before, after = (check_range(f"{name}[{side}]", one, 0) for side, one in enumerate(entry))
    return before if before == after else (before, after)


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, _TEXT)


@lru_cache(maxsize=1024)  # asked in every call
def _sides(padding: Sides | Literal["same"]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding before and after each dimension."""
    if isinstance(padding, str):
        raise ValueError(
            f"padding={padding!r} with a stride depends on the size of x: use the specification "
            f"that spec.resolved(sizes) returns"
        )
    pairs = [one if isinstance(one, tuple) else (one, one) for one in padding]
    return tuple(before for before, _ in pairs), tuple(after for _, after in pairs)


def _halves(totals: Sequence[int]) -> Sides:
    """Return padding of these totals, divided as equally as possible, the larger part after."""
    return tuple(
        total // 2 if total % 2 == 0 else (total // 2, total - total // 2) for total in totals
    )


def check_shape(name: str, value: object) -> tuple[int, ...]:
    """``value`` as a shape of 3 to 5 dimensions; errors name the argument."""
    if isinstance(value, _TEXT) or not isinstance(value, Sequence):
        hint = "; give its shape, since the result is returned" if hasattr(value, "shape") else ""
        raise TypeError(f"{name} must be a tuple of integers; got {type(value).__name__}{hint}")
    if len(value) - 2 not in RANKS:
        raise ValueError(f"{name} must be a shape of 3, 4 or 5 dimensions; got {len(value)}")
    return tuple(
        check_range(f"{name}[{index}]", size, 0, INT64_MAX) for index, size in enumerate(value)
    )
