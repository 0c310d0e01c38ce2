"""The activation descriptor."""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors.base import Descriptor
from dnnffi.backends.miopen.library import ACTIVATIONS
from dnnffi.backends.vendor.library import VendorLibrary, name_of
from dnnffi.spec.checks import check_choice, check_number


class ActivationInfo(NamedTuple):
    """An activation and its three parameters, which "relu" does not use."""

    mode: str
    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0


class ActivationDescriptor(Descriptor):
    """``miopenActivationDescriptor_t``.

    Raises ``ValueError`` or ``TypeError`` naming the argument; `MiopenError` from the setter.
    """

    _kind = "Activation"

    def __init__(self, info: ActivationInfo, *, library: VendorLibrary | None = None) -> None:
        super().__init__(library, _check(info))

    def set(self, info: ActivationInfo) -> None:
        """Describe another activation."""
        self._set(_check(info))

    def _set(self, info: ActivationInfo) -> None:
        mode, *parameters = info
        self._call(
            "miopenSetActivationDescriptor",
            self.pointer,
            ACTIVATIONS[mode],
            *parameters,
            problem=info,
        )

    def read(self) -> ActivationInfo:
        """Return the mode and parameters that were set (``miopenGetActivationDescriptor``)."""
        mode = ffi.new("miopenActivationMode_t *")
        numbers = [ffi.new("double *") for _ in range(3)]
        self._call("miopenGetActivationDescriptor", self.pointer, mode, *numbers)
        return ActivationInfo(name_of(ACTIVATIONS, mode[0]), *(number[0] for number in numbers))


def _check(info: ActivationInfo) -> ActivationInfo:
    mode, *parameters = info
    numbers = (check_number(name, n) for name, n in zip(info._fields[1:], parameters, strict=True))
    return ActivationInfo(check_choice("mode", mode, ACTIVATIONS), *numbers)
