"""A problem on the NumPy reference, with the interface of a vendor's plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.random import PCG64, Generator

from dnnffi.device.arrays import array_module, as_array
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import AnyArray
from dnnffi.device.spans import Span, check_apart, span_of, spans_of, written_span
from dnnffi.errors import ContextError, UnsupportedError
from dnnffi.execution.locks import new_lock
from dnnffi.reference import rnn as reference
from dnnffi.reference.direction import Weights
from dnnffi.rnn.context import Context, Phase
from dnnffi.rnn.empty import EmptyRNNPlan
from dnnffi.rnn.resets import Resets, row_spans
from dnnffi.rnn.row_arrays import lengths_on_host
from dnnffi.spec.problem import BATCH_MAJOR, PACKED, RNNProblem
from dnnffi.spec.sequences import lengths_to_batch_sizes
from dnnffi.weights import RNNWeights


class HostGenerator:
    """Random numbers of dropout, drawn by NumPy for arrays of any module."""

    def __init__(self, seed: int) -> None:
        state: Any = PCG64(seed).state["state"]
        # PCG64's state and increment at the start, and the number of draws since.
        self._position: tuple[int, int, int] = state["state"], state["inc"], 0
        self._lock = new_lock()

    def masks(self, problem: RNNProblem) -> list[np.ndarray[Any, Any]]:
        """Draw the masks of one forward pass, which advances the generator."""
        spec = problem.spec
        count = (spec.num_layers - 1) * prod(spec.y_shape(problem.steps, problem.batch))
        with self._lock:
            # The numbers are taken in one go and drawn without the lock, by a generator of their
            # own: NumPy's has a lock too, which a forked child could find taken.
            position = state, inc, drawn = self._position
            self._position = state, inc, drawn + count
        rng = Generator(_bits_at(*position))
        return reference.dropout_masks(spec, problem.steps, problem.batch, problem.dropout, rng)

    def save(self) -> np.ndarray[Any, Any]:
        """Return the generator's two 128-bit numbers as bytes."""
        state: Any = _bits_at(*self._position).state["state"]
        raw = state["state"].to_bytes(16, "little") + state["inc"].to_bytes(16, "little")
        return np.frombuffer(raw, np.uint8)

    def restore(self, states: np.ndarray[Any, Any]) -> None:
        """Continue from saved bytes."""
        raw = states.tobytes()
        self._position = int.from_bytes(raw[:16], "little"), int.from_bytes(raw[16:], "little"), 0


def _bits_at(state: int, inc: int, drawn: int) -> PCG64:
    """Return a bit generator with this state and increment, advanced by ``drawn`` draws."""
    bits = PCG64(0)
    started: Any = bits.state
    started["state"] = {"state": state, "inc": inc}
    bits.state = started
    bits.advance(drawn)
    return bits


