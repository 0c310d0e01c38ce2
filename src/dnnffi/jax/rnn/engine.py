"""Engines that compute for a handler: a vendor's executors on addresses, or the host reference."""

from __future__ import annotations

from math import prod
from typing import Any, Protocol

import numpy as np

from dnnffi.backends.entry import Backend
from dnnffi.backends.rnn_interface import (
    AddressExecutor,
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import Launch
from dnnffi.jax.engine import Host, Lender, VendorHandles, memory_at
from dnnffi.reference import rnn as reference
from dnnffi.rnn.candidates import CandidateSet
from dnnffi.rnn.tuner import RNNTuner
from dnnffi.spec.names import LayoutName
from dnnffi.spec.problem import BATCH_MAJOR, RNNProblem
from dnnffi.weights import RNNWeights


class Engine(Lender, Protocol):
    """Makes executors of networks."""

    def decide(self, problem: RNNProblem) -> str:
        """Return the candidate for a problem. Raises `DnnffiError` where it cannot be run."""

    def make(self, problem: RNNProblem, candidate: str) -> AddressExecutor:
        """Return the executor of a candidate on the current device."""


class VendorEngine(VendorHandles):
    """A vendor's library."""

    def __init__(
        self, entry: Backend, library: VendorLibrary, tuner: RNNTuner | None = None
    ) -> None:
        assert entry.candidates is not None
        self._entry = entry
        super().__init__(library)
        self._candidates = CandidateSet(*entry.candidates(library))
        self._tuner = tuner
        self._rules: dict[RNNProblem, str] = {}

    def decide(self, problem: RNNProblem) -> str:
        self._candidates.check(problem)
        options = problem.options
        if options.algorithm != "auto":
            return ""
        if self._tuner is not None and options.tune != "off":
            found = self._tuner.find(problem, self.device())
            if found is not None:
                return found.replayed or found.direct  # XLA captures, as a replayed graph is
        if not self._candidates.is_for_vendor(problem):
            return ""  # the rule of dnnffi's own kernels, which takes the first that fits
        rule = self._rules.get(problem)
        if rule is None:
            rule = self._rules[problem] = f"{self._entry.name} {self.make(problem, '').algorithm}"
        return rule

    def make(self, problem: RNNProblem, candidate: str) -> AddressExecutor:
        with self.current() as launch:
            try:
                return self._candidates.make(problem, candidate or None, launch)
            except KeyError:  # of a program: the candidates that `decide` names are known
                raise self._library.unsupported(f"has no candidate {candidate!r}") from None


class ReferenceEngine(Host):
    """The NumPy reference on the buffers of XLA on the host, with weights in a layout."""

    def __init__(self, layout: LayoutName = "cudnn") -> None:
        self._layout = layout

    def decide(self, problem: RNNProblem) -> str:
        return ""

    def make(self, problem: RNNProblem, candidate: str) -> AddressExecutor:
        return ReferenceExecutor(problem, self._layout)


_READY = b"dnnffi: ready..."
_SPENT = b"dnnffi: spent..."
_BRANCH_NOT_TAKEN = bytes(len(_READY))
"""The mark where JAX puts zeros in place of a reserve space: mapped by `jax.vmap`, `lax.cond` runs
the backward pass of both branches, and drops the gradients of the branch that was not taken."""


class ReferenceExecutor(AddressExecutor):
    """An executor of one problem that computes by `dnnffi.reference`.

    Backward data spends its reserve space, as that of vendors' executors: it holds x, resets with
    the states that replace others, and a mark that says whether it was spent.
    """

    algorithm = "reference"
    generator: Any = None
    device = 0

    def __init__(self, problem: RNNProblem, layout: LayoutName) -> None:
        self.problem = problem
        self._layout = layout
        self._dtype = dtype_object(problem.spec.dtype)
        item = self._dtype.itemsize
        shapes = [parameter.shape for parameter in problem.spec.parameter_shapes()]
        self.weight_size = sum(map(prod, shapes))
        self._x_bytes = prod(problem.x_shape) * item
        self._reset_shapes: tuple[tuple[int, int, int], ...] = ()
        flags_bytes = 0
        if problem.has_resets:
            states = problem.h_shape, problem.c_shape
            self._reset_shapes = states[: 1 + problem.spec.has_cell]
            flags_bytes = prod(problem.leading_shape)
        self._flags_offset = self._x_bytes + sum(map(prod, self._reset_shapes)) * item
        self._mark_offset = self._flags_offset + flags_bytes
        # Backward data has all gradients at once, and leaves those of the weights there.
        self.workspace_bytes = self.least_workspace_bytes = (
            self.weight_size * item if problem.training else 0
        )
        self.reserve_bytes = self._mark_offset + len(_READY) if problem.training else 0

    def forward(self, launch: Launch, at: ForwardAddresses) -> None:
        x, resets = self._array(at.x, self.problem.x_shape), self._resets(at)
        done = self._run(x, at.h_0, at.c_0, at.weights, resets, training=False)
        self._array(at.y, self.problem.y_shape)[...] = done.y
        self._array(at.h_n, self.problem.h_shape)[...] = done.h_n
        if done.c_n is not None:
            self._array(at.c_n, self.problem.c_shape)[...] = done.c_n
        if self.problem.training:
            memory_at(at.reserve, self._x_bytes)[:] = memory_at(at.x, self._x_bytes)[:]
            if resets is not None:
                for kept, given in zip(self._kept_resets(at.reserve), resets, strict=True):
                    kept[...] = given
            self._mark(at.reserve)[:] = _READY

    def backward_data(self, launch: Launch, at: BackwardDataAddresses) -> None:
        mark = self._mark(at.reserve)
        if mark[:] not in (_READY, _BRANCH_NOT_TAKEN):
            raise RuntimeError(
                "the reserve space is not from a forward pass, or was already used by backward data"
            )
        problem, spec = self.problem, self.problem.spec
        x = self._array(at.reserve, problem.x_shape)
        resets = self._kept_resets(at.reserve) if problem.has_resets else None
        tape = self._run(x, at.h_0, at.c_0, at.weights, resets, training=True).tape
        assert tape is not None
        dy = self._array(at.dy, problem.y_shape)
        dh_n = self._array(at.dh_n, problem.h_shape) if at.dh_n else None
        dc_n = self._array(at.dc_n, problem.c_shape) if at.dc_n else None
        grads = reference.backward(tape, dy, dh_n, dc_n)
        self._array(at.dx, problem.x_shape)[...] = grads.x
        if at.dh_0:
            self._array(at.dh_0, problem.h_shape)[...] = grads.h_0
        if at.dc_0 and grads.c_0 is not None:
            self._array(at.dc_0, problem.c_shape)[...] = grads.c_0
        if at.dreset_h and grads.reset_to is not None:
            of_states = at.dreset_h, at.dreset_c
            for address, shape, gradient in zip(
                of_states, self._reset_shapes, grads.reset_to, strict=False
            ):
                self._array(address, shape)[...] = gradient
        out = self._array(at.workspace, (self.weight_size,))
        RNNWeights.pack(grads.weights, spec, backend=self._layout, out=out)
        mark[:] = _SPENT

    def backward_weights(
        self, launch: Launch, at: BackwardWeightsAddresses, accumulate: bool = False
    ) -> None:
        gradient = self._array(at.dweights, (self.weight_size,))
        found = self._array(at.workspace, (self.weight_size,))
        gradient[...] = gradient + found if accumulate else found

    def close(self) -> None:
        pass

    def _run(
        self, x: Any, h_0: int, c_0: int, weights: int, resets: list[Any] | None, *, training: bool
    ) -> reference.Forward:
        problem = self.problem
        flat = self._array(weights, (self.weight_size,))
        packed = RNNWeights(flat, problem.spec, backend=self._layout)
        return reference.forward(
            problem.spec,
            x,
            self._array(h_0, problem.h_shape) if h_0 else None,
            self._array(c_0, problem.c_shape) if c_0 else None,
            packed.arrays(),
            batch_first=problem.layout == BATCH_MAJOR,
            lengths=problem.lengths,
            resets=None if resets is None else resets[0],
            reset_to=None if resets is None else (*resets[1:], None)[:2],
            clip=problem.options.clip,
            clip_nan=problem.options.clip_nan,
            training=training,
        )

    def _resets(self, at: ForwardAddresses) -> list[Any] | None:
        """Return the flags and the states that replace others; None without resets."""
        if not self.problem.has_resets:
            return None
        found = [self._flags(at.resets)]
        states = at.reset_h, at.reset_c
        for address, shape in zip(states, self._reset_shapes, strict=False):
            layers, _, width = shape
            if address:
                found.append(self._array(address, (layers, at.reset_rows, width)))
            else:
                found.append(np.zeros((layers, 1, width), self._dtype))
        return found

    def _kept_resets(self, reserve: int) -> list[Any]:
        """Return the same in the reserve space, where each state has all rows."""
        found = [self._flags(reserve + self._flags_offset)]
        address = reserve + self._x_bytes
        for shape in self._reset_shapes:
            found.append(self._array(address, shape))
            address += prod(shape) * self._dtype.itemsize
        return found

    def _flags(self, address: int) -> Any:
        shape = self.problem.leading_shape
        return np.frombuffer(memory_at(address, prod(shape)), np.uint8).reshape(shape)

    def _mark(self, reserve: int) -> Any:
        return memory_at(reserve + self._mark_offset, len(_READY))

    def _array(self, address: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        memory = memory_at(address, prod(shape) * self._dtype.itemsize)
        return np.frombuffer(memory, self._dtype).reshape(shape)
