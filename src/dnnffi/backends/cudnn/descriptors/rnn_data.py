"""The RNN data descriptor: the sequences of a batch, packed or padded."""

from __future__ import annotations

from typing import Any

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.descriptors.base import Descriptor
from dnnffi.backends.cudnn.library import DATA_TYPES, LAYOUTS
from dnnffi.backends.vendor.descriptors.sequences import RNNDataInfo, SequenceDescriptor

MAX_STEPS = 65535
"""cuDNN refuses RNN data descriptors of more steps (seen on 8.9.7, 9.19 and 9.28)."""


class RNNDataDescriptor(Descriptor, SequenceDescriptor):
    """``cudnnRNNDataDescriptor_t``: the sequences of ``x`` or ``y``.

    ``layout`` is "packed" ([sum(lengths), .], lengths descending, the first one T),
    "sequence_major" ([T, B, .]) or "batch_major" ([B, T, .]); the latter two are padded, with
    lengths in any order. ``lengths`` has one entry a row, each from 1 to ``steps``. Padding in
    outputs is filled with zeros.

    Raises ``ValueError`` or ``TypeError`` naming the argument; `UnsupportedError` above 65,535
    steps, which is where cuDNN's own limit lies.
    """

    _kind = "RNNData"
    _data_types = DATA_TYPES
    _layouts = LAYOUTS
    _layout_type = "cudnnRNNDataLayout_t"
    _function_suffix = "RNNDataDescriptor"

    def _set(self, info: RNNDataInfo) -> None:
        if info.steps > MAX_STEPS:
            raise self.library.unsupported(
                f"an RNN takes at most {MAX_STEPS} time steps; got {info.steps}"
            )
        super()._set(info)

    def _padding(self) -> Any:
        return ffi.new("double *", 0.0)  # eight zero bytes are zero in every data type
