"""The graphs of convolution: from shapes, strides and dtype to operations joined by tensors.

``x`` is [N, C, ...], ``w`` [K, C/groups, ...] and ``y`` [N, K, ...], with one to three spatial
dimensions. ``x`` and ``y`` may have gaps, ``w`` not, and none may overlap itself (cuDNN 9.19
refuses that). A transposed convolution is backward data, with its input as ``y`` and its output
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
from dnnffi.backends.cudnn.graph.geometry import Geometry, Layout, canonical, is_dense
from dnnffi.backends.cudnn.graph.operations import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    ConvolutionForward,
    ConvolutionOperation,
    GraphOperation,
    Pointwise,
    PointwiseOperation,
)
from dnnffi.backends.cudnn.graph.tensor import Tensor
from dnnffi.backends.cudnn.library import Library, load
from dnnffi.backends.vendor.handle import Handle
from dnnffi.spec.conv_problem import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD

COMPUTE = MappingProxyType(
    {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
)
"""The type in which each dtype is computed. Tensors inside of a graph have that dtype, too."""

UIDS = MappingProxyType({"x": 1, "w": 2, "y": 3, "residual": 4, "bias": 5})
"""The uid of each operand, in every graph: a gradient has that of what it is the gradient of."""

_FIRST_VIRTUAL = 16

_OPERATIONS: Mapping[str, tuple[type[ConvolutionOperation], str]] = MappingProxyType(
    {
        FORWARD: (ConvolutionForward, "y"),
        BACKWARD_DATA: (ConvolutionBackwardData, "x"),
        BACKWARD_WEIGHTS: (ConvolutionBackwardFilter, "w"),
    }
)
"""The node of each operation, and the operand that it writes."""


class ConvolutionGraph(NamedTuple):
    """A graph, and its operands in the order in which they were made.

    ``operation`` is the convolution in it; ``fused`` whether it is more than that one operation;
    ``kernel`` has the spatial sizes of the weights. ``images`` has the tensors of images by uid,
    each as "x" or "y", the operand whose shape and strides it has.
    """

    graph: OperationGraph
    operands: tuple[str, ...]
    dtype: str
    operation: str
    channels_last: bool
    fused: bool
    kernel: tuple[int, ...]
    images: Mapping[int, str]


def graph_of(
    operation: str,
    geometry: Geometry,
    handle: Handle | None = None,
    *,
    bias: bool = False,
    residual: bool = False,
    alpha: float = 1.0,
    relu: bool = False,
    library: Library | None = None,
) -> ConvolutionGraph:
    """Return the graph of "forward", "backward_data" or "backward_weights".

    It writes ``y = relu(conv(x, w) + alpha * residual + bias)`` with the parts that are asked for,
    or the gradient of ``x`` with the same parts, which are for transposed convolutions, or the
    gradient of ``w`` alone. The operands are "x", "w", "y", then "residual" and "bias" where there
    are any: the former has the layout of what is written, the latter one number for each of its
    channels. Raises ``ValueError``, `UnsupportedError`, `CudnnError`.
    """
    kind, result = _OPERATIONS[operation]
    with _Builder(geometry, result, handle, library) as build:
        tensors = {name: build.operand(name) for name in ("x", "w", "y")}
        steps: list[tuple[str, Tensor | None, float | None]] = []
        if residual:
            steps.append(("add", build.operand("residual"), alpha))
        if bias:
            steps.append(("add", build.operand("bias"), None))
        if relu:
            steps.append(("relu", None, None))
        path = [*(build.virtual() for _ in steps), tensors[result]]
        tensors[result] = path[0]
        build.convolve(kind, **tensors)
        for (mode, added, scale), (x, y) in zip(steps, pairwise(path), strict=True):
            build.pointwise(mode, x, y, added, scale)
        return build.finish(operation)


class _Builder:
    """Makes the descriptors of one graph. What was made goes when the making fails."""

    def __init__(
        self, geometry: Geometry, result: str, handle: Handle | None, library: Library | None
    ) -> None:
        self._geometry = geometry = geometry.of_rank_two()
        self._written = result
        self._result: Layout = getattr(geometry, result)
        channels, *sizes = self._result.shape[1:]
        self._layouts = {
            "x": geometry.x,
            "w": geometry.w,
            "y": geometry.y,
            "residual": self._result,
            "bias": Layout.packed((1, channels, *(1 for _ in sizes))),
        }
        self._channels_last = geometry.channels_last
        self._compute = COMPUTE[geometry.dtype]
        self._handle = handle
        self._library = load() if library is None else library
        self._operands: list[str] = []
        self._images: dict[int, str] = {}
        self._operations: list[GraphOperation] = []
        self._virtuals = 0
        self._made = ExitStack()

    def __enter__(self) -> _Builder:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None:
            self._made.close()

    def operand(self, name: str) -> Tensor:
        layout = self._layouts[name]
        if name == "w" and not is_dense(layout):
            raise self._library.unsupported(
                f"takes filters without gaps; w {list(layout.shape)} has strides "
                f"{list(layout.strides)}"
            )
        self._operands.append(name)
        uid = UIDS[name]
        if name in ("x", "y", "residual"):
            self._images[uid] = self._written if name == "residual" else name
        return self._tensor(uid, self._geometry.dtype, layout)

    def virtual(self) -> Tensor:
        """Return a tensor between two operations, of the shape of the result."""
        self._virtuals += 1
        uid = _FIRST_VIRTUAL + self._virtuals
        self._images[uid] = self._written
        return self._tensor(uid, self._compute, self._result, virtual=True)

    def _tensor(self, uid: int, dtype: str, layout: Layout, *, virtual: bool = False) -> Tensor:
        shape, strides = canonical(layout, self._channels_last)
        return self._make(Tensor, uid, dtype, shape, strides, virtual=virtual)

    def _make(self, kind: Callable[..., D], *arguments: Any, **keywords: Any) -> D:
        made = kind(*arguments, library=self._library, **keywords)
        self._made.enter_context(made)
        return made

    def convolve(
        self, operation: type[ConvolutionOperation], x: Tensor, w: Tensor, y: Tensor
    ) -> None:
        geometry = self._geometry
        steps = geometry.stride, geometry.padding, geometry.dilation
        convolution = self._make(Convolution, self._compute, *steps)
        self._operations.append(self._make(operation, convolution, x, w, y))

    def pointwise(
        self, mode: str, x: Tensor, y: Tensor, b: Tensor | None, scale: float | None
    ) -> None:
        how = self._make(Pointwise, mode, self._compute)
        self._operations.append(self._make(PointwiseOperation, how, x, y, b, scale))

    def finish(self, operation: str) -> ConvolutionGraph:
        graph = OperationGraph(self._operations, self._handle, library=self._library)
        return ConvolutionGraph(
            *(graph, tuple(self._operands), self._geometry.dtype),
            *(operation, self._channels_last, len(self._operations) > 1),
            self._geometry.w.shape[2:],
            self._images,
        )
