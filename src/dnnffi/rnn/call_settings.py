"""The settings of a call that are the same for all sizes, and its problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import ref

from dnnffi.device.arrays import conversion
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import AnyArray
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec


@dataclass(frozen=True, eq=False, slots=True)
class CallSettings:
    """The checked settings of calls, the same for all sizes.

    ``generator`` refers to the random numbers of ``dropout``, which a `DropoutState` owns; None
    where nothing is dropped. A backend has one object for the same values (`RNNBackend.asked`), so
    that a key with it is compared and hashed quickly.
    """

    spec: RNNSpec
    device: int
    batch_first: bool
    options: RNNOptions
    training: bool
    dropout: float
    generator: ref[Any] | None
    has_resets: bool
    has_device_lengths: bool

    def find_generator(self) -> tuple[bool, Any]:
        """Return whether the generator exists, or none is needed; and the generator or None."""
        if self.generator is None:
            return True, None
        found = self.generator()
        return found is not None, found


Counts = tuple[int, ...] | None
"""Lengths of rows, or the batch size at each step; None where the call has none."""

PlanKey = tuple[tuple[int, ...], Counts, Counts, CallSettings]
"""The key of a plan: shape of x, lengths, batch sizes, and what else was asked."""


def problem_of(
    x: AnyArray, lengths: Counts, batch_sizes: Counts, asked: CallSettings
) -> RNNProblem:
    """Return the problem that the arguments describe; errors name the argument at fault."""
    spec, batch_first, options = asked.spec, asked.batch_first, asked.options
    training, dropout = asked.training, asked.dropout
    shape = tuple(x.shape)
    if batch_sizes is not None and (lengths is not None or asked.has_device_lengths):
        raise ValueError("lengths and batch_sizes exclude each other; give one")
    rank, form = 3, "[B, T, I]" if batch_first else "[T, B, I]"
    if batch_sizes is not None:
        rank, form = 2, "[sum(batch_sizes), I]"
    if len(shape) != rank:
        raise ValueError(f"x must have {rank} dimensions, {form}; got shape {shape}")
    if shape[-1] != spec.input_size:
        raise ValueError(
            f"x must have {spec.input_size} as its last dimension (I, from the weights); "
            f"got shape {shape}"
        )
    # The name, which NumPy puts together each time, only where it is another object.
    if x.dtype != dtype_object(spec.dtype) and x.dtype.name != spec.dtype:
        raise TypeError(
            f"x must have the dtype of the weights, {spec.dtype}; got {x.dtype}"
            f"{conversion('x', x, spec.dtype)}"
        )
    if options.validate and dropout and spec.num_layers > 1:
        raise ValueError(
            "options['validate'] needs dropout=0: the reference cannot draw a vendor's random "
            "numbers"
        )
    if batch_sizes is not None:
        made = RNNProblem.packed(
            spec, batch_sizes, shape[0], training=training, dropout=dropout, options=options
        )
        return made._replace(has_resets=asked.has_resets)
    batch, steps = shape[:2] if batch_first else shape[1::-1]
    rest = batch_first, lengths, training, dropout, options
    made = RNNProblem._dense(spec, steps, batch, *rest)
    if not asked.has_resets and not asked.has_device_lengths:
        return made
    return made._replace(has_resets=asked.has_resets, has_device_lengths=asked.has_device_lengths)
