"""A problem on the NumPy reference, behind the same doors as a vendor's plan."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnnffi.arrays import Array, array_module
from dnnffi.reference import rnn as reference
from dnnffi.spec.problem import BATCH_MAJOR, PACKED, RNNProblem
from dnnffi.spec.sequences import lengths_to_batch_sizes


class HostGenerator:
    """Random numbers of dropout drawn by NumPy, whatever module computes."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._lock = threading.Lock()

    def masks(self, problem: RNNProblem) -> list[np.ndarray[Any, Any]]:
        """The masks of one forward; moves the generator on."""
        with self._lock:
            return reference.dropout_masks(
                problem.spec, problem.steps, problem.batch, problem.dropout, self._random
            )

    def save(self) -> np.ndarray[Any, Any]:
        """The generator's two 128-bit numbers as bytes."""
        with self._lock:
            state: Any = self._random.bit_generator.state["state"]
        raw = state["state"].to_bytes(16, "little") + state["inc"].to_bytes(16, "little")
        return np.frombuffer(raw, np.uint8)

    def restore(self, states: np.ndarray[Any, Any]) -> None:
        """Continue from saved bytes."""
        if states.nbytes != 32:
            raise ValueError(f"saved states have {states.nbytes} bytes; the reference's have 32")
        raw = states.tobytes()
        with self._lock:
            bits: Any = self._random.bit_generator
            state: Any = bits.state
            state["state"]["state"] = int.from_bytes(raw[:16], "little")
            state["state"]["inc"] = int.from_bytes(raw[16:], "little")
            bits.state = state


class ReferencePlan:
    """Forward and backward of one problem by `dnnffi.reference.rnn`."""

    def __init__(self, problem: RNNProblem, generator: HostGenerator | None = None) -> None:
        self.problem = problem
        self.x_shape, self.h_shape, self.c_shape = (
            problem.x_shape,
            problem.h_shape,
            problem.c_shape,
        )
        self._generator = generator
        packed = problem.layout == PACKED
        self._keywords: dict[str, Any] = {
            "batch_first": problem.layout == BATCH_MAJOR,
            "lengths": None if packed else problem.lengths,
            "batch_sizes": lengths_to_batch_sizes(problem.row_lengths) if packed else None,
            "clip": problem.options.clip,
            "clip_nan": problem.options.clip_nan,
        }

    def infer(
        self, x: Array, h_0: Array | None, c_0: Array | None, weights: Sequence[Array]
    ) -> tuple[Array, Array, Array | None]:
        """(y, h_n, c_n)."""
        return self.forward(x, h_0, c_0, weights)[:3]

    def forward(
        self, x: Array, h_0: Array | None, c_0: Array | None, weights: Sequence[Array]
    ) -> tuple[Array, Array, Array | None, Any]:
        """(y, h_n, c_n, what `backward` needs)."""
        masks = None
        if self._generator is not None:
            xp = array_module(x)
            masks = [xp.asarray(mask) for mask in self._generator.masks(self.problem)]
        done = reference.forward(
            self.problem.spec, x, h_0, c_0, weights, masks=masks, **self._keywords
        )
        return done.y, done.h_n, done.c_n, done.tape

    def backward(
        self,
        saved: Any,
        dy: Array | None,
        dh_n: Array | None,
        dc_n: Array | None,
        *,
        weights_needed: bool,
        retain: bool,
    ) -> tuple[Array, Array, Array | None, list[Array] | None]:
        """(dx, dh_0, dc_0, gradients of the weights in PyTorch's order or None)."""
        grads = reference.backward(saved, dy, dh_n, dc_n)
        return grads.x, grads.h_0, grads.c_0, grads.weights if weights_needed else None
