"""The elementwise work of an LSTM step and of its derivative, each in one kernel.

With NumPy they are array expressions, with CuPy one kernel each. ``gx`` and ``gh`` [B, 4*H] are the
products of a step, ``bias`` [4*H] the bias that they do not include; the gates are in the order
i f g o. A step has two halves, so that a layer can normalise the cell state between them:

    activate   i f g o from gx + gh + bias, and c = f c_before + i g
    emit       h = o tanh(c)
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from dnnffi.device.interface import NDArray
from dnnffi.reference.cells import sigmoid


class Kernels:
    """The formulas as array expressions. Each function writes to its last arguments."""

    def step(
        self,
        gx: NDArray,
        gh: NDArray,
        bias: NDArray,
        c_before: NDArray,
        gates: NDArray,
        c: NDArray,
        h: NDArray,
    ) -> None:
        """Run `activate` and `emit`."""
        self.activate(gx, gh, bias, c_before, gates, c)
        self.emit(gates, c, h)

    def activate(
        self,
        gx: NDArray,
        gh: NDArray,
        bias: NDArray,
        c_before: NDArray,
        gates: NDArray,
        c: NDArray,
    ) -> None:
        """Compute the gates [B, 4*H] and the cell state [B, H]."""
        gates[...] = gx + gh + bias
        i, f, g, o = np.split(gates, 4, axis=1)
        for gate in (i, f, o):
            gate[...] = sigmoid(np, gate)
        g[...] = np.tanh(g)
        c[...] = f * c_before + i * g

    def emit(self, gates: NDArray, c: NDArray, h: NDArray) -> None:
        """Compute the output [B, H]."""
        o = np.split(gates, 4, axis=1)[3]
        h[...] = o * np.tanh(c)

    def step_backward(
        self,
        gates: NDArray,
        c_before: NDArray,
        c: NDArray,
        dy: NDArray,
        dh: NDArray,
        dc: NDArray,
        d_gates: NDArray,
        dc_before: NDArray,
    ) -> None:
        """Run `emit_backward` and `activate_backward`; ``dc_before`` may be ``dc``."""
        self.emit_backward(gates, c, dy, dh, dc, d_gates, dc_before)
        self.activate_backward(gates, c_before, dc_before, d_gates, dc_before)

    def emit_backward(
        self,
        gates: NDArray,
        c: NDArray,
        dy: NDArray,
        dh: NDArray,
        dc: NDArray,
        d_gates: NDArray,
        d_c: NDArray,
    ) -> None:
        """Compute the gradient of o before its sigmoid, and that of c plus ``dc``."""
        o = np.split(gates, 4, axis=1)[3]
        tanh_c, dh = np.tanh(c), dy + dh
        np.split(d_gates, 4, axis=1)[3][...] = dh * tanh_c * o * (1 - o)
        d_c[...] = dc + dh * o * (1 - tanh_c * tanh_c)

    def activate_backward(
        self,
        gates: NDArray,
        c_before: NDArray,
        dc: NDArray,
        d_gates: NDArray,
        dc_before: NDArray,
    ) -> None:
        """Compute the gradients of i f g before their activations, and that of c_before."""
        i, f, g, _ = np.split(gates, 4, axis=1)
        di, df, dg, _ = np.split(d_gates, 4, axis=1)
        di[...] = dc * g * i * (1 - i)
        df[...] = dc * c_before * f * (1 - f)
        dg[...] = dc * i * (1 - g * g)
        dc_before[...] = dc * f


# C code for one element of [B, H]. A is the type of the computation, T that of the arrays. Casts
# are written as in C, so that a test can compile the code with a C compiler.
_PLACE = """
const long long unit = element % hidden, at = (element / hidden) * 4 * hidden + unit;
"""
_ACTIVATE = """
const A i_ = 1 / (1 + exp(-((A)gx[at] + (A)gh[at] + (A)bias[unit])));
const A f_ = 1 / (1 + exp(-((A)gx[at + hidden] + (A)gh[at + hidden] + (A)bias[unit + hidden])));
const A g_ = tanh((A)gx[at + 2 * hidden] + (A)gh[at + 2 * hidden] + (A)bias[unit + 2 * hidden]);
const A o_ = 1 / (1 + exp(-((A)gx[at + 3 * hidden] + (A)gh[at + 3 * hidden]
                            + (A)bias[unit + 3 * hidden])));
