"""RNNs and convolutions by cuDNN, MIOpen and own CUDA kernels; RNNs by Vulkan; a NumPy reference.

Importing loads neither a vendor's library nor CuPy; names are resolved on first use, so that
`RNNSpec` and `weight_layout` need no NumPy either. So are `dnnffi.torch`, `dnnffi.jax`,
`dnnffi.testing`, `dnnffi.foreign` and `dnnffi.typing`, which need no import of their own.
``os.fork`` waits for another thread that resolves a name.
"""

from __future__ import annotations

from importlib import import_module

from dnnffi.importing import import_lock

TYPE_CHECKING = False  # as type checkers know it; typing takes as long to import as all else here
if TYPE_CHECKING:
    from typing import Any

    from dnnffi import foreign as foreign
    from dnnffi import jax as jax
    from dnnffi import testing as testing
    from dnnffi import torch as torch
    from dnnffi import typing as typing
    from dnnffi.convolution.functions import conv as conv
    from dnnffi.convolution.functions import conv_backward_bias as conv_backward_bias
    from dnnffi.convolution.functions import conv_backward_data as conv_backward_data
    from dnnffi.convolution.functions import conv_backward_weights as conv_backward_weights
    from dnnffi.convolution.functions import conv_transpose as conv_transpose
    from dnnffi.convolution.functions import (
        conv_transpose_backward_data as conv_transpose_backward_data,
    )
    from dnnffi.convolution.functions import (
        conv_transpose_backward_weights as conv_transpose_backward_weights,
    )
    from dnnffi.convolution.plan import ConvPlan as ConvPlan
    from dnnffi.dropout import DropoutState as DropoutState
    from dnnffi.errors import CaptureError as CaptureError
    from dnnffi.errors import CompileError as CompileError
    from dnnffi.errors import ContextError as ContextError
    from dnnffi.errors import CublasError as CublasError
    from dnnffi.errors import CudaError as CudaError
    from dnnffi.errors import CudnnError as CudnnError
    from dnnffi.errors import DnnffiError as DnnffiError
    from dnnffi.errors import LibraryNotFoundError as LibraryNotFoundError
    from dnnffi.errors import MiopenError as MiopenError
    from dnnffi.errors import PerformanceWarning as PerformanceWarning
    from dnnffi.errors import UnsupportedError as UnsupportedError
    from dnnffi.errors import ValidationError as ValidationError
    from dnnffi.errors import VulkanError as VulkanError
    from dnnffi.matrices import matmul as matmul
    from dnnffi.plans import cached_plans as cached_plans
    from dnnffi.plans import clear_plans as clear_plans
    from dnnffi.plans import held_memory as held_memory
    from dnnffi.rnn.backend import HeldMemory as HeldMemory
    from dnnffi.rnn.functions import gru as gru
    from dnnffi.rnn.functions import gru_forward as gru_forward
    from dnnffi.rnn.functions import lstm as lstm
    from dnnffi.rnn.functions import lstm_forward as lstm_forward
    from dnnffi.rnn.functions import rnn_relu as rnn_relu
    from dnnffi.rnn.functions import rnn_relu_forward as rnn_relu_forward
    from dnnffi.rnn.functions import rnn_tanh as rnn_tanh
    from dnnffi.rnn.functions import rnn_tanh_forward as rnn_tanh_forward
    from dnnffi.rnn.gradients import Gradients as Gradients
    from dnnffi.rnn.gradients import RNNContext as RNNContext
    from dnnffi.rnn.packed import PackedRNN as PackedRNN
    from dnnffi.rnn.packed import load_rnn as load_rnn
    from dnnffi.rnn.packed import pack_rnn as pack_rnn
    from dnnffi.rnn.plan import RNNPlan as RNNPlan
    from dnnffi.rnn.steps import gru_step as gru_step
    from dnnffi.rnn.steps import lstm_step as lstm_step
    from dnnffi.rnn.steps import rnn_relu_step as rnn_relu_step
    from dnnffi.rnn.steps import rnn_tanh_step as rnn_tanh_step
    from dnnffi.rnn.stream import RNNStream as RNNStream
    from dnnffi.spec.conv import ConvSpec as ConvSpec
    from dnnffi.spec.conv_problem import ConvProblem as ConvProblem
    from dnnffi.spec.problem import RNNProblem as RNNProblem
    from dnnffi.spec.rnn import RNNSpec as RNNSpec
    from dnnffi.spec.weights import Parameter as Parameter
    from dnnffi.spec.weights import WeightLayout as WeightLayout
    from dnnffi.spec.weights import weight_layout as weight_layout
    from dnnffi.weights import RNNWeights as RNNWeights

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
        "CaptureError",
        "CompileError",
        "ContextError",
        "CublasError",
        "CudaError",
        "CudnnError",
        "DnnffiError",
        "LibraryNotFoundError",
        "MiopenError",
        "PerformanceWarning",
        "UnsupportedError",
        "ValidationError",
        "VulkanError",
    ),
    "dnnffi.rnn.backend": ("HeldMemory",),
    "dnnffi.matrices": ("matmul",),
    "dnnffi.plans": ("cached_plans", "clear_plans", "held_memory"),
    "dnnffi.rnn.gradients": ("Gradients", "RNNContext"),
    "dnnffi.rnn.functions": (
        "gru",
        "gru_forward",
        "lstm",
        "lstm_forward",
        "rnn_relu",
        "rnn_relu_forward",
        "rnn_tanh",
        "rnn_tanh_forward",
    ),
    "dnnffi.rnn.packed": ("PackedRNN", "load_rnn", "pack_rnn"),
    "dnnffi.rnn.plan": ("RNNPlan",),
    "dnnffi.rnn.steps": ("gru_step", "lstm_step", "rnn_relu_step", "rnn_tanh_step"),
    "dnnffi.rnn.stream": ("RNNStream",),
    "dnnffi.spec.conv": ("ConvSpec",),
    "dnnffi.spec.conv_problem": ("ConvProblem",),
    "dnnffi.spec.problem": ("RNNProblem",),
    "dnnffi.spec.rnn": ("RNNSpec",),
    "dnnffi.spec.weights": ("Parameter", "WeightLayout", "weight_layout"),
    "dnnffi.weights": ("RNNWeights",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOME)

_PACKAGES = ("foreign", "jax", "testing", "torch", "typing")
"""Modules that are attributes of this one, but not part of ``from dnnffi import *``."""


if not TYPE_CHECKING:  # or no mistyped name would be one to a type checker

    def __getattr__(name: str) -> Any:
        with import_lock:
            if name in _PACKAGES:
                try:
                    return import_module(f"dnnffi.{name}")
                except ImportError as error:
                    # Who looks at all that `dir` lists expects no other error.
                    raise AttributeError(f"dnnffi.{name} cannot be imported: {error}") from error
            if name not in _HOME:
                meant = ""
                if not name.startswith("_"):
                    from dnnffi.other_names import hint

                    meant = hint(name, (*_HOME, *_PACKAGES))
                raise AttributeError(f"module 'dnnffi' has no attribute {name!r}{meant}")
            value = getattr(import_module(_HOME[name]), name)
            from dnnffi.annotations import show_annotations

            show_annotations(value)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    special = (name for name in globals() if name.startswith("__"))
    return sorted({*special, *_HOME, *_PACKAGES})  # not the modules that others import
