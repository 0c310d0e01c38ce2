"""What the vendors' RNN executors share: checks of arrays, the order of calls, ownership."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import Any, ClassVar, Self
from weakref import ref

from dnnffi.backends.vendor.arguments import ArrayCheck, Span, check_apart
from dnnffi.backends.vendor.context import (
    Context,
    Phase,
    check_before_data,
    check_before_weights,
    check_owner,
)
from dnnffi.backends.vendor.handle import handle_for
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.device.interface import Array
from dnnffi.errors import ContextError, DnnffiError
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.weights import weight_layout


def _nothing() -> None:
    """Stand in for the weak reference to an array that is None."""


_NOTHING_SEEN = (_nothing,) * 8 + ((),)
_MOST_SEEN = 16  # sets of buffers that an executor knows again


class RNNExecutor(ABC):
    """The part of an executor that is not a vendor's.

    A vendor's class makes its descriptors and sets the sizes (`_describe`), and makes the C calls:
    `forward_at`, `_run_backward_data` and `_run_backward_weights`, on addresses that were checked.
    """

    _layout: ClassVar[str]

    library: Any
    algorithm: str
    workspace_bytes: int
    least_workspace_bytes: int
    reserve_bytes: int
    _weight_bytes: int

    def __init__(
        self,
        problem: RNNProblem,
        generator: Any,
        device: int | None,
        library: VendorLibrary,
    ) -> None:
        self.library = library
        memory = library.memory
        self.device: int = memory.current_device() if device is None else device
        self.problem = problem
        spec = problem.spec
        self._memory = memory
        drops = problem.training and problem.dropout > 0 and spec.num_layers > 1
        if drops and generator is None:
            raise ValueError("generator: a problem with dropout needs random numbers")
        self.generator: Any = generator if drops else None
        self.algorithm = self._algorithm()
        self.weight_size: int = weight_layout(spec, self._layout).size
        self._owned: list[Any] = []
        self._descriptors: tuple[Any, ...] = ()
        with memory.use(self.device):
            self._describe()
        self._bind()

    @abstractmethod
    def _algorithm(self) -> str:
        """The algorithm for the problem; `UnsupportedError` for what the vendor does not have."""

    def _describe(self) -> None:
        try:
            self._make_descriptors()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _make_descriptors(self) -> None:
        """Make what is owned and set the sizes in bytes; the device is the current one."""

    def _own(self, descriptor: Any) -> Any:
        self._owned.append(descriptor)
        return descriptor

    def _check_weight_bytes(self, found: int) -> int:
        """The bytes of weights that the library wants, which must be the predicted ones."""
        spec = self.problem.spec
        predicted = self.weight_size * ITEM_SIZES[spec.dtype]
        if found != predicted:
            raise DnnffiError(
                f"{self.library.vendor} {self.library.version_text} wants {found} bytes of weights "
                f"for {spec}; the layout that dnnffi predicts has {predicted}. Please report this"
            )
        return found

    def _bind(self) -> None:
        """Everything a call needs, under one name each: the calls are the hot path."""
        problem = self.problem
        self._current_device = self._memory.current_device
        self._training = problem.training
        self._has_cell = problem.spec.has_cell
        self._x_size = prod(problem.x_shape)
        self._y_size = prod(problem.y_shape)
        self._h_size = prod(problem.h_shape)
        self._c_size = prod(problem.c_shape)
        self._item = ITEM_SIZES[problem.spec.dtype]
        check = ArrayCheck(self._memory, self.device, problem.spec.dtype)
        self._address, self._buffer = check.address, check.buffer
        self._seen: dict[int, tuple[Any, ...]] = {}

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._owned

    def close(self) -> None:
        """Destroy the descriptors. A second call does nothing."""
        self._descriptors = ()
        while self._owned:
            self._owned.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def context(self, reserve: Array) -> Context:
        """A context on ``reserve``, a device buffer of at least ``reserve_bytes`` bytes."""
        if not self._training:
            raise ContextError("this executor is for inference; its problem has training=False")
        self._buffer("reserve", reserve, self.reserve_bytes)
        return Context(self, reserve)

    def forward(
        self,
        x: Array,
        h_0: Array | None,
        c_0: Array | None,
        weights: Array,
        *,
        out: tuple[Array, Array | None, Array | None],
        workspace: Array,
        context: Context | None = None,
    ) -> None:
        """Forward: fills ``out`` = (y, h_n, c_n).

        All arrays are contiguous, of the problem's shapes and the spec's dtype; ``weights`` is the
        flat buffer [weight_size]; ``workspace`` has at least ``least_workspace_bytes`` bytes.
        ``h_0``, ``c_0`` None is zeros; ``h_n``, ``c_n`` None is not wanted. A training problem
        needs a ``context``, which is then ready for backward data.

        Raises ``TypeError``, ``ValueError`` naming the argument, `ContextError`, and the vendor's
        `StatusError`.
        """
        y, h_n, c_n = out
        # Arrays that were checked before are known again: buffers are used many times.
        seen = self._seen.get(id(y), _NOTHING_SEEN)
        x_of, y_of, h_0_of, h_n_of, c_0_of, c_n_of, weights_of, workspace_of, addresses = seen
        if not (
            x_of() is x
            and y_of() is y
            and h_0_of() is h_0
            and h_n_of() is h_n
            and c_0_of() is c_0
            and c_n_of() is c_n
            and weights_of() is weights
            and workspace_of() is workspace
        ):
            arrays = (x, y, h_0, h_n, c_0, c_n, weights, workspace)
            addresses = self.check_forward(*arrays)
            self._remember(arrays, addresses)
        self.forward_at(addresses, context)

    def _remember(self, arrays: tuple[Array | None, ...], addresses: tuple[int, ...]) -> None:
        # Weak: an executor is not to keep its caller's buffers alive. The id is only a place to
        # look; that it is still the same array, the reference tells.
        references = (_nothing if array is None else ref(array) for array in arrays)
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen[id(arrays[1])] = (*references, addresses)

    def check_forward(
        self,
        x: Array,
        y: Array,
        h_0: Array | None,
        h_n: Array | None,
        c_0: Array | None,
        c_n: Array | None,
        weights: Array,
        workspace: Array,
    ) -> tuple[int, ...]:
        """Addresses of the arrays of `forward`, in this order, each checked."""
        x_at, y_at = self._address("x", x, self._x_size), self._address("y", y, self._y_size)
        h_0_at, c_0_at = self._states(("h_0", "c_0"), h_0, c_0)
        h_n_at, c_n_at = self._states(("h_n", "c_n"), h_n, c_n)
        weights_at = self.check_weights(weights)
        workspace_at = self._buffer("workspace", workspace, self.least_workspace_bytes)
        check_apart(
            (
                self._span("y", y_at, self._y_size),
                self._span("h_n", h_n_at, self._h_size),
                self._span("c_n", c_n_at, self._c_size),
                Span("workspace", workspace_at, self.least_workspace_bytes),
            ),
            (
                self._span("x", x_at, self._x_size),
                self._span("h_0", h_0_at, self._h_size),
                self._span("c_0", c_0_at, self._c_size),
                self._span("weights", weights_at, self.weight_size),
            ),
        )
        return (x_at, y_at, h_0_at, h_n_at, c_0_at, c_n_at, weights_at, workspace_at)

    def check_weights(self, weights: Array) -> int:
        """Address of the flat weights, checked as `forward` does."""
        return self._address("weights", weights, self.weight_size)

    @abstractmethod
    def forward_at(
        self,
        addresses: tuple[int, ...],
        context: Context | None = None,
        *,
        ordered: bool = True,
    ) -> None:
        """`forward` on checked addresses: x, y, h_0, h_n, c_0, c_n, weights, workspace.

        Without ``ordered`` the caller sees to it that uses of the ``generator`` do not overlap.
        """

    def _refill(self, context: Context | None) -> int:
        """The reserve space of ``context``, that a training forward is about to fill."""
        if context is None:
            raise ContextError("forward of a training problem needs a context")
        if context.__class__ is not Context or context.executor is not self:
            check_owner(context, self)
        # Whatever happens now, what an earlier forward left is gone.
        context.phase = Phase.EMPTY
        address: int = context.reserve.data.ptr
        return address

    def backward_data(
        self,
        context: Context,
        y: Array,
        dy: Array,
        h_0: Array | None,
        c_0: Array | None,
        dh_n: Array | None,
        dc_n: Array | None,
        weights: Array,
        *,
        out: tuple[Array, Array | None, Array | None],
        workspace: Array,
    ) -> None:
        """Gradients of the inputs: fills ``out`` = (dx, dh_0, dc_0).

        ``y``, ``h_0``, ``c_0`` and ``weights`` are those of the forward. ``dh_n``, ``dc_n`` None
        is zeros; ``dh_0``, ``dc_0`` None is not wanted. Changes the reserve space: it runs once
        after each forward, and before backward weights.

        Raises as `forward`; `ContextError` also when asked in another order.
        """
        if (
            context.__class__ is not Context
            or context.executor is not self
            or context.phase is not Phase.FORWARD
        ):
            check_before_data(context, self)
        addresses = self.check_backward_data(
            y, dy, h_0, c_0, dh_n, dc_n, weights, *out, workspace=workspace
        )
        y_at, dy_at, h_0_at, c_0_at, dh_n_at, dc_n_at, weights_at, *out_at, workspace_at = addresses
        dx_at, dh_0_at, dc_0_at = out_at
        check_apart(
            (
                self._span("dx", dx_at, self._x_size),
                self._span("dh_0", dh_0_at, self._h_size),
                self._span("dc_0", dc_0_at, self._c_size),
                Span("workspace", workspace_at, self.least_workspace_bytes),
                Span("reserve", context.reserve.data.ptr, self.reserve_bytes),
            ),
            (
                self._span("y", y_at, self._y_size),
                self._span("dy", dy_at, self._y_size),
                self._span("h_0", h_0_at, self._h_size),
                self._span("c_0", c_0_at, self._c_size),
                self._span("dh_n", dh_n_at, self._h_size),
                self._span("dc_n", dc_n_at, self._c_size),
                self._span("weights", weights_at, self.weight_size),
            ),
        )
        self.backward_data_at(addresses, context)

    def check_backward_data(
        self,
        y: Array,
        dy: Array,
        h_0: Array | None,
        c_0: Array | None,
        dh_n: Array | None,
        dc_n: Array | None,
        weights: Array,
        dx: Array,
        dh_0: Array | None,
        dc_0: Array | None,
        workspace: Array,
    ) -> tuple[int, ...]:
        """Addresses of the arrays of `backward_data`, in this order, each checked."""
        return (
            self._address("y", y, self._y_size),
            self._address("dy", dy, self._y_size),
            *self._states(("h_0", "c_0"), h_0, c_0),
            *self._states(("dh_n", "dc_n"), dh_n, dc_n),
            self.check_weights(weights),
            self._address("dx", dx, self._x_size),
            *self._states(("dh_0", "dc_0"), dh_0, dc_0),
            self._buffer("workspace", workspace, self.least_workspace_bytes),
        )

    def backward_data_at(self, addresses: tuple[int, ...], context: Context) -> None:
        """`backward_data` on checked addresses, and a context that a forward has filled."""
        y, dy, h_0, c_0, dh_n, dc_n, weights, dx, dh_0, dc_0, workspace = addresses
        handle = self._ready()
        context.phase = Phase.EMPTY
        reserve = context.reserve.data.ptr
        self._run_backward_data(
            *(handle, y, dy, dx, h_0, dh_n, dh_0, c_0, dc_n, dc_0, weights, workspace, reserve)
        )
        context.phase = Phase.DATA

    @abstractmethod
    def _run_backward_data(
        self,
        handle: Any,
        y: int,
        dy: int,
        dx: int,
        h_0: int,
        dh_n: int,
        dh_0: int,
        c_0: int,
        dc_n: int,
        dc_0: int,
        weights: int,
        workspace: int,
        reserve: int,
    ) -> None:
        """Make the C call on addresses, 0 for None."""

    def backward_weights(
        self,
        context: Context,
        x: Array,
        h_0: Array | None,
        y: Array,
        *,
        out: Array,
        workspace: Array,
        accumulate: bool = False,
    ) -> None:
        """Gradient of the weights: fills ``out`` [weight_size].

        ``x``, ``h_0`` and ``y`` are those of the forward. With ``accumulate`` the gradient is
        added to what ``out`` holds, and ``workspace`` has at least ``workspace_bytes`` bytes. Runs
        once, after backward data on the same context.

        Raises as `forward`; `ContextError` also when asked in another order.
        """
        if (
            context.__class__ is not Context
            or context.executor is not self
            or context.phase is not Phase.DATA
        ):
            check_before_weights(context, self)
        addresses = self.check_backward_weights(x, h_0, y, out, workspace, accumulate=accumulate)
        x_at, h_0_at, y_at, out_at, workspace_at = addresses
        least = self.workspace_bytes if accumulate else self.least_workspace_bytes
        check_apart(
            (
                self._span("out", out_at, self.weight_size),
                Span("workspace", workspace_at, least),
                Span("reserve", context.reserve.data.ptr, self.reserve_bytes),
            ),
            (
                self._span("x", x_at, self._x_size),
                self._span("h_0", h_0_at, self._h_size),
                self._span("y", y_at, self._y_size),
            ),
        )
        self.backward_weights_at(addresses, context, accumulate)

    def check_backward_weights(
        self,
        x: Array,
        h_0: Array | None,
        y: Array,
        out: Array,
        workspace: Array,
        *,
        accumulate: bool = False,
    ) -> tuple[int, ...]:
        """Addresses of the arrays of `backward_weights`, in this order, each checked."""
        least = self.workspace_bytes if accumulate else self.least_workspace_bytes
        return (
            self._address("x", x, self._x_size),
            0 if h_0 is None else self._address("h_0", h_0, self._h_size),
            self._address("y", y, self._y_size),
            self._address("out", out, self.weight_size),
            self._buffer("workspace", workspace, least),
        )

    def backward_weights_at(
        self, addresses: tuple[int, ...], context: Context, accumulate: bool = False
    ) -> None:
        """`backward_weights` on checked addresses, and a context after backward data."""
        x, h_0, y, out, workspace = addresses
        handle = self._ready()
        context.phase = Phase.SPENT
        self._run_backward_weights(
            handle, x, h_0, y, out, workspace, context.reserve.data.ptr, accumulate
        )

    @abstractmethod
    def _run_backward_weights(
        self,
        handle: Any,
        x: int,
        h_0: int,
        y: int,
        out: int,
        workspace: int,
        reserve: int,
        accumulate: bool,
    ) -> None:
        """Make the C call on addresses, 0 for None."""

    def _ready(self) -> Any:
        """The thread's handle on its current stream, if a call can be made now."""
        if not self._descriptors:
            raise ValueError("this executor is closed")
        device = self._current_device()
        if device != self.device:
            raise ValueError(
                f"the current device must be the executor's, {self.device}; it is {device}"
            )
        return handle_for(self.library, device)._pointer

    def _states(self, names: tuple[str, str], h: Array | None, c: Array | None) -> tuple[int, int]:
        """Addresses of a hidden and a cell state, 0 for None."""
        h_at = 0 if h is None else self._address(names[0], h, self._h_size)
        if c is None:
            return h_at, 0
        if not self._has_cell:
            raise ValueError(f"{names[1]} must be None: {self.problem.spec.mode} has no cell state")
        return h_at, self._address(names[1], c, self._c_size)

    def _span(self, name: str, address: int, size: int) -> Span:
        """The memory of an array, nothing where it is None."""
        return Span(name, address, size * self._item if address else 0)
