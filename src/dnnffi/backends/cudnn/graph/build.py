"""The graphs of convolution: from shapes, strides and dtype to operations joined by tensors.

``x`` is [N, C, ...], ``w`` [K, C/groups, ...] and ``y`` [N, K, ...], with one to three spatial
dimensions. ``x`` and ``y`` may have gaps, ``w`` not, and none may overlap itself (cuDNN 9.19
refuses that). A transposed convolution is `backward_data`, with its input as ``y`` and its output
as ``x``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from dnnffi.backends.cudnn.graph.descriptor import D
from dnnffi.backends.cudnn.graph.engine import OperationGraph
from dnnffi.backends.cudnn.graph.geometry import (
    Geometry,
    Layout,
    canonical,
    is_dense,
    with_height,
)
from dnnffi.backends.cudnn.graph.operations import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    ConvolutionForward,
    GraphOperation,
    Pointwise,
    PointwiseOperation,
)
from dnnffi.backends.cudnn.graph.tensor import ALIGNMENT, Tensor
from dnnffi.backends.cudnn.library import Library, load
from dnnffi.backends.vendor.handle import Handle
from dnnffi.errors import UnsupportedError

COMPUTE = MappingProxyType(
    {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
)
"""What each dtype is computed in. Tensors inside of a graph have that dtype, too."""

UIDS = MappingProxyType({"x": 1, "w": 2, "y": 3, "residual": 4, "bias": 5})
"""The uid of each operand, in every graph: a gradient has that of what it is the gradient of."""

_FIRST_VIRTUAL = 16


class ConvolutionGraph(NamedTuple):
    """A graph, its operands in the order in which addresses are passed, and their uids.

    ``operation`` is the name of the function that built it; ``fused`` whether it is more than that
    one operation; ``kernel`` has the spatial sizes of the weights.
    """

    graph: OperationGraph
    operands: tuple[str, ...]
    uids: tuple[int, ...]
    dtype: str
    operation: str
    channels_last: bool
    fused: bool
    kernel: tuple[int, ...]


def forward(
    geometry: Geometry,
    handle: Handle | None = None,
    *,
    bias: bool = False,
    residual: Layout | None = None,
    alpha: float = 1.0,
    relu: bool = False,
    alignments: Mapping[str, int] | None = None,
    library: Library | None = None,
) -> ConvolutionGraph:
    """``y = relu(conv(x, w) + alpha * residual + bias)``, with the parts that are asked for.

    The operands are "x", "w", "y", then "residual" and "bias" where there are any. ``residual`` has
    the shape of ``y``; "bias" is K numbers. ``alignments`` are those of the operands' addresses in
    bytes, 16 where it names none. Raises ``ValueError``, `UnsupportedError`, `CudnnError`.
    """
    with _Builder(geometry, handle, alignments, library) as build:
        x, w, y = build.operand("x"), build.operand("w"), build.operand("y")
        return build.fused(
            lambda target: build.convolve(ConvolutionForward, x, w, target),
            *("y", y, bias, residual, alpha, relu),
        )


def backward_data(
    geometry: Geometry,
    handle: Handle | None = None,
    *,
    bias: bool = False,
    residual: Layout | None = None,
    alpha: float = 1.0,
    relu: bool = False,
    alignments: Mapping[str, int] | None = None,
    library: Library | None = None,
) -> ConvolutionGraph:
    """The gradient of ``x`` from that of ``y``, and the forward of a transposed convolution.

    The operands are "x" (written), "w", "y", then as in `forward`, whose other parts are for
    transposed convolutions: ``residual`` has the shape of ``x``, "bias" is C numbers.
    """
    with _Builder(geometry, handle, alignments, library) as build:
        x, w, y = build.operand("x"), build.operand("w"), build.operand("y")
        return build.fused(
            lambda target: build.convolve(ConvolutionBackwardData, target, w, y),
            *("x", x, bias, residual, alpha, relu),
        )


def backward_weights(
    geometry: Geometry,
    handle: Handle | None = None,
    *,
    alignments: Mapping[str, int] | None = None,
    library: Library | None = None,
) -> ConvolutionGraph:
    """The gradient of ``w`` from ``x`` and the gradient of ``y``.

    The operands are "x", "w" (written), "y".
    """
    with _Builder(geometry, handle, alignments, library) as build:
        x, w, y = build.operand("x"), build.operand("w"), build.operand("y")
        build.convolve(ConvolutionBackwardFilter, x, w, y)
        return build.finish("backward_weights")


class _Builder:
    """Makes the descriptors of one graph. What was made goes when the making fails."""

    def __init__(
        self,
        geometry: Geometry,
        handle: Handle | None,
        alignments: Mapping[str, int] | None,
        library: Library | None,
    ) -> None:
        self._geometry = geometry = geometry.of_rank_two()
        self._layouts = {"x": geometry.x, "w": geometry.w, "y": geometry.y}
        self._channels_last = geometry.channels_last
        self._compute = COMPUTE[geometry.dtype]
        self._handle = handle
        self._alignments = alignments or {}
        self._library = load() if library is None else library
        self._operands: list[str] = []
        self._operations: list[GraphOperation] = []
        self._virtuals = 0
        self._made = ExitStack()

    def __enter__(self) -> _Builder:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None:
            self._made.close()

    def operand(self, name: str, layout: Layout | None = None) -> Tensor:
        given = self._layouts[name] if layout is None else layout
        if name == "w" and not is_dense(given):
            limit = (
                f"takes filters without gaps; w {list(given.shape)} has strides "
                f"{list(given.strides)}"
            )
            raise UnsupportedError("cuDNN", self._library.version_text, limit)
        self._operands.append(name)
        alignment = self._alignments.get(name, ALIGNMENT)
        return self._tensor(UIDS[name], self._geometry.dtype, given, alignment=alignment)

    def bias(self, out: str) -> Tensor:
        """One number for each channel of the operand ``out``."""
        shape = self._layouts[out].shape
        ones = [1] * (len(shape) - 2)
        return self.operand("bias", Layout.packed((1, shape[1], *ones)))

    def virtual(self, out: str) -> Tensor:
        """A tensor between two operations, of the shape of the operand ``out``."""
        self._virtuals += 1
        uid = _FIRST_VIRTUAL + self._virtuals
        return self._tensor(uid, self._compute, self._layouts[out], virtual=True)

    def _tensor(self, uid: int, dtype: str, layout: Layout, **keywords: Any) -> Tensor:
        shape, strides = canonical(layout, self._channels_last)
        return self._make(Tensor, uid, dtype, shape, strides, **keywords)

    def _make(self, kind: Callable[..., D], *arguments: Any, **keywords: Any) -> D:
        made = kind(*arguments, library=self._library, **keywords)
        self._made.enter_context(made)
        return made

    def fused(
        self,
        convolve: Callable[[Tensor], None],
        name: str,
        out: Tensor,
        bias: bool,
        residual: Layout | None,
        alpha: float,
        relu: bool,
    ) -> ConvolutionGraph:
        """The graph of a convolution into ``out`` by way of what is fused to it."""
        steps: list[Callable[[Tensor, Tensor], None]] = []
        if residual is not None:
            added = self._residual(name, residual, alpha)
            steps.append(lambda x, y: self.pointwise("add", x, y, added, alpha))
        if bias:
            row = self.bias(name)
            steps.append(lambda x, y: self.pointwise("add", x, y, row))
        if relu:
            steps.append(lambda x, y: self.pointwise("relu", x, y))
        path = [*(self.virtual(name) for _ in steps), out]
        convolve(path[0])
        for step, (x, y) in zip(steps, pairwise(path), strict=True):
            step(x, y)
        return self.finish("forward" if name == "y" else "backward_data")

    def _residual(self, out: str, residual: Layout, alpha: float) -> Tensor:
        layout = residual if len(residual.shape) > 3 else with_height(residual)
        if layout.shape != self._layouts[out].shape:
            raise ValueError(
                f"residual must have the shape of the output, {list(self._layouts[out].shape)}; "
                f"got {list(layout.shape)}"
            )
        return self.operand("residual", layout)

    def convolve(
        self,
        operation: type[ConvolutionForward | ConvolutionBackwardData | ConvolutionBackwardFilter],
        x: Tensor,
        w: Tensor,
        y: Tensor,
    ) -> None:
        geometry = self._geometry
        steps = geometry.stride, geometry.padding, geometry.dilation
        convolution = self._make(Convolution, self._compute, *steps)
        self._operations.append(self._make(operation, convolution, x, w, y))

    def pointwise(
        self, mode: str, x: Tensor, y: Tensor, b: Tensor | None = None, alpha: float | None = None
    ) -> None:
        how = self._make(Pointwise, mode, self._compute)
        self._operations.append(self._make(PointwiseOperation, how, x, y, b, alpha2=alpha))

    def finish(self, operation: str) -> ConvolutionGraph:
        graph = OperationGraph(self._operations, self._handle, library=self._library)
        operands = tuple(self._operands)
        uids = tuple(UIDS[name] for name in operands)
        return ConvolutionGraph(
            *(graph, operands, uids, self._geometry.dtype),
            *(operation, self._channels_last, len(self._operations) > 1),
            self._geometry.w.shape[2:],
        )
