"""Run one problem on one device: allocate results, get a workspace, replay a graph or execute."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from dnnffi.backends.rnn_interface import (
    AddressExecutor,
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import Array, Graph, Stream
from dnnffi.rnn.arguments import Arguments
from dnnffi.rnn.context import Context, Phase
from dnnffi.rnn.network import Network
from dnnffi.rnn.operations import Operations, run_backward, run_forward
from dnnffi.rnn.resets import FLAG_DTYPES, Resets
from dnnffi.rnn.route import Route, RouteFinder
from dnnffi.rnn.route_choice import RouteChoice
from dnnffi.spec.problem import RNNProblem

# By the class of tuples itself: a named tuple's own constructor is a function of Python.
forward_at: Callable[[tuple[int, ...]], ForwardAddresses] = partial(tuple.__new__, ForwardAddresses)
"""Makes `ForwardAddresses` of a tuple."""

_backward_data_at: Callable[[tuple[int, ...]], BackwardDataAddresses] = partial(
    tuple.__new__, BackwardDataAddresses
)
_backward_weights_at: Callable[[tuple[int, ...]], BackwardWeightsAddresses] = partial(
    tuple.__new__, BackwardWeightsAddresses
)

_FLAGS = tuple(map(np.dtype, FLAG_DTYPES))
_INT32 = (np.dtype("int32"),)
WITHOUT_RESETS = 0, 0, 0, 1
"""The addresses of a call without resets: flags, h, c and their rows."""

_NO_GRAPHS: Mapping[ForwardAddresses, Graph] = MappingProxyType({})


def _address(array: Array | None) -> int:
    return 0 if array is None else array.data.ptr


class SavedForward(NamedTuple):
    """State saved by a training forward pass: arrays, their addresses, the executor's context."""

    arrays: tuple[Array | None, ...]
    at: ForwardAddresses
    context: Context


