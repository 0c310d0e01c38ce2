"""Operations on tensors and what they are set to: convolution and pointwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dnnffi.backends.cudnn.graph.attributes import (
    CONVOLUTION_MODE,
    DATA_TYPE,
    DESCRIPTOR,
    DOUBLE,
    FLOAT,
    INT64,
    POINTWISE_MODE,
    Attribute,
    attribute,
    table,
)
from dnnffi.backends.cudnn.graph.descriptor import BackendDescriptor
from dnnffi.backends.cudnn.graph.tensor import Tensor
from dnnffi.backends.cudnn.graph.types import POINTWISE_MODES
from dnnffi.backends.cudnn.library import DATA_TYPES, Library
from dnnffi.backends.vendor.descriptors.checks import data_type, integers
from dnnffi.spec.checks import check_choice


class Convolution(BackendDescriptor):
    """The movement of a filter: stride, dilation and padding of each spatial dimension.

    ``dtype`` is what it computes in. ``padding`` is at both ends of each dimension. The filter is
    not flipped: to cuDNN that is a cross-correlation.

    Raises ``ValueError`` or ``TypeError`` naming the argument; `CudnnError`.
    """

    _kind = "CONVOLUTION"
    attributes = table(
        dtype=attribute("CONVOLUTION_COMP_TYPE", DATA_TYPE),
        # cuDNN 9.19 returns it only if it is called a data type.
        mode=attribute("CONVOLUTION_CONV_MODE", CONVOLUTION_MODE, readable=False),
        spatial_dims=attribute("CONVOLUTION_SPATIAL_DIMS", INT64),
        stride=attribute("CONVOLUTION_FILTER_STRIDES", INT64, many=True),
        dilation=attribute("CONVOLUTION_DILATIONS", INT64, many=True),
        padding=attribute("CONVOLUTION_PRE_PADDINGS", INT64, many=True),
        post_padding=attribute("CONVOLUTION_POST_PADDINGS", INT64, many=True),
    )

    def __init__(
        self,
        dtype: str,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        *,
        library: Library | None = None,
    ) -> None:
        stride = _steps("stride", stride, 1)
        rank = len(stride)
        if not 1 <= rank <= 3:
            raise ValueError(f"stride must have 1 to 3 spatial dimensions; got {list(stride)}")
        padding = _steps("padding", padding, 0, rank)
        self.dtype = data_type("dtype", dtype, DATA_TYPES)
        values = {
            "dtype": self.dtype,
            "mode": "cross_correlation",
            "spatial_dims": rank,
            "stride": stride,
            "dilation": _steps("dilation", dilation, 1, rank),
            "padding": padding,
            "post_padding": padding,
        }
        super().__init__(library, values)


def _steps(name: str, given: object, least: int, rank: int | None = None) -> tuple[int, ...]:
    values = integers(name, given, least)
    if rank is not None and len(values) != rank:
        raise ValueError(
            f"{name} must have one entry for each of the {rank} spatial dimensions of stride; "
            f"got {list(values)}"
        )
    return values


class Pointwise(BackendDescriptor):
    """A function of single elements: "add" or "relu", computed in ``dtype``.

    The library does not give these attributes back (seen on 9.19).

    Raises ``ValueError`` naming the argument; `CudnnError`.
    """

    _kind = "POINTWISE"
    attributes = table(
        mode=attribute("POINTWISE_MODE", POINTWISE_MODE, readable=False),
        dtype=attribute("POINTWISE_MATH_PREC", DATA_TYPE, readable=False),
    )

    def __init__(self, mode: str, dtype: str, *, library: Library | None = None) -> None:
        # cuDNN does not give it back.
        self.dtype = data_type("dtype", dtype, DATA_TYPES)
        super().__init__(
            library, {"mode": check_choice("mode", mode, POINTWISE_MODES), "dtype": self.dtype}
        )


class GraphOperation(BackendDescriptor):
    """Base of the nodes of an operation graph."""

    _attributes_of_float64: ClassVar[Mapping[str, Attribute]]
    """The attributes of an operation that computes in float64.

    A scale is passed as what the operation computes in. cuDNN 9.19 takes a float for a float64 one,
    too, and then computes with whatever number its bits are as a double.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls._kind:
            cls._attributes_of_float64 = table(
                **{
                    name: one._replace(elements=DOUBLE) if one.elements is FLOAT else one
                    for name, one in cls.attributes.items()
                }
            )

    def __init__(self, dtype: str, library: Library | None, values: Mapping[str, Any]) -> None:
        """Set the values of an operation that computes in ``dtype``."""
        if dtype == "float64":
            self.attributes = self._attributes_of_float64  # type: ignore[misc]
        super().__init__(library, values)


