"""The descriptor of sequences, for MIOpen's newer RNN functions."""

from __future__ import annotations

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors.base import Descriptor
from dnnffi.backends.miopen.types import LAYOUTS, RNN_DATA_TYPES
from dnnffi.backends.vendor.descriptors.sequences import RNNDataInfo, SequenceDescriptor
from dnnffi.backends.vendor.enumerators import name_of


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

    def _set(self, info: RNNDataInfo) -> None:
        self._call(
            "miopenSetRNNDataSeqTensorDescriptor",
            self.pointer,
            RNN_DATA_TYPES[info.dtype],
            LAYOUTS[info.layout],
            info.steps,
            info.batch,
            info.vector_size,
            info.lengths,
            ffi.NULL,
            problem=f"{info.layout} {info.dtype} sequences, T {info.steps}, B {info.batch}",
        )

    def read(self) -> RNNDataInfo:
        """What was set (``miopenGetRNNDataSeqTensorDescriptor``)."""
        dtype = ffi.new("miopenDataType_t *")
        layout = ffi.new("miopenRNNBaseLayout_t *")
        numbers = [ffi.new("int *") for _ in range(3)]

        def get(count: int) -> tuple[int, ...]:
            lengths = ffi.new("int[]", count)
            self._call(
                "miopenGetRNNDataSeqTensorDescriptor",
                self.pointer,
                dtype,
                layout,
                *numbers,
                count,
                lengths,
                ffi.NULL,
            )
            return tuple(lengths)

        get(0)
        steps, batch, vector_size = (int(number[0]) for number in numbers)
        return RNNDataInfo(
            name_of(RNN_DATA_TYPES, dtype[0]),
            name_of(LAYOUTS, layout[0]),
            steps,
            batch,
            vector_size,
            get(batch),
        )
