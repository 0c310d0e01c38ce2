"""Networks that calls have checked: new sizes, and old ones, need few checks more.

What a call says of its network (weights, options, backend) is the same for all of its sizes. It is
checked once, and kept with the weights; the plans of its sizes are referred to weakly, since how
many there are is the business of the backend's cache.
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
        *("_batch_first", "_device", "_network", "_options", "_plans", "_spec", "_training"),
        *("backend", "buffer", "find", "generation", "kind", "ndarray"),
    )

    def __init__(
        self,
        backend: DeviceRNNBackend,
        network: Network,
        spec: RNNSpec,
        device: int,
        buffer: Any,
        batch_first: bool,
        options: RNNOptions,
        training: bool,
    ) -> None:
        self.backend, self.buffer = backend, buffer
        self.kind: str = backend.library.kind
        self.ndarray = backend.ndarray
        self._spec, self._device, self._batch_first = spec, device, batch_first
        self._options, self._training = options, training
        self.generation = backend.generation
        """Count of the backend when the network was checked; it counts on when it forgets plans."""
        self._network = ref(network)  # of the backend, which may drop it
        self._plans: dict[Sizes, ref[Any]] = {}
        # The dictionary's own, because it is on the path of every call.
        self.find: Callable[[Sizes], ref[Any] | None] = self._plans.get
        """The plan of some sizes, while it lives, or None."""

    def new_plan(self, x: Any, sizes: Sizes) -> Any:
        """Return a plan for new sizes, of x, an array of the backend.

        None if the call needs the checks of a new network. Raises as `problem_of`.
        """
        network, device, backend = self._network(), self._device, self.backend
        shape, lengths, batch_sizes = sizes
        if network is None or 0 in shape or x.data.device_id != device:
            return None
        rest = self._batch_first, lengths, batch_sizes, self._options, self._training, 0.0
        problem = problem_of(self._spec, x, *rest)
        key = self._spec, shape, device, *rest, None
        plan = backend.plans.get(key, lambda: backend.plan_of(network, problem, device, None))
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