class ReferenceRNNPlan:
    """Forward and backward passes of one problem by `dnnffi.reference.rnn`."""

    title = "the reference"

    def __init__(self, problem: RNNProblem, generator: HostGenerator | None = None) -> None:
        self.problem = problem
        self.x_shape, self.y_shape = problem.x_shape, problem.y_shape
        self.h_shape, self.c_shape = problem.h_shape, problem.c_shape
        self.has_cell = problem.spec.has_cell
        self.device = 0
        self._generator = generator
        self._dtype = dtype_object(problem.spec.dtype)
        packed = problem.layout == PACKED
        self._keywords: dict[str, Any] = {
            "batch_first": problem.layout == BATCH_MAJOR,
            "lengths": None if packed else problem.lengths,
            "batch_sizes": lengths_to_batch_sizes(problem.row_lengths) if packed else None,
            "clip": problem.options.clip,
            "clip_nan": problem.options.clip_nan,
        }
        self._network = reference.prepare(
            problem.spec, np, problem.x_shape, self._dtype, **self._keywords
        )

        plain = None if problem.training else self._network.plain
        self._infer = None if plain is None else plain.run
        """Computes known calls, if it can: y and h_n of x, h_0 and the weights."""

    def with_lengths(self, lengths: tuple[int, ...]) -> ReferenceRNNPlan:
        """Return a plan for the same problem with these lengths."""
        return ReferenceRNNPlan(self.problem._replace(lengths=lengths), self._generator)

    def accepts(self, array: Any, shape: tuple[int, ...]) -> bool:
        """Whether an array is one of NumPy that is used as it is; others are looked at closely."""
        if array.__class__ is not np.ndarray or array.shape != shape:
            return False
        flags = array.flags
        return flags.c_contiguous and flags.aligned and array.dtype == self._dtype

    is_compatible = accepts

    def accepts_all(self, x: Any, h_0: Any, c_0: Any) -> bool:
        """Whether `forward_known` takes these arrays; states may be None."""
        accepts = self.accepts
        return (
            accepts(x, self.x_shape)
            and (h_0 is None or accepts(h_0, self.h_shape))
            and (c_0 is None or accepts(c_0, self.c_shape))
        )

    def forward(
        self,
        x: AnyArray,
        h_0: AnyArray | None,
        c_0: AnyArray | None,
        weights: Sequence[AnyArray],
        resets: Resets | None = None,
    ) -> tuple[AnyArray, AnyArray, AnyArray | None, Context]:
        """Return (y, h_n, c_n, the context for `backward`)."""
        masks = None
        if self._generator is not None:
            xp = array_module(x)
            masks = [xp.asarray(mask) for mask in self._generator.masks(self.problem)]
        spec, training = self.problem.spec, self.problem.training
        flags, reset_to = None, None
        if resets is not None:
            flags = resets.flags
            reset_to = None if resets.h is None else (resets.h, resets.c)
        y, h_n, c_n, tape = reference.forward(
            *(spec, x, h_0, c_0, weights),
            masks=masks,
            training=training,
            resets=flags,
            reset_to=reset_to,
            **self._keywords,
        )
        return y, h_n, c_n, Context(self, 0, tape, Phase.FORWARD)

    def forward_known(
        self, x: AnyArray, h_0: AnyArray | None, c_0: AnyArray | None, weights: list[Weights]
    ) -> tuple[AnyArray, AnyArray, AnyArray | None, Context | None]:
        """Do the same as `forward` on arrays of `accepts_all`, with grouped NumPy weights."""
        if self._infer is not None:
            y, h_n = self._infer(x, h_0, weights)
            return y, h_n, None, None
        training = self.problem.training
        masks = None
        if self._generator is not None:
            masks = self._generator.masks(self.problem)
        y, h_n, c_n, tape = reference.run(
            self._network, x, h_0, c_0, weights, masks, training=training
        )
        return y, h_n, c_n, Context(self, 0, tape, Phase.FORWARD) if training else None

    def backward(
        self,
        saved: Context,
        dy: AnyArray | None,
        dh_n: AnyArray | None,
        dc_n: AnyArray | None,
        *,
        weights_needed: bool,
        retain: bool,
    ) -> tuple[AnyArray, AnyArray, AnyArray | None, list[AnyArray] | None, Any]:
        """Return (dx, dh_0, dc_0, gradients of the weights or None, those of reset states or None).

        The weights are in PyTorch's order; states of resets are a pair, with a row each.
        """
        if retain:
            saved.check(Phase.FORWARD)
        else:
            saved.take(Phase.FORWARD)
        try:
            grads = reference.backward(saved.owner, dy, dh_n, dc_n)
        except BaseException:
            saved.reach(Phase.FORWARD)  # nothing was spent
            raise
        dweights = grads.weights if weights_needed else None
        return grads.x, grads.h_0, grads.c_0, dweights, grads.reset_to

    @np.errstate(all="ignore")
    def gradient(
        self, found: list[AnyArray], weights: RNNWeights, out: RNNWeights | None, accumulate: bool
    ) -> RNNWeights:
        """Return what a backward pass ``found`` as the gradient of ``weights``, or in ``out``."""
        packed = RNNWeights.pack(found, weights.spec, backend=weights.backend)
        if out is None:
            return packed
        out.flat[...] = out.flat + packed.flat if accumulate else packed.flat
        return out

    def report(self) -> str:
        """Return what runs, in plain words."""
        return f"{self.problem}\nthe NumPy reference; there is nothing to choose"


