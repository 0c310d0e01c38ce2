"""Attributes of backend descriptors as data: the number, the elements, and how to pass them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.graph import types
from dnnffi.backends.cudnn.library import DATA_TYPES


def _same(value: Any) -> Any:
    return value


class Elements(NamedTuple):
    """The elements of an attribute: cuDNN's type, the C type, the way to Python and back.

    ``known`` has C arrays of single values that are used again and again. The library only reads
    them, so all threads share them.
    """

    number: int
    ctype: str
    encode: Callable[[Any], Any] = _same
    decode: Callable[[Any], Any] = _same
    known: Mapping[Any, Any] = MappingProxyType({})

    def new(self, values: Sequence[Any]) -> Any:
        """Return a C array of ``values``."""
        if self.encode is _same:
            return ffi.new(self.ctype, values)
        return ffi.new(self.ctype, [self.encode(value) for value in values])

    def one(self, value: Any) -> Any:
        """Return a C array of one value."""
        found = self.known.get(value)
        return self.new((value,)) if found is None else found


def _enumerators(kind: str, names: Mapping[str, int]) -> Elements:
    """Return enumerators by name. A newer library may give others, which are numbers."""
    known = {number: name for name, number in names.items()}
    return Elements(
        types.ELEMENTS[kind],
        "int[]",
        lambda value: names[value] if isinstance(value, str) else value,
        lambda number: known.get(number, number),
        {name: ffi.new("int[]", (number,)) for name, number in names.items()},
    )


class Pointers(Elements):
    """Elements that are native objects, given by their owners."""

    __slots__ = ()

    def one(self, value: Any) -> Any:
        """Return a C array of one pointer, which the owner has already."""
        return value.pointer_array


def _pointer(owner: Any) -> Any:
    return owner.pointer


def _numbers(kind: str, ctype: str, known: Iterable[int]) -> Elements:
    """Numbers that are the same in C and in Python; ``known`` are frequent ones."""
    return Elements(
        types.ELEMENTS[kind],
        ctype,
        known={number: ffi.new(ctype, (number,)) for number in known},
    )


_MAX_KNOWN_INTEGER = 16
"""The integers up to this one are ranks, the alignment, uids of operands and most knobs."""

INT64 = _numbers("CUDNN_TYPE_INT64", "int64_t[]", range(_MAX_KNOWN_INTEGER + 1))
BOOLEAN = _numbers("CUDNN_TYPE_BOOLEAN", "bool[]", (True,))
FLOAT = Elements(types.ELEMENTS["CUDNN_TYPE_FLOAT"], "float[]")
DOUBLE = Elements(types.ELEMENTS["CUDNN_TYPE_DOUBLE"], "double[]")
# Addresses cross as integers, as everywhere.
ADDRESS = Elements(types.ELEMENTS["CUDNN_TYPE_VOID_PTR"], "uintptr_t[]")
HANDLE = Pointers(types.ELEMENTS["CUDNN_TYPE_HANDLE"], "cudnnHandle_t[]", _pointer)
DESCRIPTOR = Pointers(
    types.ELEMENTS["CUDNN_TYPE_BACKEND_DESCRIPTOR"], "cudnnBackendDescriptor_t[]", _pointer
)
DATA_TYPE = _enumerators("CUDNN_TYPE_DATA_TYPE", DATA_TYPES)
CONVOLUTION_MODE = _enumerators("CUDNN_TYPE_CONVOLUTION_MODE", types.CONVOLUTION_MODES)
POINTWISE_MODE = _enumerators("CUDNN_TYPE_POINTWISE_MODE", types.POINTWISE_MODES)
HEURISTIC = _enumerators("CUDNN_TYPE_HEUR_MODE", types.HEURISTICS)
NUMERICAL_NOTE = _enumerators("CUDNN_TYPE_NUMERICAL_NOTE", types.NUMERICAL_NOTES)
BEHAVIOR_NOTE = _enumerators("CUDNN_TYPE_BEHAVIOR_NOTE", types.BEHAVIOR_NOTES)
KNOB = _enumerators("CUDNN_TYPE_KNOB_TYPE", types.KNOBS)


class Attribute(NamedTuple):
    """One attribute of a kind of descriptor."""

    number: int
    elements: Elements
    many: bool = False
    """Whether its value is a sequence."""
    readable: bool = True
    """Whether the library gives it back; what 9.19 refuses to give is not asked for."""


def attribute(
    name: str, elements: Elements, *, many: bool = False, readable: bool = True
) -> Attribute:
    """Return the attribute ``CUDNN_ATTR_<name>``."""
    return Attribute(types.ATTRIBUTES[f"CUDNN_ATTR_{name}"], elements, many, readable)


def table(**attributes: Attribute) -> Mapping[str, Attribute]:
    """Return the attributes of a kind of descriptor by the names that dnnffi uses."""
    return MappingProxyType(attributes)
