"""The base class of all vendors' descriptors: ownership, calls by name, comparison."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.backends.vendor.resource import Resource


class Descriptor(Resource, ABC):
    """Base of the descriptors of a vendor, whose base names ``_loaded``.

    ``_loaded`` gives the vendor's library of this process, ``_kind`` is the part of the vendor's
    names that tells its descriptors apart. ``set`` checks its arguments first: a live descriptor
    keeps what it held when they are refused.
    """

    _loaded: ClassVar[staticmethod[[], VendorLibrary]]
    _kind: ClassVar[str]

    def __init__(self, library: VendorLibrary | None, *values: Any) -> None:
        """Create it and set it to ``values``, which were checked; destroy it if that fails."""
        self.library = library = self._loaded() if library is None else library
        prefix, name = library.prefix, f"{self._kind}Descriptor"
        out = library.ffi.new(f"{prefix}{name}_t *")
        super().__init__(library, f"{prefix}Create{name}", f"{prefix}Destroy{name}", out)
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
        """Return the parameters that the library holds, as a named tuple."""

    def _call(self, function: str, *arguments: Any, problem: object = "") -> None:
        self.library.call(function, *arguments, problem=problem)

    def _compared(self) -> object:
        """Return the values that two equal descriptors have in common."""
        return self.read()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self._compared() == other._compared()

    def __repr__(self) -> str:
        held = "closed" if self.closed else self.read()
        return f"<{type(self).__name__} {held}>"
