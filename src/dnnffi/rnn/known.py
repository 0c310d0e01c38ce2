"""Networks that calls have checked, so that later calls check their sizes alone.

The arguments of a call about its network (weights, options, backend) are the same for all sizes.
They are checked once, and kept with the weights. Plans are referred to weakly: the cache of the
backend owns them, and limits their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from dnnffi.rnn.backend import DeviceRNNBackend
from dnnffi.rnn.call import problem_of
from dnnffi.rnn.network import Network
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.rnn import RNNSpec

MAX_NETWORKS = 8
"""Networks that the same weights know before they forget all."""

MAX_SIZES = 1024
"""Sizes that a network knows before it forgets all."""

Lengths = tuple[int, ...] | None
Sizes = tuple[tuple[int, ...], Lengths, Lengths]
"""Shape of x, lengths and batch sizes."""


class KnownNetwork:
    """A network without dropout that a call has checked: ``buffer`` has its weights."""

    __slots__ = (
        *("_batch_first", "_network", "_options", "_plans", "_spec", "_training"),
        *("backend", "buffer", "find", "generation"),
    )

    def __init__(
        self,
        backend: DeviceRNNBackend,
        network: Network,
        spec: RNNSpec,
        buffer: Any,
        batch_first: bool,
        options: RNNOptions,
        training: bool,
    ) -> None:
        self.backend, self.buffer = backend, buffer
        self._spec, self._batch_first = spec, batch_first
        self._options, self._training = options, training
        self.generation = backend.generation
        """`RNNBackend.generation` when the network was checked."""
        self._network = ref(network)  # of the backend, which may drop it
        self._plans: dict[Sizes, ref[Any]] = {}
        # The dictionary's own, because it is on the path of every call.
        self.find: Callable[[Sizes], ref[Any] | None] = self._plans.get
        """The plan of some sizes, while it lives, or None."""

    def new_plan(self, x: Any, sizes: Sizes) -> Any:
        """Return a plan for new sizes, of x, an array of the backend.

        None if the call needs the checks of a new network. Raises as `problem_of`.
        """
        network, backend = self._network(), self.backend
        shape, lengths, batch_sizes = sizes
        if network is None or 0 in shape or x.data.device_id != network.parts.device:
            return None
        rest = self._batch_first, lengths, batch_sizes, self._options, self._training, 0.0
        problem = problem_of(self._spec, x, *rest)
        key = self._spec, shape, network.parts.device, *rest, None
        plan = backend.plans.get(key, lambda: backend.plan_of(network, problem, None))
        self.add(sizes, plan)
        return plan

    def add(self, sizes: Sizes, plan: Any) -> None:
        """Know the plan of some sizes while it lives."""
        if len(self._plans) >= MAX_SIZES:
            self._plans.clear()
        self._plans[sizes] = ref(plan)

    def __len__(self) -> int:
        """Return the number of sizes that are known."""
        return len(self._plans)
