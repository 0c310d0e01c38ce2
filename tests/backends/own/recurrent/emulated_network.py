"""A recurrent network on dnnffi's kernels, all of it on the host."""

from __future__ import annotations

from typing import NamedTuple

import conformance
import numpy as np

from dnnffi.backends.own.recurrent import candidates
from dnnffi.backends.own.recurrent.config import KernelConfig, of_whole_rows
from dnnffi.backends.own.recurrent.dropout import Generator
from dnnffi.backends.own.recurrent.network import OwnNetwork
from dnnffi.backends.rnn_interface import (
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import Launch
from dnnffi.weights import RNNWeights
from simulators.cuda.emulator import EmulatedMemory

NAN = 0xFF
"""A byte of which NaN is made in every dtype."""


class ResetArrays(NamedTuple):
    """Flags of resets in the layout of x, and the states that replace others, or None."""

    flags: np.ndarray
    h: np.ndarray | None = None
    c: np.ndarray | None = None


def kind_of(problem, backward=False, layers=1, narrow=False):
    """Return the kind of kernel that a problem needs, with ``layers`` layers at once."""
    return candidates.kind_of(problem)._replace(
        backward=backward, layers=layers, narrow=narrow and not backward
    )


def kernel_config(
    kind, units=8, rows=8, subtiles=1, warps=(1, 4), kept=(1, 0), ring=3, staged=True, **flags
):
    """A config; ``kept`` are the steps of k in registers and in shared memory, at most."""
    if parts := flags.get("parts"):
        return of_whole_rows(kind, rows, parts, flags["blocks"])
    shape = units, rows, subtiles, *warps
    empty = KernelConfig(kind, *shape, 0, 0, staged, ring=ring, **flags)
    registers = min(kept[0], empty.warp_k)
    shared = min(kept[1], empty.warp_k - registers)
    return empty._replace(k_registers=registers, k_shared=shared)


def way(units=8, rows=8, subtiles=1, warps=(1, 4), kept=(1, 0), **rest):
    """Return the arguments of `kernel_config` besides the kind."""
    sizes = {"units": units, "rows": rows, "subtiles": subtiles, "warps": warps, "kept": kept}
    return sizes | rest


def rows_of(parts, rows=1, blocks=1):
    """Return the arguments of a config without tensor cores, ``rows`` rows a group."""
    return {"rows": rows, "parts": parts, "blocks": blocks}


class Network:
    """A problem's executor with its arrays on the host.

    One that drops draws from a generator of its own, seeded with ``drops_by``.
    """

    def __init__(
        self, cublas, problem, forward, backward=None, *, room=12, seed=0, offset=0, drops_by=0
    ):
        self.problem, self.spec = problem, problem.spec
        self.memory = EmulatedMemory(room, seed, offset)
        self.launch = Launch(self.memory.current_stream(), 0)
        self.generator = Generator(self.memory, 0, drops_by) if problem.drops else None
        self.executor = self.made(cublas, forward, backward)
        aligned = EmulatedMemory()
        self.aligned = aligned
        self.workspace = aligned.empty((self.executor.workspace_bytes,), np.uint8)
        self.reserve = aligned.empty((max(1, self.executor.reserve_bytes),), np.uint8)
        self.reserve.fill(NAN)

    def made(self, cublas, forward, backward):
        """The executor."""
        self.network = OwnNetwork(self.problem, 0, self.memory, cublas, "own", forward, backward)
        return self.network.bind(self.problem, self.launch, self.generator, is_exact=True)

    def array(self, values):
        return None if values is None else self.memory.array(values)

    def new(self, shape):
        made = self.memory.empty(shape, self.memory.dtype(self.spec.dtype))
        made.view(np.uint8).fill(NAN)  # unwritten values show in results
        return made

    def results(
        self,
        arrays,
        accumulate=None,
        between=lambda: None,
        in_one_call=False,
        resets=None,
        lengths=None,
    ):
        """All results of a training step, or y, h_n and c_n of an inference.

        ``between`` is called after the forward pass. Both parts of the backward pass are one call
        of the executor or two. Gradients of the states of ``resets`` are left in ``dresets``.
        ``lengths`` are for the device.
        """
        problem, spec = self.problem, self.spec
        cell = spec.has_cell
        x, h_0, c_0 = map(self.array, arrays[:3])
        packed = RNNWeights.pack(arrays.weights, spec, backend="cudnn").flat
        weights = self.array(packed)
        y, h_n = self.new(problem.y_shape), self.new(problem.h_shape)
        c_n = self.new(problem.c_shape) if cell else None
        flags, *reset_to = map(self.array, resets or (None, None, None))
        reset_rows = 1 if reset_to[0] is None else reset_to[0].shape[1]
        self.workspace.fill(NAN)  # no call may depend on the contents of the workspace before it
        self.executor.forward(
            self.launch,
            ForwardAddresses(
                *map(address, (x, y, h_0, h_n, c_0, c_n, weights)),
                self.workspace.data.ptr,
                self.reserve.data.ptr if problem.training else 0,
                *map(address, (flags, *reset_to)),
                reset_rows,
                address(self.array(lengths)),
            ),
        )
        none = [None] * 4
        if not problem.training:
            self.check()
            return conformance.Results(y, h_n, c_n, *none)
        between()
        dy, dh_n, dc_n = map(self.array, arrays[4:])
        dx = self.new(problem.x_shape)
        dh_0 = self.new(problem.h_shape) if arrays.h_0 is not None else None
        dc_0 = self.new(problem.c_shape) if arrays.c_0 is not None else None
        dweights = self.new((self.executor.weight_size,))
        if accumulate is not None:
            dweights[...] = RNNWeights.pack(accumulate, spec, backend="cudnn").flat
        buffers = self.workspace.data.ptr, self.reserve.data.ptr
        shapes = problem.h_shape, problem.c_shape
        self.dresets = [
            None if state is None else self.new(shape)
            for state, shape in zip(reset_to, shapes, strict=True)
        ]
        of_data = BackwardDataAddresses(
            *map(address, (y, h_0, c_0, weights, dy, dh_n, dc_n, dx, dh_0, dc_0)),
            *buffers,
            *map(address, (flags, *self.dresets)),
        )
        of_weights = BackwardWeightsAddresses(*map(address, (x, h_0, y, dweights)), *buffers)
        self.workspace.fill(NAN)
        if in_one_call:
            self.executor.backward(self.launch, of_data, of_weights, accumulate is not None)
        else:
            self.executor.backward_data(self.launch, of_data)
            self.workspace.fill(NAN)
            self.executor.backward_weights(self.launch, of_weights, accumulate is not None)
        self.check()
        unpacked = RNNWeights(np.array(dweights), spec, backend="cudnn").arrays()
        return conformance.Results(y, h_n, c_n, dx, dh_0, dc_0, unpacked)

    def check(self):
        self.memory.check_margins()
        self.aligned.check_margins()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.network.close()


def address(array):
    return 0 if array is None else array.data.ptr
