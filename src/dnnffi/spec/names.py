"""Types of what a caller may pass: modes, dtypes, backends and option values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol, SupportsIndex

Mode = Literal["lstm", "gru", "rnn_tanh", "rnn_relu"]
DType = Literal["float16", "bfloat16", "float32", "float64"]

BackendName = Literal["cudnn", "miopen", "vulkan", "reference"]
LayoutName = Literal["cudnn", "miopen", "torch"]
"""Layout of a flat weight buffer: a vendor's, or PyTorch's arrays one after the other."""

CudnnAlgorithm = Literal[
    "standard", "persist_static", "persist_dynamic", "persist_static_small_h", "own"
]
MiopenAlgorithm = Literal["default", "fundamental"]
VulkanAlgorithm = Literal["stepwise", "persistent"]
Algorithm = Literal["auto", CudnnAlgorithm, MiopenAlgorithm, VulkanAlgorithm]
Math = Literal["default", "strict", "fast"]
ClipNan = Literal["propagate", "clip"]
Tune = Literal["auto", "off", "now"]

GradientName = Literal["x", "hx", "weights", "reset_to"]

Activation = Literal["relu"]
Operation = Literal["forward", "backward_data", "backward_weights"]
MemoryLayout = Literal["channels_first", "channels_last"]


class DTypeObject(Protocol):
    """A dtype of NumPy, ml_dtypes or PyTorch."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""


DTypeLike = DType | DTypeObject | type[Any]
"""A dtype by its name, or as a library has it: its dtype, or its scalar type."""


class Integers(Protocol):
    """Integers in order, on the host: a list, a tuple, an array of NumPy."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[SupportsIndex]: ...

    def __getitem__(self, index: int, /) -> Any: ...
