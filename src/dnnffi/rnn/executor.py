"""Run any backend's executor on arrays, for a caller who holds all buffers."""

from __future__ import annotations

from typing import Any, NoReturn, Self

from dnnffi.backends.registry import named
from dnnffi.backends.rnn_interface import AddressExecutor, ForwardAddresses
from dnnffi.backends.vendor.handle import launch_on
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.device.interface import AnyArray, Launch
from dnnffi.device.spans import Span
from dnnffi.errors import ContextError
from dnnffi.execution.remembered import Remembered
from dnnffi.rnn.arguments import Arguments
from dnnffi.rnn.candidates import CandidateSet
from dnnffi.rnn.context import Context, Phase, check_owner
from dnnffi.spec.checks import check_flag, check_problem, check_range
from dnnffi.spec.problem import RNNProblem


class RNNExecutor:
    """One RNN problem on cuDNN or MIOpen, for callers who hold their own buffers.

    Making it makes the descriptors, picks the algorithm and asks for the buffer sizes; a call then
    checks its arrays and makes the C calls, on the current stream, without allocating or
    synchronising. Several threads may share it: each uses its own handle. On cuDNN the calls stand
    on ``cudnnRNNForward``, ``cudnnRNNBackwardData_v8`` and ``cudnnRNNBackwardWeights_v8``; on
    MIOpen, for packed problems, on ``miopenRNNForwardTraining``, ``miopenRNNForwardInference``,
    ``miopenRNNBackwardData`` and ``miopenRNNBackwardWeights``, for dense ones on
    ``miopenRNNForward``, ``miopenRNNBackwardSeqData`` and ``miopenRNNBackwardWeightsSeqTensor``.

    Parameters
    ----------
    problem : what to compute
    backend : "cudnn" or "miopen"
    generator : random numbers of the dropout, where the problem has any
    device : the GPU, by default the current one
    library : by default the one that the backend loads

    Attributes
    ----------
    problem, device, library : as above
    algorithm : the algorithm in use
    generator : the random numbers in use, None where nothing is dropped
    workspace_bytes, reserve_bytes : sizes of the two buffers; contents of the workspace do not
        outlive a call
    least_workspace_bytes : what suffices without ``accumulate``
    weight_size : elements of the flat weight buffer
    on_addresses : the `AddressExecutor` that runs it

    Raises
    ------
    ValueError
        The backend has no executors, or no row of the problem has a step.
    UnsupportedError
        The library has no such combination.
    CudnnError, MiopenError
        Any other status of a function of the library.
    """

    def __init__(
        self,
        problem: RNNProblem,
        *,
        backend: str = "cudnn",
        generator: Any = None,
        device: int | None = None,
        library: VendorLibrary | None = None,
    ) -> None:
        entry = named(backend)
        if entry.load is None or entry.candidates is None:
            raise ValueError(f"backend {backend!r} has no executors; use RNNPlan, or the functions")
        check_problem(problem, RNNProblem, "RNNProblem.dense(spec, steps=..., batch=...)")
        if not problem.has_steps:
            raise ValueError(f"problem must have a row with at least one step; got {problem}")
        library = entry.load() if library is None else library
        self.library: Any = library
        self._memory = memory = library.memory
        if device is None:
            device = memory.current_device()
        self.device: int = check_range("device", device, 0, memory.device_count() - 1)
        self.problem = problem
        with memory.use(self.device):
            candidates = CandidateSet(*entry.candidates(library))
            candidates.check(problem)
            launch = launch_on(library, self.device, memory.current_stream())
            at: AddressExecutor = candidates.make(problem, None, launch, generator)
        self.on_addresses = at
        self.algorithm, self.weight_size = at.algorithm, at.weight_size
        self.workspace_bytes, self.reserve_bytes = at.workspace_bytes, at.reserve_bytes
        self.least_workspace_bytes = at.least_workspace_bytes
        self.generator: Any = at.generator
        self._training = problem.training
        self._current_device = memory.current_device
        self._current_stream = memory.current_stream
        self._forward = at.forward
        self._arguments = Arguments(problem, memory, self.device, at.weight_size)
        self._seen: Remembered[ForwardAddresses] = Remembered()
        self._find = self._seen.find

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return bool(self.on_addresses.closed)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Destroy the descriptors. A second call does nothing."""
        self.on_addresses.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def context(self, reserve: AnyArray) -> Context:
        """Return a context on ``reserve``, a device buffer of at least ``reserve_bytes`` bytes."""
        if not self._training:
            raise ContextError("this executor is for inference; its problem has training=False")
        return Context(
            self, self._arguments.buffer("reserve", reserve, self.reserve_bytes), reserve
        )

    def forward(
        self,
        x: AnyArray,
        h_0: AnyArray | None,
        c_0: AnyArray | None,
        weights: AnyArray,
        *,
        out: tuple[AnyArray, AnyArray | None, AnyArray | None],
        workspace: AnyArray,
        context: Context | None = None,
    ) -> None:
        """Run the forward pass into ``out`` = (y, h_n, c_n).

        All arrays are contiguous, of the problem's shapes and the spec's dtype; ``weights`` is the
        flat buffer [weight_size]; ``workspace`` has at least ``least_workspace_bytes`` bytes.
        ``h_0``, ``c_0`` None is zeros; ``h_n``, ``c_n`` None is not wanted. A training problem
        needs a ``context``, which is then ready for backward data.

        Raises ``TypeError``, ``ValueError`` naming the argument, `ContextError`, and the vendor's
        `StatusError`.
        """
        try:
            y, h_n, c_n = out
        except (TypeError, ValueError):
            raise _wrong_out(out, "(y, h_n, c_n)") from None
        states = id(h_0), id(h_n), id(c_0), id(c_n)
        identities = (id(x), id(y), *states, id(weights), id(workspace))
        at = self._find(identities)
        if at is None:
            arrays = (x, y, h_0, h_n, c_0, c_n, weights)
            at = self._arguments.forward(
                *arrays, workspace=workspace, min_bytes=self.least_workspace_bytes
            )
            self._seen.add(identities, (*arrays, workspace), at)
        if self._current_device() != self.device:
            self._refuse_device()
        launch = launch_on(self.library, self.device, self._current_stream())
        if not self._training:
            if context is not None:
                raise ContextError("forward of an inference problem takes no context")
        elif context is None:
            raise ContextError("forward of a training problem needs a context")
        else:
            check_owner(context, self).empty()
            at = at._replace(reserve=context.reserve)
        if self.generator is None:
            self._forward(launch, at)
        else:
            self.generator.in_order(launch, lambda: self.on_addresses.forward(launch, at))
        if context is not None:
            context.reach(Phase.FORWARD)

    def backward_data(
        self,
        context: Context,
        y: AnyArray,
        dy: AnyArray,
        h_0: AnyArray | None,
        c_0: AnyArray | None,
        dh_n: AnyArray | None,
        dc_n: AnyArray | None,
        weights: AnyArray,
        *,
        out: tuple[AnyArray, AnyArray | None, AnyArray | None],
        workspace: AnyArray,
    ) -> None:
        """Compute the gradients of the inputs into ``out`` = (dx, dh_0, dc_0).

        ``y``, ``h_0``, ``c_0`` and ``weights`` are those of the forward pass. ``dh_n``, ``dc_n``
        None is zeros; ``dh_0``, ``dc_0`` None is not wanted. Backward data changes the reserve
        space: it runs once after each forward pass, and before backward weights.

        Raises as `forward`; `ContextError` also when asked in another order.
        """
        check_owner(context, self).check(Phase.FORWARD)
        try:
            dx, dh_0, dc_0 = out
        except (TypeError, ValueError):
            raise _wrong_out(out, "(dx, dh_0, dc_0)") from None
        at = self._arguments.backward_data(
            *(y, h_0, c_0, weights, dy, dh_n, dc_n, dx, dh_0, dc_0),
            workspace=workspace,
            min_bytes=self.least_workspace_bytes,
            reserve=self._reserve(context),
        )
        launch = self._launch()
        context.take(Phase.FORWARD)
        self.on_addresses.backward_data(launch, at)
        context.reach(Phase.DATA)

    def backward_weights(
        self,
        context: Context,
        x: AnyArray,
        h_0: AnyArray | None,
        y: AnyArray,
        *,
        out: AnyArray,
        workspace: AnyArray,
        accumulate: bool = False,
    ) -> None:
        """Compute the gradient of the weights into ``out`` [weight_size].

        ``x``, ``h_0`` and ``y`` are those of the forward pass. With ``accumulate`` the gradient is
        added to what ``out`` holds, and ``workspace`` has at least ``workspace_bytes`` bytes. Runs
        once, after backward data on the same context.

        Raises as `forward`; `ContextError` also when asked in another order.
        """
        check_owner(context, self).check(Phase.DATA)
        accumulate = check_flag("accumulate", accumulate)
        needed = self.workspace_bytes if accumulate else self.least_workspace_bytes
        at = self._arguments.backward_weights(
            x, h_0, y, out, workspace=workspace, min_bytes=needed, reserve=self._reserve(context)
        )
        launch = self._launch()
        context.take(Phase.DATA)
        context.reach(Phase.SPENT)
        self.on_addresses.backward_weights(launch, at, accumulate)

    def _reserve(self, context: Context) -> Span:
        return Span("reserve", context.reserve, self.reserve_bytes)

    def _launch(self) -> Launch:
        """Return a launch on the current stream; raise unless the executor's device is current."""
        if self._current_device() != self.device:
            self._refuse_device()
        return launch_on(self.library, self.device, self._current_stream())

    def _refuse_device(self) -> NoReturn:
        raise ValueError(
            f"the current device must be the executor's, {self.device}; "
            f"it is {self._current_device()}"
        )


def _wrong_out(out: object, form: str) -> TypeError:
    """Return the error for an ``out`` that is not three arrays."""
    count = f" of {len(out)}" if isinstance(out, tuple | list) else ""
    return TypeError(f"out must be {form}; got {type(out).__name__}{count}")
