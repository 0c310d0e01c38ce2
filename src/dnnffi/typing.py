"""Types for annotations of code that calls dnnffi: names that it takes, options, arrays."""

from dnnffi.device.interface import ComputingArray
from dnnffi.spec.conv_options import ConvOptionsDict
from dnnffi.spec.names import (
    Activation,
    Algorithm,
    BackendName,
    DType,
    DTypeLike,
    Integers,
    LayoutName,
    MemoryLayout,
    Mode,
    Operation,
)
from dnnffi.spec.options import RNNOptionsDict

__all__ = [
    "Activation",
    "Algorithm",
    "BackendName",
    "ComputingArray",
    "ConvOptionsDict",
    "DType",
    "DTypeLike",
    "Integers",
    "LayoutName",
    "MemoryLayout",
    "Mode",
    "Operation",
    "RNNOptionsDict",
]
