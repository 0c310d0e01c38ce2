"""Attributes of backend descriptors as data: the number, the elements, and how to pass them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.graph import types
from dnnffi.backends.cudnn.types import DATA_TYPES


def _same(value: Any) -> Any:
    return value


class Elements(NamedTuple):
    """What an attribute is an array of: cuDNN's type, the C type, the way to Python and back."""

    number: int
    ctype: str
    encode: Callable[[Any], Any] = _same
    decode: Callable[[Any], Any] = _same

    def new(self, values: Sequence[Any]) -> Any:
        """A C array of ``values``."""
        if self.encode is _same:
            return ffi.new(self.ctype, values)
        return ffi.new(self.ctype, [self.encode(value) for value in values])


def _enumerators(kind: str, names: Mapping[str, int]) -> Elements:
    """Enumerators by name. One that has none here, as a newer library may give, is its number."""
    known = {number: name for name, number in names.items()}
    return Elements(
        types.ELEMENTS[kind],
        "int[]",
        lambda value: names[value] if isinstance(value, str) else value,
        lambda number: known.get(number, number),
    )


def _pointer(owner: Any) -> Any:
    return owner.pointer


INT64 = Elements(types.ELEMENTS["CUDNN_TYPE_INT64"], "int64_t[]")
BOOLEAN = Elements(types.ELEMENTS["CUDNN_TYPE_BOOLEAN"], "bool[]")
FLOAT = Elements(types.ELEMENTS["CUDNN_TYPE_FLOAT"], "float[]")
DOUBLE = Elements(types.ELEMENTS["CUDNN_TYPE_DOUBLE"], "double[]")
# Addresses cross as integers, as everywhere.
ADDRESS = Elements(types.ELEMENTS["CUDNN_TYPE_VOID_PTR"], "uintptr_t[]")
HANDLE = Elements(types.ELEMENTS["CUDNN_TYPE_HANDLE"], "cudnnHandle_t[]", _pointer)
DESCRIPTOR = Elements(
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
    """The attribute ``CUDNN_ATTR_<name>``."""
    return Attribute(types.ATTRIBUTES[f"CUDNN_ATTR_{name}"], elements, many, readable)


def table(**attributes: Attribute) -> Mapping[str, Attribute]:
    """The attributes of a kind of descriptor by the names that dnnffi uses."""
    return MappingProxyType(attributes)
