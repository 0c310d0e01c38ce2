"""The gradient of a bias by MIOpen, where no array library computes it."""

from __future__ import annotations

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.canonical import channel_matrix
from dnnffi.backends.miopen.conv_limits import BIAS_GRADIENT
from dnnffi.backends.miopen.descriptors import TensorDescriptor
from dnnffi.backends.miopen.library import Library
from dnnffi.backends.vendor.limits import check_limits
from dnnffi.device.interface import Launch

_ZERO, _ONE = ffi.new("float *", 0.0), ffi.new("float *", 1.0)


class MiopenBiasGradient:
    """The sum of dy [N, K, ...], contiguous, over all but its channels: [K].

    It stands on ``miopenConvolutionBackwardBias``, which reads channels last wrongly (3.4.0).
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, library: Library) -> None:
        check_limits(BIAS_GRADIENT, dtype, library)
        self._library = library
        self._problem = f"backward of a bias, dy {list(shape)} {dtype}"
        matrix, bias = channel_matrix(shape, channels_last=False)
        self._dy = TensorDescriptor(dtype, matrix, library=library)
        self._dbias = TensorDescriptor(dtype, bias, library=library)

    def run(self, launch: Launch, dy: int, dbias: int) -> None:
        """Enqueue it, on these addresses."""
        self._library.call(
            "miopenConvolutionBackwardBias",
            *(launch.handle, _ONE, self._dy.pointer, dy, _ZERO, self._dbias.pointer, dbias),
            problem=self._problem,
        )
