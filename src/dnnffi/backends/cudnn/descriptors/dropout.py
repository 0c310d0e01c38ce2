"""The dropout descriptor. Setting and reading it needs a handle, hence a GPU."""

from __future__ import annotations

from dnnffi.arrays import Array
from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.descriptors.base import Descriptor
from dnnffi.backends.descriptors.dropout import DropoutInfo, check_dropout
from dnnffi.backends.handle import Handle
from dnnffi.backends.library import VendorLibrary


class DropoutDescriptor(Descriptor):
    """``cudnnDropoutDescriptor_t``: probability, and the states of its random numbers.

    ``states`` is a device buffer of at least `states_size` bytes, which the descriptor keeps alive;
    it is not needed for ``dropout=0``. With ``initialize`` the states are seeded
    (``cudnnSetDropoutDescriptor``, which runs a kernel), else taken as they are
    (``cudnnRestoreDropoutDescriptor``). The probability is held as a float32.

    Raises ``ValueError`` or ``TypeError`` naming the argument; `CudnnError` from either function.
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
        info = check_dropout(dropout, states, seed)
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
        self._set(handle, check_dropout(dropout, states, seed), states, initialize)

    def _set(
        self, handle: Handle, info: DropoutInfo, states: Array | None, initialize: bool
    ) -> None:
        size = 0
        if states is not None:
            needed, size = states_size(self.library, handle), states.nbytes
            if size < needed:
                raise ValueError(f"states must have {needed} bytes; got {size}")
        # Without states there is nothing to restore: cuDNN wants the plain setter.
        restore = states is not None and not initialize
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
        self._states = states
        self._handle = handle

    def read(self) -> DropoutInfo:
        """Probability, address of the states, seed (``cudnnGetDropoutDescriptor``)."""
        dropout = ffi.new("float *")
        states = ffi.new("dev_ptr *")
        seed = ffi.new("unsigned long long *")
        self._call(
            "cudnnGetDropoutDescriptor", self.pointer, self._handle.pointer, dropout, states, seed
        )
        return DropoutInfo(dropout[0], int(states[0]), int(seed[0]))


def states_size(library: VendorLibrary, handle: Handle) -> int:
    """Bytes of a dropout state buffer (``cudnnDropoutGetStatesSize``)."""
    size = ffi.new("size_t *")
    library.check(
        library.lib.cudnnDropoutGetStatesSize(handle.pointer, size), "cudnnDropoutGetStatesSize"
    )
    return int(size[0])