class ExecutorPlan:
    """Forward and backward passes of one problem on one device.

    Which candidate runs is decided for its class of sizes, in ``network``. Once the class is tuned,
    a call whose addresses have a graph replays that graph. Any other call runs the candidate for
    calls without a graph or, if the route is ``staged``, a graph on copies of its arrays.
    """

    def __init__(
        self,
        problem: RNNProblem,
        network: Network,
        generator: Any = None,
    ) -> None:
        self.problem = problem
        self.parts = parts = network.parts
        self.device, self.memory = parts.device, parts.memory
        leading = problem.leading_shape
        self.x_shape = (*leading, parts.spec.input_size)
        self.y_shape = (*leading, parts.y_width)
        self.h_shape, self.c_shape, self.states = parts.states(problem.batch)
        self.has_cell = parts.has_cell
        self._training = problem.training
        self._generator = generator
        self._operations: Operations | None = None
        self._arguments: Arguments | None = None
        self._forward_graphs: Mapping[ForwardAddresses, Graph] = _NO_GRAPHS
        self.finder = RouteFinder(problem, network, generator)
        self._weight_size = self.finder.route.direct.weight_size

    @property
    def operations(self) -> Operations:
        """Graphs and their replays, made when sizes recur: most sizes of a stream never do."""
        found = self._operations
        if found is None:
            finder = ref(self.finder)  # which refers to the operations

            def failed() -> None:
                living = finder()
                if living is not None:
                    living.stop_replaying()

            found = Operations(self.problem, self.parts, self._generator, failed)
            # Two threads that make one at the same time both take the first.
            found = vars(self).setdefault("_made_operations", found)
            self._operations, self._forward_graphs = found, found.forward_graphs
            self.finder.forget_graphs = found.clear
            self.parts.operations.add(found)
        return found

    @property
    def arguments(self) -> Arguments:
        """Checks of arrays that the caller passes and keeps."""
        found = self._arguments
        if found is None:
            found = self._arguments = Arguments(
                self.problem, self.memory, self.device, self._weight_size
            )
        return found

    def autotune(self) -> bool:
        """Measure the candidates and use the fastest. False if that cannot be done now."""
        self.parts.current_device()  # refuses in a forked process
        return self.finder.autotune()

    # Arrays

    def is_compatible(self, array: Array, shape: tuple[int, ...]) -> bool:
        """Whether an array is contiguous, of this shape, and of the plan's dtype and device."""
        parts = self.parts
        return (
            array.__class__ is parts.ndarray
            and array._c_contiguous
            and array.shape == shape
            and array.dtype == parts.dtype
            and (parts.is_only_device or array.data.device_id == self.device)
        )

    def accepts(self, array: Array, shape: tuple[int, ...]) -> bool:
        """Whether a call can use an array as it is: one that fits, aligned to its elements."""
        return self.is_compatible(array, shape) and not array.data.ptr % self.parts.item_bytes

    def accepts_all(self, x: Array | None, h_0: Array | None, c_0: Array | None) -> bool:
        """Whether a call can use its arrays as they are; a state may be None.

        The same as `accepts` for each array, without the time of the calls.
        """
        parts = self.parts
        for array, shape in ((x, self.x_shape), (h_0, self.h_shape), (c_0, self.c_shape)):
            if array is None:
                if x is None:
                    return False
            elif (
                array.__class__ is not parts.ndarray
                or not array._c_contiguous
                or array.shape != shape
                or array.dtype != parts.dtype
                or array.data.ptr % parts.item_bytes
                or not (parts.is_only_device or array.data.device_id == self.device)
            ):
                return False
        return True

    def taken_rows(self, rows: Any) -> tuple[Resets | None, Array | None] | None:
        """Return the resets and lengths of a call (`RowArrays`) that are used as they are.

        None where they have to be looked at closely.
        """
        resets, (flags, reset_to, lengths) = None, rows
        if flags is not None:
            resets = self._taken_resets(flags, reset_to)
            if resets is None:
                return None
        of_batch = (self.problem.batch,)
        if lengths is not None and not self._takes_integers(lengths, of_batch, _INT32):
            return None
        return resets, lengths

    def _takes_integers(
        self, array: Any, shape: tuple[int, ...], dtypes: Collection[np.dtype[Any]]
    ) -> bool:
        """Whether a call can use an array as it is, of one of the dtypes; see `accepts`."""
        parts = self.parts
        return (
            array.__class__ is parts.ndarray
            and array._c_contiguous
            and array.shape == shape
            and array.dtype in dtypes
            and not array.data.ptr % array.dtype.itemsize
            and (parts.is_only_device or array.data.device_id == self.device)
        )

    def _taken_resets(self, flags: Any, reset_to: Any) -> Resets | None:
        parts = self.parts
        if not self._takes_integers(flags, self.x_shape[:-1], _FLAGS):
            return None
        if reset_to is None:
            return Resets(flags)
        h, c = reset_to, None
        if self.has_cell:
            if reset_to.__class__ is not tuple or len(reset_to) != 2:
                return None
            h, c = reset_to
        rows = h.shape[1] if h.__class__ is parts.ndarray and h.ndim == 3 else 0
        for state, shape in ((h, self.h_shape), (c, self.c_shape)):
            of_rows = (shape[0], rows, shape[2])
            if state is None:
                if state is h or self.has_cell:
                    return None
            elif rows not in (1, shape[1]) or not self.accepts(state, of_rows):
                return None
        return Resets(flags, h, c)

    def empty(self, shape: tuple[int, ...]) -> Array:
        """Allocate an array of the problem's dtype."""
        return self.parts.empty(shape, self.parts.dtype)

    def is_captured(self, stream: Stream) -> bool:
        """Whether the caller captures ``stream``; queried once per call."""
        return stream.ptr != 0 and self.parts.is_capturing(stream)

    def take_workspace(self, nbytes: int, stream: Stream, *, own: bool) -> Array:
        """Return a workspace for one call: the stream's own, to be given back, or a new one.

        The stream's own has always the same address, for calls that a graph may replay or that are
        recognised by their addresses. A new one is for calls that the caller captures: that graph
        outlives the call.
        """
        if own:
            return self.parts.take_workspace(self.device, stream.ptr, nbytes)
        return self.parts.empty((nbytes,), self.parts.byte)

    def give_back_workspace(self, workspace: Array, stream: Stream, *, own: bool) -> None:
        """Let later calls use a workspace of `take_workspace`."""
        if own:
            self.parts.give_back_workspace(self.device, stream.ptr, workspace)

    # The functional API

    def forward(
        self,
        x: Array,
        h_0: Array | None,
        c_0: Array | None,
        weights: Array,
        weights_at: int | None = None,
        resets: Resets | None = None,
        lengths: Array | None = None,
    ) -> tuple[Array, Array, Array | None, SavedForward | None]:
        """Return (y, h_n, c_n, the state for `backward` or None) for arrays that it `accepts`.

        ``lengths`` are those of a problem that has them in device memory. Weights that are given
        without their address are checked here.
        """
        parts = self.parts
        if parts.current_device() != self.device:
            with self.memory.use(self.device):
                return self.forward(x, h_0, c_0, weights, weights_at, resets, lengths)
        route = self.next_route()
        if weights_at is None:
            if weights.size == self._weight_size and self.accepts(weights, weights.shape):
                weights_at = weights.data.ptr
            else:
                weights_at = self.arguments.weights(weights)  # raises with the reason
        stream = parts.current_stream()
        captured = stream.ptr != 0 and parts.is_capturing(stream)
        reserve = parts.empty((route.reserve_bytes,), parts.byte) if self._training else None
        y = parts.empty(self.y_shape, parts.dtype)
        h_n, c_n = self.states()
        executor, at = self.launch_forward(
            route,
            stream,
            captured,
            (
                x.data.ptr,
                y.data.ptr,
                0 if h_0 is None else h_0.data.ptr,
                h_n.data.ptr,
                0 if c_0 is None else c_0.data.ptr,
                0 if c_n is None else c_n.data.ptr,
                weights_at,
            ),
            (
                0 if reserve is None else reserve.data.ptr,
                *(WITHOUT_RESETS if resets is None else resets.addresses),
                0 if lengths is None else lengths.data.ptr,
            ),
        )
        if reserve is None:
            return y, h_n, c_n, None
        context = Context(executor, at.reserve, reserve, Phase.FORWARD)
        kept = (x, h_0, c_0, weights, y, *(resets or ()))
        return y, h_n, c_n, SavedForward(kept, at, context)

    def next_route(self) -> Route:
        """Return the route of a call that begins, on the plan's device; it may be measured now."""
        finder = self.finder
        if finder.is_pending:
            finder.advance()
        elif finder.version != finder.network.version:
            finder.update()
        return finder.route

    def launch_forward(
        self,
        route: Route,
        stream: Stream,
        captured: bool,
        before: tuple[int, ...],
        after: tuple[int, ...],
        *,
        keeps_workspace: bool = False,
    ) -> tuple[AddressExecutor, ForwardAddresses]:
        """Run a forward pass on checked addresses, on the plan's device, which is current.

        Returns the executor that ran, which has to run the backward pass, and all addresses.
        ``before`` and ``after`` are the `ForwardAddresses` before and after the workspace.
        ``captured`` is whether the caller captures ``stream``. With ``keeps_workspace`` a call
        that is not captured takes the workspace of its stream.
        """
        parts = self.parts
        taken = None
        keeps_workspace = keeps_workspace or route.direct.keeps_workspace
        if captured or (route.replayed is None and not keeps_workspace):
            workspace = parts.empty((route.workspace_bytes,), parts.byte)
        else:
            workspace = taken = parts.take_workspace(self.device, stream.ptr, route.workspace_bytes)
        at = forward_at((*before, workspace.data.ptr, *after))
        executor = route.direct
        try:
            if route.replayed is None and not captured:
                run_forward(executor, parts.launch(stream), at)
            elif self._training:
                executor = self.operations.forward(route, at, stream, captured)
            else:
                graph = None if captured else self._forward_graphs.get(at)
                if graph is None or graph.executor is not route.replayed:
                    self.operations.forward(route, at, stream, captured)
                else:
                    graph.launch(stream)
        finally:
            if taken is not None:
                parts.give_back_workspace(self.device, stream.ptr, taken)
        return executor, at

    def backward(
        self,
        saved: SavedForward,
        dy: Array | None,
        dh_n: Array | None,
        dc_n: Array | None,
        *,
        weights_needed: bool,
        retain: bool,
    ) -> tuple[Array, Array | None, Array | None, Array | None, Any]:
        """Return (dx, dh_0, dc_0, gradient of the flat weights or None, those of reset states).

        dh_0 and dc_0 are None if the forward pass began with zeros. The last is a pair with a row
        for each of the batch, or None if states were replaced by zeros or not at all.
        """
        parts = self.parts
        if parts.current_device() != self.device:
            with self.memory.use(self.device):
                return self.backward(
                    saved, dy, dh_n, dc_n, weights_needed=weights_needed, retain=retain
                )
        at = saved.at
        context = self.copied(saved.context) if retain else saved.context
        if dy is None:
            dy = self.memory.zeros(self.y_shape, parts.dtype)
        dx = parts.empty(self.x_shape, parts.dtype)
        dh_0, dc_0 = self.states() if at.h_0 else (None, None)
        of_resets = self.states() if at.reset_h else None
        # All memory before the first call: if there is too little, the context can be used again.
        weight_shape = (context.executor.weight_size,)
        dweights = parts.empty(weight_shape, parts.dtype) if weights_needed else None
        self.launch_backward(
            context,
            at,
            (
                dy.data.ptr,
                0 if dh_n is None else dh_n.data.ptr,
                0 if dc_n is None else dc_n.data.ptr,
                dx.data.ptr,
                0 if dh_0 is None else dh_0.data.ptr,
                0 if dc_0 is None else dc_0.data.ptr,
            ),
            0 if dweights is None else dweights.data.ptr,
            (0, 0) if of_resets is None else tuple(map(_address, of_resets)),
        )
        return dx, dh_0, dc_0, dweights, of_resets

    def launch_backward(
        self,
        context: Context,
        at: ForwardAddresses,
        gradients: tuple[int, ...],
        dweights: int,
        of_resets: tuple[int, ...],
    ) -> None:
        """Run the backward pass of the forward pass ``at``, as `launch_forward` runs that.

        ``gradients`` are those of y, h_n, c_n, x, h_0 and c_0; ``dweights``, if not 0, is that of
        the weights, ``of_resets`` those of the states that replaced others.
        """
        parts = self.parts
        stream = parts.current_stream()
        captured = self.is_captured(stream)
        executor, route = context.executor, self.finder.route
        taken = None
        is_direct = executor is not route.replayed and not captured
        nbytes = executor.least_workspace_bytes
        if is_direct and executor.keeps_workspace:
            workspace = taken = parts.take_workspace(self.device, stream.ptr, nbytes)
        elif not captured and route.replayed is not None and nbytes <= route.workspace_bytes:
            nbytes = route.workspace_bytes
            workspace = taken = parts.take_workspace(self.device, stream.ptr, nbytes)
        else:
            workspace = parts.empty((nbytes,), parts.byte)
        work = workspace.data.ptr, context.reserve
        read = at.y, at.h_0, at.c_0, at.weights
        data = _backward_data_at((*read, *gradients, *work, at.resets, *of_resets))
        weights = None
        if dweights:
            weights = _backward_weights_at((at.x, at.h_0, at.y, dweights, *work))
        try:
            if is_direct:
                run_backward(context, parts.launch(stream), data, weights)
            else:
                self.operations.backward(route, context, data, weights, stream, captured)
        finally:
            if taken is not None:
                parts.give_back_workspace(self.device, stream.ptr, taken)

    def copied(self, context: Context) -> Context:
        """Return the same on a copy of the reserve space, for a further backward pass."""
        context.check(Phase.FORWARD)
        reserve = self.parts.empty((context.owner.nbytes,), self.parts.byte)
        stream = self.parts.current_stream()
        self.memory.copy(reserve.data.ptr, context.reserve, reserve.nbytes, stream)
        return Context(context.executor, reserve.data.ptr, reserve, Phase.FORWARD)

    # Inspection

    def inspect(self) -> dict[str, Any]:
        """Return properties of what runs, by name: algorithm, workspace_bytes, reserve_bytes."""
        route = self.finder.route
        return {
            "algorithm": route.main.algorithm,
            "workspace_bytes": route.workspace_bytes,
            "reserve_bytes": route.reserve_bytes,
        }

    def report(self) -> str:
        """Return which candidate runs, and why, in plain words."""
        return report_of(self.problem, self.finder, self.operations)