const A c_ = f_ * (A)c_before + i_ * g_;
gates[at] = (T)i_;
gates[at + hidden] = (T)f_;
gates[at + 2 * hidden] = (T)g_;
gates[at + 3 * hidden] = (T)o_;
c = (T)c_;
"""
_EMIT = """
h = (T)(o_ * tanh(c_));
"""
_EMIT_BACKWARD = """
const A o_ = (A)gates[at + 3 * hidden], t_ = tanh((A)c), dh_ = (A)dy + (A)dh;
const A dc_ = (A)dc + dh_ * o_ * (1 - t_ * t_);
d_gates[at + 3 * hidden] = (T)(dh_ * t_ * o_ * (1 - o_));
"""
_ACTIVATE_BACKWARD = """
const A i_ = (A)gates[at], f_ = (A)gates[at + hidden], g_ = (A)gates[at + 2 * hidden];
d_gates[at] = (T)(dc_ * g_ * i_ * (1 - i_));
d_gates[at + hidden] = (T)(dc_ * (A)c_before * f_ * (1 - f_));
d_gates[at + 2 * hidden] = (T)(dc_ * i_ * (1 - g_ * g_));
dc_before = (T)(dc_ * f_);
"""

# By name (inputs, outputs, code). The code indexes "raw" arrays itself; of the others it gets the
# current element. hidden is H.
SOURCES: dict[str, tuple[str, str, str]] = {
    "step": (
        "raw T gx, raw T gh, raw T bias, T c_before, int64 hidden",
        "raw T gates, T c, T h",
        _PLACE + _ACTIVATE + _EMIT,
    ),
    "activate": (
        "raw T gx, raw T gh, raw T bias, T c_before, int64 hidden",
        "raw T gates, T c",
        _PLACE + _ACTIVATE,
    ),
    "emit": (
        "raw T gates, T c, int64 hidden",
        "T h",
        _PLACE + "const A o_ = (A)gates[at + 3 * hidden], c_ = (A)c;" + _EMIT,
    ),
    "step_backward": (
        "raw T gates, T c_before, T c, T dy, T dh, T dc, int64 hidden",
        "raw T d_gates, T dc_before",
        _PLACE + _EMIT_BACKWARD + _ACTIVATE_BACKWARD,
    ),
    "emit_backward": (
        "raw T gates, T c, T dy, T dh, T dc, int64 hidden",
        "raw T d_gates, T d_c",
        _PLACE + _EMIT_BACKWARD + "d_c = (T)dc_;",
    ),
    "activate_backward": (
        "raw T gates, T c_before, T dc, int64 hidden",
        "raw T d_gates, T dc_before",
        _PLACE + "const A dc_ = (A)dc;" + _ACTIVATE_BACKWARD,
    ),
}

_WIDE = """
template <typename T> struct dnnffi_wide { typedef float type; };
template <> struct dnnffi_wide<double> { typedef double type; };
"""


def elementwise(cupy: Any, name: str, inputs: str, outputs: str, text: str) -> Any:
    """Return a CuPy kernel made of C code for one element; A is the type that T is computed in."""
    text = "typedef dnnffi_wide<T>::type A; " + text
    return cupy.ElementwiseKernel(inputs, outputs, text, name, preamble=_WIDE)


def _cupy_kernels(cupy: Any) -> Kernels:
    """Return the formulas as ``cupy.ElementwiseKernel``; float16 is computed in float32."""
    made = Kernels()
    for name, (inputs, outputs, text) in SOURCES.items():
        text = "const long long element = i;" + text
        kernel = elementwise(cupy, f"dnnffi_lstm_{name}", inputs, outputs, text)
        setattr(made, name, _with_hidden(kernel, inputs.count(",")))
    return made


def _with_hidden(kernel: Any, count: int) -> Any:
    # The kernel takes H after the ``count`` input arrays and before the output arrays.
    def call(*arrays: NDArray) -> None:
        # The last array of each kernel is c or h, [B, H].
        kernel(*arrays[:count], arrays[-1].shape[1], *arrays[count:])

    return call


@cache
def kernels(xp: ModuleType) -> Kernels:
    """Return the kernels for arrays of ``xp``, NumPy or CuPy."""
    return Kernels() if xp is np else _cupy_kernels(xp)
