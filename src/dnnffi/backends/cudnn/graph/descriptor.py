"""The base class of backend descriptors: create, set, finalize and read one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.graph.attributes import Attribute
from dnnffi.backends.cudnn.graph.types import DESCRIPTORS
from dnnffi.backends.cudnn.library import Library, load
from dnnffi.backends.vendor.resource import Resource

D = TypeVar("D", bound="BackendDescriptor")


class _Attempt:
    """An attempt to describe something; its words are made when an error needs them.

    They show what the library holds of other descriptors. It must not be asked for that before it
    was asked for its message.
    """

    def __init__(self, kind: str, values: Mapping[str, Any]) -> None:
        self._kind = kind
        self._values = values

    def __str__(self) -> str:
        # The address of a handle would tell the reader of an error nothing.
        shown = (
            f"{name}={value!r}"
            for name, value in self._values.items()
            if value is not None and name != "handle"
        )
        return f"{self._kind}({', '.join(shown)})"


class BackendDescriptor(Resource):
    """A ``cudnnBackendDescriptor_t`` with the attributes that its class names.

    Finalized when its constructor returns, so it never changes and threads may share it. It keeps
    what its attributes point to alive until it is closed. An attribute or a combination that the
    library refuses raises a `CudnnError` or `UnsupportedError` that names it, and the descriptor
    is destroyed.
    """

    _kind: ClassVar[str] = ""
    """The kind, as in ``CUDNN_BACKEND_<kind>_DESCRIPTOR``; empty in a class that is only a base."""
    attributes: ClassVar[Mapping[str, Attribute]]
    number: ClassVar[int]
    """The enumerator of the kind."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls._kind:
            cls.number = DESCRIPTORS[f"CUDNN_BACKEND_{cls._kind}_DESCRIPTOR"]

    def __init__(self, library: Library | None, values: Mapping[str, Any]) -> None:
        """Set the values that are not None, then finalize."""
        self._create(library)
        try:
            self._set(values)
            status = self.library.lib.cudnnBackendFinalize(self._pointer)
            if status:
                raise self._error(status, "cudnnBackendFinalize", values)
        except BaseException:
            self.close()
            raise
        self._kept: Any = values

    def _create(self, library: Library | None) -> None:
        self.library = library = load() if library is None else library
        out = ffi.new("cudnnBackendDescriptor_t *")
        super().__init__(
            library,
            "cudnnBackendCreateDescriptor",
            "cudnnBackendDestroyDescriptor",
            *(out, self.number, out),
            problem=type(self).__name__,
        )
        self._kept = None

    @classmethod
    def _empty(cls, library: Library, source: BackendDescriptor) -> Self:
        """Return a descriptor for the library to fill from ``source``, which it keeps alive."""
        made = cls.__new__(cls)
        made._create(library)
        made._kept = source
        return made

    def close(self) -> None:
        """Destroy the descriptor and release what it pointed to. A second call does nothing."""
        super().close()
        self._kept = None

    def _set(self, values: Mapping[str, Any]) -> None:
        # A new image size makes a dozen descriptors: no frame for each attribute.
        set_attribute, pointer = self.library.lib.cudnnBackendSetAttribute, self._pointer
        attributes = self.attributes
        for name, value in values.items():
            if value is None:
                continue
            number, elements, many, _ = attributes[name]
            count, array = (len(value), elements.new(value)) if many else (1, elements.one(value))
            status = set_attribute(pointer, number, elements.number, count, array)
            if status:
                raise self._error(status, "cudnnBackendSetAttribute", {name: value})

    @property
    def values(self) -> Mapping[str, Any]:
        """The values by attribute, None where none was set. Not for a closed descriptor."""
        values: Mapping[str, Any] = self._kept
        return values

    def _error(self, status: int, function: str, values: Mapping[str, Any]) -> Exception:
        return self.library.error(status, function, _Attempt(type(self).__name__, values))

    def read(self, name: str) -> Any:
        """Return the value of an attribute in the library: a tuple if it is a sequence."""
        attribute = self.attributes[name]
        elements = attribute.elements
        count = self._get(name, 0, ffi.NULL) if attribute.many else 1
        array = ffi.new(elements.ctype, count)
        count = self._get(name, count, array)
        values = tuple(elements.decode(value) for value in array[0:count])
        return values if attribute.many else values[0]

    def _read_descriptors(self, name: str, cls: type[D], room: int) -> list[D]:
        """Return the descriptors of an attribute, ``room`` at most: the library fills them."""
        made = [cls._empty(self.library, self) for _ in range(room)]
        count = self._get(name, room, self.attributes[name].elements.new(made))
        return made[:count]

    def _get(self, name: str, room: int, array: Any) -> int:
        attribute = self.attributes[name]
        count = ffi.new("int64_t *")
        status = self.library.lib.cudnnBackendGetAttribute(
            self.pointer, attribute.number, attribute.elements.number, room, count, array
        )
        if status:
            problem = f"{type(self).__name__}.{name}"
            raise self.library.error(status, "cudnnBackendGetAttribute", problem)
        return int(count[0])

    def read_all(self) -> dict[str, Any]:
        """Every attribute that can be read and is no pointer, by name."""
        return {
            name: self.read(name)
            for name, attribute in self.attributes.items()
            if attribute.readable
        }

    def __repr__(self) -> str:
        if self.closed:
            return f"<{type(self).__name__} closed>"
        held = (f" {name}={value!r}" for name, value in self.read_all().items())
        return f"<{type(self).__name__}{','.join(held)}>"