def _convolution(prefix: str, x: str, w: str, y: str) -> Mapping[str, Attribute]:
    prefix = f"OPERATION_CONVOLUTION_{prefix}"
    return table(
        alpha=attribute(f"{prefix}_ALPHA", FLOAT),
        beta=attribute(f"{prefix}_BETA", FLOAT),
        convolution=attribute(f"{prefix}_CONV_DESC", DESCRIPTOR, readable=False),
        x=attribute(f"{prefix}_{x}", DESCRIPTOR, readable=False),
        w=attribute(f"{prefix}_{w}", DESCRIPTOR, readable=False),
        y=attribute(f"{prefix}_{y}", DESCRIPTOR, readable=False),
    )


class ConvolutionOperation(GraphOperation):
    """Base of the three convolutions. ``x``, ``w``, ``y`` are the tensors or their gradients.

    ``x`` is [N, G*C, ...], ``w`` [G*K, C, ...] and ``y`` [N, G*K, ...] with the spatial dimensions
    of ``convolution``: the number of groups G follows from the channels. Raises `CudnnError` where
    the shapes do not fit together, which cuDNN itself checks.
    """

    def __init__(
        self,
        convolution: Convolution,
        x: Tensor,
        w: Tensor,
        y: Tensor,
        *,
        library: Library | None = None,
    ) -> None:
        values = {"alpha": 1.0, "beta": 0.0, "convolution": convolution, "x": x, "w": w, "y": y}
        super().__init__(convolution.dtype, library, values)


class ConvolutionForward(ConvolutionOperation):
    """``y = conv(x, w)``."""

    _kind = "OPERATION_CONVOLUTION_FORWARD"
    attributes = _convolution("FORWARD", "X", "W", "Y")


class ConvolutionBackwardData(ConvolutionOperation):
    """``x``, the gradient of the data, from the gradient ``y``."""

    _kind = "OPERATION_CONVOLUTION_BACKWARD_DATA"
    attributes = _convolution("BWD_DATA", "DX", "W", "DY")


class ConvolutionBackwardFilter(ConvolutionOperation):
    """``w``, the gradient of the filter, from ``x`` and the gradient ``y``."""

    _kind = "OPERATION_CONVOLUTION_BACKWARD_FILTER"
    attributes = _convolution("BWD_FILTER", "X", "DW", "DY")


class PointwiseOperation(GraphOperation):
    """``y = f(x)``, or ``y = f(x, scale * b)`` with ``b`` broadcast to ``y``.

    Raises ``ValueError`` where the shapes do not fit together, which cuDNN 9.19 does not notice.
    """

    _kind = "OPERATION_POINTWISE"
    attributes = table(
        pointwise=attribute("OPERATION_POINTWISE_PW_DESCRIPTOR", DESCRIPTOR, readable=False),
        x=attribute("OPERATION_POINTWISE_XDESC", DESCRIPTOR, readable=False),
        b=attribute("OPERATION_POINTWISE_BDESC", DESCRIPTOR, readable=False),
        y=attribute("OPERATION_POINTWISE_YDESC", DESCRIPTOR, readable=False),
        scale=attribute("OPERATION_POINTWISE_ALPHA2", FLOAT, readable=False),
    )

    def __init__(
        self,
        pointwise: Pointwise,
        x: Tensor,
        y: Tensor,
        b: Tensor | None = None,
        scale: float | None = None,
        *,
        library: Library | None = None,
    ) -> None:
        out = y.dims
        for name, tensor in (("x", x), ("b", b)):
            if tensor is not None:
                _check_broadcast(name, tensor.dims, out)
        values = {"pointwise": pointwise, "x": x, "b": b, "y": y, "scale": scale}
        super().__init__(pointwise.dtype, library, values)


def _check_broadcast(name: str, dims: tuple[int, ...], to: tuple[int, ...]) -> None:
    fits = len(dims) == len(to) and all(a in (1, b) for a, b in zip(dims, to, strict=True))
    if not fits:
        raise ValueError(f"{name}: {list(dims)} does not broadcast to {list(to)}")