class ReferenceBufferPlan:
    """A plan of the reference, or without a step, with the interface of a `BufferPlan`."""

    def __init__(self, plan: ReferenceRNNPlan | EmptyRNNPlan) -> None:
        self.plan = plan
        self.closed = False
        self._saved: Any = None
        # Gradients of the weights from backward data, one entry or none: of several threads that
        # ask for it, pop() gives it to one.
        self._found: list[Any] = []
        self._read: list[Span] = []  # what the backward passes of the last forward pass read again

    def forward(
        self,
        x: AnyArray,
        h_0: AnyArray | None,
        c_0: AnyArray | None,
        weights: Any,
        out: Any,
        lengths: AnyArray | None = None,
        resets: Resets | None = None,
    ) -> tuple[AnyArray, AnyArray, AnyArray | None]:
        """Return (y, h_n, c_n), copied into ``out`` if it is given."""
        self._open()
        flat = weights if isinstance(weights, list) else [weights]
        read = spans_of(("x", "h_0", "c_0", *("weights",) * len(flat)), (x, h_0, c_0, *flat))
        if resets is not None:
            read.append(span_of("resets", resets.flags))
        targets = self._targets(("y", "h_n", "c_n"), out, [*read, *row_spans(resets, lengths)])
        if lengths is not None and isinstance(self.plan, ReferenceRNNPlan):
            self.plan = self.plan.with_lengths(lengths_on_host(lengths, self.plan.problem.steps))
        *results, self._saved = self.plan.forward(x, h_0, c_0, weights, resets)
        self._found.clear()
        done = _into(out, targets, results)
        self._read = [*read, span_of("y", as_array("y", done[0]))]
        return done

    def backward(
        self,
        gradients: tuple[Any, ...] | None,
        weights: RNNWeights | None,
        out: Any = None,
        out_weights: RNNWeights | None = None,
        accumulate: bool = False,
    ) -> tuple[tuple[Any, ...] | None, RNNWeights | None]:
        """Return (dx, dh_0, dc_0) and the gradient of ``weights``, in the arrays given for them.

        The former are followed by the gradients of the states of resets, a pair or None. Backward
        data is left out if ``gradients``, (dy, dh_n, dc_n), is None, and the gradient of the
        weights if ``weights`` is None.
        """
        self._open()
        if not self.plan.problem.training:
            raise ContextError("this plan is for inference; make it with training=True")
        written = [] if out_weights is None else [written_span("out_weights", out_weights._buffer)]
        found: Any
        if gradients is not None:
            saved = self._saved
            if saved is None:
                raise ContextError(
                    "backward data runs once after each forward pass: call forward first"
                )
            names, read = ("dx", "dh_0", "dc_0"), spans_of(("dy", "dh_n", "dc_n"), gradients)
            targets = self._targets(names, out, [*self._read, *read])
            check_apart(written, [*self._read, *read, *spans_of(names, targets)])
            *results, found, of_resets = self.plan.backward(
                saved, *gradients, weights_needed=True, retain=False
            )
            if self._saved is saved:
                self._saved = None
            out = *_into(out, targets, results), of_resets
            if weights is None:
                self._found[:] = [found]
        else:
            check_apart(written, [one for one in self._read if one.name in ("x", "h_0", "y")])
            try:
                found = self._found.pop()
            except IndexError:
                message = "backward weights runs once, after backward data"
                raise ContextError(message) from None
        if weights is not None:
            out_weights = self.plan.gradient(found, weights, out_weights, accumulate)
        return out, out_weights

    def autotune(self) -> None:
        """Do nothing: there is nothing to measure."""
        self._open()

    def capture(self, step: Callable[[], Any]) -> Any:
        """Raise `UnsupportedError`: there is no graph to capture."""
        raise UnsupportedError(self.plan.title, "", "has no graphs; call the step itself")

    def report(self) -> str:
        """Return what runs, in plain words."""
        return self.plan.report()

    def close(self) -> None:
        """Release what backward needs."""
        self.closed = True
        self._saved = None
        self._found.clear()

    def _open(self) -> None:
        if self.closed:
            raise ValueError("this plan is closed")

    def _targets(self, names: tuple[str, ...], out: Any, read: list[Span]) -> list[AnyArray | None]:
        """Return the arrays of ``out``; raise where the plan of a library would refuse them."""
        if out is None:
            return []
        targets = [
            None if one is None else as_array(name, one)
            for name, one in zip(names, out, strict=True)
        ]
        dtype = self.plan.problem.spec.dtype
        for name, target in zip(names, targets, strict=True):
            if target is None:
                continue
            if target.dtype.name != dtype:
                raise TypeError(f"{name} must have dtype {dtype}; got {target.dtype.name}")
            if not target.flags.c_contiguous:
                raise ValueError(f"{name} must be contiguous; got strides {target.strides}")
        pairs = zip(names, targets, strict=True)
        written = [written_span(name, one) for name, one in pairs if one is not None]
        check_apart(written, read)
        return targets


def _into(out: Any, targets: list[AnyArray | None], results: list[Any]) -> tuple[Any, ...]:
    if out is None:
        return tuple(results)
    for target, result in zip(targets, results, strict=True):
        if target is not None:
            target[...] = result
    return tuple(out)
