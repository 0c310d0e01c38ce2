"""Descriptors of the sequences of a batch, packed or padded, and the checks of their arguments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from dnnffi.backends.vendor.descriptors.base import Descriptor
from dnnffi.backends.vendor.descriptors.checks import data_type
from dnnffi.backends.vendor.library import VendorLibrary, name_of
from dnnffi.spec.checks import check_choice, check_range
from dnnffi.spec.sequences import check_lengths


class RNNDataInfo(NamedTuple):
    """A descriptor of sequences, to set or as read back. ``steps`` is T, which no row exceeds."""

    dtype: str
    layout: str
    steps: int
    batch: int
    vector_size: int
    lengths: Sequence[int]


class SequenceDescriptor(Descriptor):
    """Base of the vendors' descriptors of sequences: arguments, their checks, reading back."""

    _data_types: ClassVar[Mapping[str, int]]
    _layouts: ClassVar[Mapping[str, int]]
    _layout_type: ClassVar[str]  # in C
    _function_suffix: ClassVar[str]  # of the names of the getter and the setter, after Get or Set

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
        info = RNNDataInfo(dtype, layout, steps, batch, vector_size, lengths)
        super().__init__(library, self._checked(info))

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
        info = RNNDataInfo(dtype, layout, steps, batch, vector_size, lengths)
        self._set(self._checked(info))

    def _set(self, info: RNNDataInfo) -> None:
        dtype, layout, *numbers, lengths = info
        self._call(
            f"{self.library.prefix}Set{self._function_suffix}",
            self.pointer,
            self._data_types[dtype],
            self._layouts[layout],
            *numbers,
            lengths,
            self._padding(),
            problem=f"{layout} {dtype} sequences, T {info.steps}, B {info.batch}",
        )

    def read(self) -> RNNDataInfo:
        """Everything but the padding."""
        new, prefix = self.library.ffi.new, self.library.prefix
        dtype, layout = new(f"{prefix}DataType_t *"), new(f"{self._layout_type} *")
        numbers = [new("int *") for _ in range(3)]

        def get(count: int) -> tuple[int, ...]:
            lengths = new("int[]", count)
            self._call(
                f"{prefix}Get{self._function_suffix}",
                *(self.pointer, dtype, layout, *numbers, count, lengths, self._padding()),
            )
            return tuple(lengths)

        get(0)
        steps, batch, vector_size = (int(number[0]) for number in numbers)
        return RNNDataInfo(
            name_of(self._data_types, dtype[0]),
            name_of(self._layouts, layout[0]),
            steps,
            batch,
            vector_size,
            get(batch),
        )

    @abstractmethod
    def _padding(self) -> Any:
        """Return the address of a zero with which the library fills padding, or NULL."""

    @classmethod
    def _checked(cls, given: RNNDataInfo) -> RNNDataInfo:
        steps, batch = check_range("steps", given.steps, 1), check_range("batch", given.batch, 1)
        info = RNNDataInfo(
            data_type("dtype", given.dtype, cls._data_types),
            check_choice("layout", given.layout, cls._layouts),
            steps,
            batch,
            check_range("vector_size", given.vector_size, 1),
            check_lengths(given.lengths, steps, batch, shortest=1),
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
