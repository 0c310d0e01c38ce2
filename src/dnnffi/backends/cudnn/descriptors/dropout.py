"""The dropout descriptor. Setting and reading it needs a handle, hence a GPU."""

from __future__ import annotations

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.descriptors.base import Descriptor
from dnnffi.backends.vendor.descriptors import dropout as shared
from dnnffi.backends.vendor.descriptors.dropout import DropoutInfo
from dnnffi.backends.vendor.handle import Handle


class DropoutDescriptor(shared.DropoutDescriptor, Descriptor):
    """``cudnnDropoutDescriptor_t``: probability, and the states of its random numbers.

    ``states`` is a device buffer of at least `states_size` bytes, which the descriptor keeps alive;
    it is not needed for ``dropout=0``. With ``initialize`` the states are seeded
    (``cudnnSetDropoutDescriptor``, which runs a kernel), else taken as they are
    (``cudnnRestoreDropoutDescriptor``). The probability is held as a float32.

    Raises ``ValueError`` or ``TypeError`` naming the argument; `CudnnError` from either function.
    """

    def _write(self, handle: Handle, info: DropoutInfo, size: int, initialize: bool) -> None:
        # Without states there is nothing to restore: cuDNN wants the plain setter.
        restore = size > 0 and not initialize
        self._call(
            "cudnnRestoreDropoutDescriptor" if restore else "cudnnSetDropoutDescriptor",
            self.pointer,
            handle.pointer,
            info.dropout,
            info.states,
            size,
            info.seed,
            problem=f"dropout {info.dropout}, seed {info.seed}",
        )

    def read(self) -> DropoutInfo:
        """Probability, address of the states, seed (``cudnnGetDropoutDescriptor``)."""
        dropout = ffi.new("float *")
        states = ffi.new("dev_ptr *")
        seed = ffi.new("unsigned long long *")
        self._call(
            "cudnnGetDropoutDescriptor", self.pointer, self._handle.pointer, dropout, states, seed
        )
        return DropoutInfo(dropout[0], int(states[0]), int(seed[0]))
