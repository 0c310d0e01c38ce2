"""The dropout descriptor. Setting and reading it needs a handle, hence a device."""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors.base import Descriptor
from dnnffi.backends.vendor.descriptors import dropout as shared
from dnnffi.backends.vendor.handle import Handle

_GENERATOR = ffi.integer_const("MIOPEN_RNG_PSEUDO_XORWOW")  # the only one


class DropoutInfo(NamedTuple):
    """A dropout descriptor read back."""

    dropout: float
    seed: int


class DropoutDescriptor(shared.DropoutDescriptor, Descriptor):
    """``miopenDropoutDescriptor_t``: probability, and the states of its random numbers.

    ``states`` is a device buffer of at least `states_size` bytes, which the descriptor keeps alive;
    it is not needed for ``dropout=0``. With ``initialize`` the states are seeded
    (``miopenSetDropoutDescriptor``, which runs a kernel), else taken as they are
    (``miopenRestoreDropoutDescriptor``, which checks neither size nor probability in 3.4.0: both
    are checked here). The probability is held as a float32.

    Raises ``ValueError`` or ``TypeError`` naming the argument; `MiopenError` from either function.
    """

    def _write(self, handle: Handle, info: shared.DropoutInfo, size: int, initialize: bool) -> None:
        # Without states the plain setter would run its kernel on no memory.
        seeds = size > 0 and initialize
        self._call(
            "miopenSetDropoutDescriptor" if seeds else "miopenRestoreDropoutDescriptor",
            self.pointer,
            handle.pointer,
            info.dropout,
            info.states,
            size,
            info.seed,
            False,  # no mask of the caller's
            False,  # a placeholder, by the header: not enabled
            _GENERATOR,
            problem=f"dropout {info.dropout}, seed {info.seed}",
        )

    def read(self) -> DropoutInfo:
        """Probability and seed (``miopenGetDropoutDescriptor``).

        The address that this function gives for the states is not the one that was set (3.4.0), so
        it is left out.
        """
        dropout = ffi.new("float *")
        states = ffi.new("dev_ptr *")
        seed = ffi.new("unsigned long long *")
        flags = ffi.new("bool *"), ffi.new("bool *")
        generator = ffi.new("miopenRNGType_t *")
        self._call(
            "miopenGetDropoutDescriptor",
            self.pointer,
            self._handle.pointer,
            dropout,
            states,
            seed,
            *flags,
            generator,
        )
        return DropoutInfo(dropout[0], int(seed[0]))