def report_of(problem: RNNProblem, finder: RouteFinder, operations: Operations) -> str:
    """Algorithm and math, times of the candidates, sizes of buffers and graphs."""
    route, choice = finder.route, finder.choice
    lines = [str(problem), f"class of sizes: {finder.sizes}"]
    lines.append(f"algorithm {route.main.algorithm}, math {problem.options.math}")
    if choice is None and finder.borrowed is not None:
        lines.append(
            f"{finder.borrowed.found.direct} called directly, as measured for "
            f"{finder.borrowed.origin}; not measured yet for this class"
        )
    elif choice is None:
        why = "tuning is off" if problem.options.tune == "off" else "not measured yet"
        lines.append(f"picked by the rule for {problem.options.algorithm!r}; {why}")
    else:
        if route.replayed is None:
            lines.append(f"{choice.direct} called directly")
        else:
            elsewhere = f"{choice.direct} called directly elsewhere"
            if route.staged:
                elsewhere = "through copies to addresses that are known elsewhere"
            lines.append(
                f"{choice.replayed} as a CUDA graph where the addresses of a call are known, "
                f"{elsewhere}"
            )
        lines += _measured(problem, choice)
    sizes = f"workspace {route.workspace_bytes:,} bytes, reserve {route.reserve_bytes:,} bytes"
    lines += [sizes, f"{operations.graph_count} graphs, {operations.graph_bytes:,} bytes"]
    if operations.staged_bytes:
        lines.append(f"{operations.staged_bytes:,} bytes for copies")
    return "\n".join(lines)


def _measured(problem: RNNProblem, choice: RouteChoice) -> Iterator[str]:
    where = "measured in this process" if choice.source == "measured" else "read from disk"
    what = "forward and backward pass" if problem.training else "forward pass"
    yield f"{where}, milliseconds of {what}:"
    for name, times in choice.times.items():
        replayed = "not captured" if times.replayed is None else f"{times.replayed:.4f} as graph"
        yield f"  {name}: {times.direct:.4f} directly, {replayed}"
    for name, reason in choice.refused.items():
        yield f"  {name}: {reason}"
