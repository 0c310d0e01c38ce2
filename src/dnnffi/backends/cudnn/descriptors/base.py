"""What all descriptors share: ownership, calls by name, comparison."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.library import Library, load
from dnnffi.backends.resource import Resource


class Descriptor(Resource, ABC):
    """Base of the descriptors. ``_kind`` is the part of cuDNN's names that tells them apart.

    ``set`` checks its arguments first: a live descriptor keeps what it held when they are refused.
    What cuDNN itself refuses may leave a tensor or filter descriptor half written; RNN and RNN data
    descriptors keep what they held (seen on 8.9.7, 9.19 and 9.28).
    """

    _kind: ClassVar[str]

    def __init__(self, library: Library | None, *values: Any) -> None:
        """Create it and set it to ``values``, which were checked; destroy it if that fails."""
        self.library = library = load() if library is None else library
        out = ffi.new(f"cudnn{self._kind}Descriptor_t *")

        def create() -> Any:
            self._call(f"cudnnCreate{self._kind}Descriptor", out)
            return out[0]

        super().__init__(create, getattr(library.lib, f"cudnnDestroy{self._kind}Descriptor"))
        try:
            self._set(*values)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _set(self, *args: Any, **kwargs: Any) -> None:
        """Pass values that were checked to the library."""

    @abstractmethod
    def read(self) -> Any:
        """What the library holds, as a named tuple."""

    def _call(self, function: str, *arguments: Any, problem: object = "") -> None:
        library = self.library
        library.check(getattr(library.lib, function)(*arguments), function, problem)

    def _compared(self) -> object:
        """What two equal descriptors have in common."""
        return self.read()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self._compared() == other._compared()

    def __repr__(self) -> str:
        held = "closed" if self.closed else self.read()
        return f"<{type(self).__name__} {held}>"
