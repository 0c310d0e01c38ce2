"""RNNs of NVIDIA's libcudnn and AMD's libMIOpen, and convolutions, with a NumPy reference.

Importing loads neither a vendor's library nor CuPy; names are resolved on first use, so that
`RNNSpec` and `weight_layout` need no NumPy either.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dnnffi.convolution.functions import (
        conv,
        conv_backward_bias,
        conv_backward_data,
        conv_backward_weights,
        conv_transpose,
        conv_transpose_backward_data,
        conv_transpose_backward_weights,
    )
    from dnnffi.convolution.plan import ConvPlan
    from dnnffi.dropout import DropoutState
    from dnnffi.errors import (
        ContextError,
        CudnnError,
        DnnffiError,
        LibraryNotFoundError,
        MiopenError,
        PerformanceWarning,
        UnsupportedError,
        ValidationError,
    )
    from dnnffi.plans import cached_plans, clear_plans, held_memory
    from dnnffi.rnn.backend import HeldMemory
    from dnnffi.rnn.functions import (
        Gradients,
        RNNContext,
        gru,
        gru_forward,
        lstm,
        lstm_forward,
        rnn_relu,
        rnn_relu_forward,
        rnn_tanh,
        rnn_tanh_forward,
    )
    from dnnffi.rnn.plan import RNNPlan
    from dnnffi.spec.conv import ConvSpec
    from dnnffi.spec.conv_problem import ConvProblem
    from dnnffi.spec.problem import RNNProblem
    from dnnffi.spec.rnn import RNNSpec
    from dnnffi.spec.weights import Parameter, WeightLayout, weight_layout
    from dnnffi.weights import RNNWeights

__version__ = "0.1.0"

_MODULES = {
    "dnnffi.convolution.plan": ("ConvPlan",),
    "dnnffi.convolution.functions": (
        "conv",
        "conv_backward_bias",
        "conv_backward_data",
        "conv_backward_weights",
        "conv_transpose",
        "conv_transpose_backward_data",
        "conv_transpose_backward_weights",
    ),
    "dnnffi.dropout": ("DropoutState",),
    "dnnffi.errors": (
        "ContextError",
        "CudnnError",
        "DnnffiError",
        "LibraryNotFoundError",
        "MiopenError",
        "PerformanceWarning",
        "UnsupportedError",
        "ValidationError",
    ),
    "dnnffi.rnn.backend": ("HeldMemory",),
    "dnnffi.plans": ("cached_plans", "clear_plans", "held_memory"),
    "dnnffi.rnn.functions": (
        "Gradients",
        "RNNContext",
        "gru",
        "gru_forward",
        "lstm",
        "lstm_forward",
        "rnn_relu",
        "rnn_relu_forward",
        "rnn_tanh",
        "rnn_tanh_forward",
    ),
    "dnnffi.rnn.plan": ("RNNPlan",),
    "dnnffi.spec.conv": ("ConvSpec",),
    "dnnffi.spec.conv_problem": ("ConvProblem",),
    "dnnffi.spec.problem": ("RNNProblem",),
    "dnnffi.spec.rnn": ("RNNSpec",),
    "dnnffi.spec.weights": ("Parameter", "WeightLayout", "weight_layout"),
    "dnnffi.weights": ("RNNWeights",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ContextError",
    "ConvPlan",
    "ConvProblem",
    "ConvSpec",
    "CudnnError",
    "DnnffiError",
    "DropoutState",
    "Gradients",
    "HeldMemory",
    "LibraryNotFoundError",
    "MiopenError",
    "Parameter",
    "PerformanceWarning",
    "RNNContext",
    "RNNPlan",
    "RNNProblem",
    "RNNSpec",
    "RNNWeights",
    "UnsupportedError",
    "ValidationError",
    "WeightLayout",
    "cached_plans",
    "clear_plans",
    "conv",
    "conv_backward_bias",
    "conv_backward_data",
    "conv_backward_weights",
    "conv_transpose",
    "conv_transpose_backward_data",
    "conv_transpose_backward_weights",
    "gru",
    "gru_forward",
    "held_memory",
    "lstm",
    "lstm_forward",
    "rnn_relu",
    "rnn_relu_forward",
    "rnn_tanh",
    "rnn_tanh_forward",
    "weight_layout",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dnnffi' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
