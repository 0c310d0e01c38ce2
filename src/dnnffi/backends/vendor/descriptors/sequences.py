"""Descriptors of the sequences of a batch, packed or padded, and the checks of their arguments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, NamedTuple

from dnnffi.backends.vendor.descriptors.base import Descriptor
from dnnffi.backends.vendor.descriptors.checks import choice, data_type, integer
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.spec.sequences import check_lengths


class RNNDataInfo(NamedTuple):
    """The descriptor of sequences read back. ``steps`` is T, which no row exceeds."""

    dtype: str
    layout: str
    steps: int
    batch: int
    vector_size: int
    lengths: tuple[int, ...]


class SequenceDescriptor(Descriptor):
    """The part of a vendor's descriptor of sequences that is not the vendor's."""

    _data_types: ClassVar[Mapping[str, int]]
    _layouts: ClassVar[Mapping[str, int]]

    def __init__(
        self,
        dtype: str,
        layout: str,
        steps: int,
        batch: int,
        vector_size: int,
        lengths: Sequence[int],
        *,
        library: VendorLibrary | None = None,
    ) -> None:
        checked = self._checked(dtype, layout, steps, batch, vector_size, lengths)
        super().__init__(library, checked)

    def set(
        self,
        dtype: str,
        layout: str,
        steps: int,
        batch: int,
        vector_size: int,
        lengths: Sequence[int],
    ) -> None:
        """Describe other sequences."""
        self._set(self._checked(dtype, layout, steps, batch, vector_size, lengths))

    @abstractmethod
    def read(self) -> RNNDataInfo:
        """Everything but the padding."""

    @classmethod
    def _checked(
        cls,
        dtype: str,
        layout: str,
        steps: int,
        batch: int,
        vector_size: int,
        lengths: Sequence[int],
    ) -> RNNDataInfo:
        steps, batch = integer("steps", steps, 1), integer("batch", batch, 1)
        info = RNNDataInfo(
            data_type("dtype", dtype, cls._data_types),
            choice("layout", layout, cls._layouts),
            steps,
            batch,
            integer("vector_size", vector_size, 1),
            check_lengths(lengths, steps, batch),
        )
        if info.layout == "packed":
            if any(after > before for before, after in pairwise(info.lengths)):
                raise ValueError("lengths of packed sequences must be descending")
            if info.lengths[0] != steps:
                raise ValueError(
                    f"steps of packed sequences is the longest length, {info.lengths[0]}; "
                    f"got {steps}"
                )
        return info
