"""The descriptor of sequences, for MIOpen's newer RNN functions."""

from __future__ import annotations

from typing import Any

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors.base import Descriptor
from dnnffi.backends.miopen.library import LAYOUTS, RNN_DATA_TYPES
from dnnffi.backends.vendor.descriptors.sequences import SequenceDescriptor


class SeqTensorDescriptor(Descriptor, SequenceDescriptor):
    """``miopenSeqTensorDescriptor_t``: the sequences of ``x`` or ``y``, float16 or float32.

    ``layout`` is "packed" ([sum(lengths), .], lengths descending, the first one T),
    "sequence_major" ([T, B, .]) or "batch_major" ([B, T, .]); the latter two are padded, with
    lengths in any order. ``lengths`` has one entry a row, each from 1 to ``steps``. MIOpen does not
    fill the padding of outputs, and takes lengths above ``steps`` without a word (3.4.0): they are
    checked here.

    Raises ``ValueError`` or ``TypeError`` naming the argument; `MiopenError` from
    ``miopenSetRNNDataSeqTensorDescriptor``.
    """

    _kind = "SeqTensor"
    _data_types = RNN_DATA_TYPES
    _layouts = LAYOUTS
    _layout_type = "miopenRNNBaseLayout_t"
    _function_suffix = "RNNDataSeqTensorDescriptor"

    def _padding(self) -> Any:
        return ffi.NULL
