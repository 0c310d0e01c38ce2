"""Interfaces of recurrent networks: executors on addresses, their sources, packed networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from dnnffi.device.interface import Launch, NDArray
from dnnffi.errors import UnsupportedError
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec


class ForwardAddresses(NamedTuple):
    """The arrays of a forward pass in device memory; 0 for one that does not exist.

    ``resets`` has a byte for each row of each step, in the layout of x; ``reset_h`` and ``reset_c``
    are like h_0 and c_0 with ``reset_rows`` rows, 1 or all. ``lengths`` [B] are int32.
    """

    x: int
    y: int
    h_0: int
    h_n: int
    c_0: int
    c_n: int
    weights: int
    workspace: int
    reserve: int = 0
    resets: int = 0
    reset_h: int = 0
    reset_c: int = 0
    reset_rows: int = 1
    lengths: int = 0


class BackwardDataAddresses(NamedTuple):
    """The arrays of backward data, likewise; ``y`` to ``weights`` are of the forward pass.

    ``dreset_h`` and ``dreset_c`` are like h_0 and c_0, with a row for each of the batch.
    """

    y: int
    h_0: int
    c_0: int
    weights: int
    dy: int
    dh_n: int
    dc_n: int
    dx: int
    dh_0: int
    dc_0: int
    workspace: int
    reserve: int
    resets: int = 0
    dreset_h: int = 0
    dreset_c: int = 0


class BackwardWeightsAddresses(NamedTuple):
    """The arrays of backward weights, likewise; x, h_0 and y are of the forward pass."""

    x: int
    h_0: int
    y: int
    dweights: int
    workspace: int
    reserve: int


class AddressExecutor(Protocol):
    """A way to run a problem. All ways of a problem read the same layout of the weights.

    Making an executor may allocate memory and query the library. Its calls do neither: they enqueue
    work on the stream of a launch, on addresses that were checked. Backward data runs once after a
    forward pass, on the reserve space that this pass filled, and before backward weights. Calls of
    a problem with dropout go through ``generator.in_order``.
    """

    problem: RNNProblem
    device: int
    algorithm: str
    workspace_bytes: int
    """Size of the workspace, whose contents do not outlive a call."""
    least_workspace_bytes: int
    """Size of the workspace if nothing is accumulated."""
    reserve_bytes: int
    weight_size: int
    """Number of elements of the flat weights."""
    generator: Any
    keeps_workspace: bool = False
    """Whether calls that are not replayed use the workspace of their stream, so that no allocator
    looks for memory for each new size."""

    def forward(self, launch: Launch, at: ForwardAddresses) -> None:
        """Fill y, h_n, c_n and, for training, the reserve space."""

    def backward_data(self, launch: Launch, at: BackwardDataAddresses) -> None:
        """Fill dx, dh_0 and dc_0. Changes the reserve space."""

    def backward_weights(
        self, launch: Launch, at: BackwardWeightsAddresses, accumulate: bool = False
    ) -> None:
        """Fill dweights, or add to it."""

    def backward(
        self,
        launch: Launch,
        data: BackwardDataAddresses,
        weights: BackwardWeightsAddresses,
        accumulate: bool = False,
    ) -> None:
        """`backward_data` and `backward_weights`."""
        self.backward_data(launch, data)
        self.backward_weights(launch, weights, accumulate)

    def close(self) -> None:
        """Release everything native."""


class PreparedNetwork(Protocol):
    """A candidate that is ready for any sizes of one network."""

    def bind(
        self, problem: RNNProblem, launch: Launch, generator: Any = None, *, is_exact: bool = False
    ) -> AddressExecutor:
        """Return the executor of a problem of the network.

        With ``is_exact`` everything is chosen for its sizes, which may take milliseconds; else
        sizes that are new to the network cost microseconds, as far as the candidate can do that.
        Raises `UnsupportedError` if the candidate is not for these sizes.
        """


class CandidateSource(Protocol):
    """A source of ways to run a problem: a vendor's library, or dnnffi's own kernels."""

    name: str

    costly: frozenset[str]
    """The algorithms whose executors take seconds to make."""

    @property
    def version(self) -> str:
        """The versions that measured times belong to, besides the device and the problem."""

    def has(self, spec: RNNSpec) -> bool:
        """Return whether the source can run a network on the current device, apart from sizes."""

    def refusal(self, problem: RNNProblem) -> UnsupportedError | None:
        """Return the error for a problem that the source is known not to run; None for others."""

    def may_offer(self, problem: RNNProblem) -> bool:
        """Whether `offers` may have algorithms; on the path of a batch of new sizes."""

    def offers(self, problem: RNNProblem) -> tuple[str, ...]:
        """Return the algorithms worth trying, the most promising first. Takes milliseconds."""

    def prepare(self, problem: RNNProblem, device: int) -> Callable[[], object]:
        """Begin the slow part of making executors; calling the result waits until it is done."""

    def skip_reason(self, algorithm: str, times: Mapping[str, float]) -> str:
        """Return why an algorithm is not measured, by times of the source's others; or empty."""

    def network(
        self, problem: RNNProblem, algorithm: str | None, launch: Launch
    ) -> PreparedNetwork:
        """Return an algorithm ready for all sizes of a network; compiled at the first call.

        ``problem`` is one of its problems. `DnnffiError` if the problem is not for it.
        """

    def make(
        self, problem: RNNProblem, algorithm: str | None, launch: Launch, generator: Any = None
    ) -> AddressExecutor:
        """Return the executor of an algorithm, or of the one that the source's rule picks.

        `DnnffiError` where the problem is not for it.
        """

    def clear(self) -> None:
        """Forget the networks that are ready; executors that exist keep theirs."""

    def generator(self, device: int, seed: int) -> Any:
        """Return the random numbers of its executors' dropout; see `dnnffi.dropout.Generator`."""


ResetArrays = tuple[NDArray, NDArray | None, NDArray | None]
"""Resets on the host: flags, h and c.

The flags have a byte for each row of each step, in the layout of x. It is not zero where the state
before the step is replaced, by h and c [L*D, 1 or B, .]; None stands for zeros.
"""


class PackedNetwork(Protocol):
    """A network whose weights are on a device. Its calls take and give arrays on the host."""

    spec: RNNSpec
    device: Any
    """The adapter, which has a text, a ``version_text`` and the error ``unsupported``."""

    def arrays(self) -> list[NDArray]:
        """Return the arrays that were packed, in PyTorch's order."""

    def run(
        self,
        problem: RNNProblem,
        x: NDArray,
        h_0: NDArray | None,
        c_0: NDArray | None,
        keep: bool = False,
        resets: ResetArrays | None = None,
    ) -> tuple[NDArray, NDArray, NDArray | None]:
        """Return (y, h_n, c_n) of inference; ``resets`` are given if the problem has them.

        With ``keep`` the states stay on the device, and the next such call without initial states
        begins with them. Raises ``ValueError`` if these are of another batch, or in use.
        """

    def forget(self) -> None:
        """Forget the states that stay on the device."""
