"""A training step or an inference on addresses, in buffers that hold what a test puts there."""

from __future__ import annotations

import conformance
import numpy as np

from dnnffi.backends.rnn_interface import (
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.weights import RNNWeights

FILLS = {"zeros": 0x00, "NaN": 0xFF, "random": None}
"""Bytes that buffers hold before a call; 0xFF is NaN in every dtype."""


_BLOCK = 65_521  # bytes that are drawn; longer buffers repeat them, at no round distance


class TrainingStep:
    """The arrays of a case, their results, a workspace and a reserve space.

    ``memory`` allocates, ``asarray`` takes arrays to the device.
    """

    def __init__(self, case, executor, memory, asarray):
        self.executor, self.problem = executor, executor.problem
        problem, spec = self.problem, self.problem.spec
        given = conformance.arrays_of(case)
        flat = RNNWeights.pack(given.weights, spec, backend="cudnn").flat
        dtype, byte = memory.dtype(spec.dtype), memory.dtype("uint8")
        named = given._asdict() | {"weights": flat}
        self.given = {
            name: array if array is None else asarray(array) for name, array in named.items()
        }

        def room(nbytes):
            return memory.empty((max(1, nbytes),), byte)

        shapes = {"y": problem.y_shape, "h_n": problem.h_shape}
        shapes |= {"c_n": problem.c_shape} if spec.has_cell else {}
        if problem.training:
            shapes |= {"dx": problem.x_shape, "dh_0": problem.h_shape}
            shapes |= {"dc_0": problem.c_shape} if spec.has_cell else {}
            shapes |= {"dweights": (executor.weight_size,)}
        # Results are bytes, which can be filled and compared; the executor needs only addresses.
        self.results = {
            name: room(int(np.prod(shape)) * dtype.itemsize) for name, shape in shapes.items()
        }
        self.workspace = room(executor.workspace_bytes)
        self.reserve = room(executor.reserve_bytes)
        self._asarray = asarray

    def run(self, launch, fill):
        """Bytes of all results by name, where every buffer holds ``fill`` before the calls.

        The workspace is filled before each call, whose contents do not outlive one.
        """
        filled = (self.workspace, self.reserve, *self.results.values())
        for seed, buffer in enumerate(filled):
            self._fill(buffer, fill, seed)
        at = {name: address(array) for name, array in (self.given | self.results).items()}
        at |= {"workspace": address(self.workspace), "reserve": address(self.reserve)}
        self.executor.forward(launch, self._addresses(ForwardAddresses, at))
        if self.problem.training:
            self._fill(self.workspace, fill, 100)
            self.executor.backward_data(launch, self._addresses(BackwardDataAddresses, at))
            self._fill(self.workspace, fill, 101)
            self.executor.backward_weights(launch, self._addresses(BackwardWeightsAddresses, at))
        return {name: bytes(array.tobytes()) for name, array in self.results.items()}

    def _fill(self, buffer, fill, seed):
        if FILLS[fill] is not None:
            buffer.fill(FILLS[fill])
            return
        block = np.random.default_rng(seed).integers(0, 256, _BLOCK, dtype=np.uint8)
        drawn = self._asarray(block)
        for start in range(0, buffer.size, _BLOCK):
            part = buffer[start : start + _BLOCK]
            part[...] = drawn[: part.size]

    def _addresses(self, made_of, at):
        return made_of(**{name: at.get(name, 0) for name in made_of._fields})


def address(array):
    """Return the address of an array, 0 for None."""
    return 0 if array is None else int(array.data.ptr)


def differing(found, expected):
    """The names of the results whose bytes are not those of another run."""
    return [name for name, there in expected.items() if found[name] != there]
