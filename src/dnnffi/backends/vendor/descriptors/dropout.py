"""Base of the vendors' dropout descriptors: arguments, their checks, ownership of the states."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from dnnffi.backends.vendor.descriptors.base import Descriptor
from dnnffi.backends.vendor.handle import Handle
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.device.interface import Array
from dnnffi.spec.checks import check_range
from dnnffi.spec.problem import check_dropout


class DropoutInfo(NamedTuple):
    """A dropout descriptor to set or as read back; ``states`` is a device address."""

    dropout: float
    states: int
    seed: int


class DropoutDescriptor(Descriptor):
    """Base of the dropout descriptors: a probability, and the states of its random numbers.

    ``states`` is a device buffer, which the descriptor keeps alive; it is not needed for
    ``dropout=0``. With ``initialize`` the states are seeded, else taken as they are.
    """

    _kind = "Dropout"

    def __init__(
        self,
        handle: Handle,
        dropout: float = 0.0,
        states: Array | None = None,
        seed: int = 0,
        *,
        initialize: bool = False,
        library: VendorLibrary | None = None,
    ) -> None:
        info = dropout_info(dropout, states, seed)
        super().__init__(library, handle, info, states, initialize)

    def set(
        self,
        handle: Handle,
        dropout: float,
        states: Array | None = None,
        seed: int = 0,
        *,
        initialize: bool = False,
    ) -> None:
        """Set probability and states."""
        self._set(handle, dropout_info(dropout, states, seed), states, initialize)

    def _set(
        self, handle: Handle, info: DropoutInfo, states: Array | None, initialize: bool
    ) -> None:
        size = 0
        if states is not None:
            needed, size = states_size(self.library, handle), states.nbytes
            if size < needed:
                raise ValueError(f"states must have {needed} bytes; got {size}")
        self._write(handle, info, size, initialize)
        self._states = states
        self._handle = handle

    @abstractmethod
    def _write(self, handle: Handle, info: DropoutInfo, size: int, initialize: bool) -> None:
        """Pass what was checked to the vendor's function; ``size`` is 0 without states."""


def states_size(library: VendorLibrary, handle: Handle) -> int:
    """Bytes of a buffer for the states (``cudnnDropoutGetStatesSize``, of MIOpen too)."""
    size = library.ffi.new("size_t *")
    library.call(f"{library.prefix}DropoutGetStatesSize", handle.pointer, size)
    return int(size[0])


def dropout_info(dropout: float, states: Array | None, seed: int) -> DropoutInfo:
    """Probability, address of the states (0 for none) and seed, or an error naming one."""
    probability = check_dropout(dropout)
    if probability and states is None:
        raise ValueError("states: a dropout above 0 needs a buffer for its random numbers")
    return DropoutInfo(probability, _address(states), check_range("seed", seed, 0, 2**64 - 1))


def _address(states: Array | None) -> int:
    if states is None:
        return 0
    try:
        return int(states.data.ptr)
    except AttributeError:
        raise TypeError(f"states must be a device array; got {type(states).__name__}") from None
