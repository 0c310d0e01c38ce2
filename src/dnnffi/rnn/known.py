"""Networks that calls have checked, so that later calls check their sizes alone.

The arguments of a call about its network (weights, options, backend, dropout) are the same for all
sizes. They are checked once, and kept with the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from weakref import ref

import numpy as np

from dnnffi.backends.registry import REFERENCE
from dnnffi.reference.rnn import grouped
from dnnffi.rnn.backend import DeviceRNNBackend, RNNBackend
from dnnffi.rnn.call_settings import CallSettings, PlanKey, problem_of
from dnnffi.rnn.executor_plan import ExecutorPlan
from dnnffi.rnn.network import Network
from dnnffi.rnn.reference_plan import ReferenceRNNPlan
from dnnffi.weights import RNNWeights

MAX_NETWORKS = 64
"""Networks that weights know before they forget all.

Those of `dnnffi.torch` share what they know with all of the same sizes.
"""


class KnownNetwork:
    """A network that a call has checked, with arrays of a device, and what it ``asked``."""

    __slots__ = ("_network", "asked", "backend", "find", "generation", "ndarray")

    is_on_host: Literal[False] = False
    """Whether plans compute on NumPy arrays."""

    def __init__(self, backend: DeviceRNNBackend, network: Network, asked: CallSettings) -> None:
        self.backend, self.asked = backend, asked
        self.ndarray = backend.ndarray
        self.generation = backend.generation
        """`RNNBackend.generation` when the network was checked."""
        self._network = ref(network)  # of the backend, which may drop it
        # The cache's own, because it is on the path of every call.
        self.find: Callable[[PlanKey], Any | None] = backend.plans.find
        """The plan of some sizes, or None."""

    def new_plan(self, x: Any, key: PlanKey) -> Any:
        """Return a plan for new sizes, of x, an array of the backend.

        None if the call needs the checks of a new network. Raises as `problem_of`.
        """
        network = self._network()
        shape, lengths, batch_sizes, asked = key
        if network is None or 0 in shape or x.data.device_id != network.parts.device:
            return None
        is_complete, generator = asked.find_generator()
        if not is_complete:
            return None
        problem = problem_of(x, lengths, batch_sizes, asked)
        if not problem.has_steps:
            return None
        if problem.has_device_lengths:
            device = network.parts.device
            if self.backend.device_lengths_refusal(problem, device) is not None:
                return None
        return self.backend.plans.add(key, ExecutorPlan(problem, network, generator))


class KnownReference:
    """A network that a call on NumPy arrays has checked, as `KnownNetwork`.

    ``native`` is the weights as plans of the reference take them.
    """

    __slots__ = ("asked", "backend", "find", "generation", "native")

    ndarray = np.ndarray
    is_on_host: Literal[True] = True

    @staticmethod
    def can_know(backend: RNNBackend, weights: RNNWeights) -> bool:
        """Whether the reference computes on views of these weights, which a call has used."""
        return (
            backend.name == REFERENCE.name
            and isinstance(weights._buffer, np.ndarray)
            and weights._arrays is not None  # else they are copies
        )

    def __init__(self, backend: RNNBackend, asked: CallSettings, weights: RNNWeights) -> None:
        self.backend, self.asked = backend, asked
        self.generation = backend.generation
        self.native = grouped(weights.spec, weights.arrays())
        self.find: Callable[[PlanKey], Any | None] = backend.plans.find

    def new_plan(self, x: Any, key: PlanKey) -> Any:
        """Return a plan for new sizes.

        None where no row has a step, and if the random numbers are gone. Raises as `problem_of`.
        """
        shape, lengths, batch_sizes, asked = key
        is_complete, generator = asked.find_generator()
        if not is_complete or 0 in shape:
            return None
        problem = problem_of(x, lengths, batch_sizes, asked)
        if not problem.has_steps:
            return None
        return self.backend.plans.add(key, ReferenceRNNPlan(problem, generator))
