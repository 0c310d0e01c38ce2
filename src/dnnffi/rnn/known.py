"""Networks that calls have checked: new sizes, and old ones, need few checks more.

What a call says of its network (weights, options, backend) is the same for all of its sizes. It is
checked once, and kept with the weights; the plans of its sizes are referred to weakly, since how
many there are is the business of the backend's cache.
"""

from __future__ import annotations

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
        *("_batch_first", "_device", "_generation", "_network", "_options", "_plans", "_spec"),
        *("_training", "backend", "buffer", "kind"),
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
        self._spec, self._device, self._batch_first = spec, device, batch_first
        self._options, self._training = options, training
        self._generation = backend.generation
        self._network = ref(network)  # of the backend, which may drop it
        self._plans: dict[Sizes, ref[Any]] = {}

    def plan(self, x: Any, lengths: Lengths, batch_sizes: Lengths) -> Any:
        """Return the plan for these sizes of x, an array of the backend.

        None if the call needs the checks of a new network. Raises as `problem_of`.
        """
        backend = self.backend
        if x.__class__ is not backend.ndarray or self._generation != backend.generation:
            return None
        sizes = x.shape, lengths, batch_sizes
        known = self._plans.get(sizes)
        plan = None if known is None else known()
        if plan is not None:
            return plan
        network, device = self._network(), self._device
        if network is None or 0 in x.shape or x.data.device_id != device:
            return None
        rest = self._batch_first, lengths, batch_sizes, self._options, self._training, 0.0
        problem = problem_of(self._spec, x, *rest)
        key = self._spec, x.shape, device, *rest, None
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
