"""The JAX primitive of a convolution, over the handlers, and its rules.

A problem is of one operation, and the three are each other's derivatives: without an epilogue each
is linear in either operand, and transposed by one it is another. So there are derivatives of every
mode and order. With an epilogue, a derivative is one of the operation without, masked where ReLU
gave 0. Operands go by the names of the problem; each has an axis N more in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad
from jax.sharding import PartitionSpec

from dnnffi.device.interface import ALIGNMENT
from dnnffi.errors import LibraryNotFoundError, UnsupportedError
from dnnffi.jax.arrays import warn_once
from dnnffi.jax.calls import WORKSPACE
from dnnffi.jax.convolution import by_lax
from dnnffi.jax.convolution.by_lax import over_channels
from dnnffi.jax.convolution.call import Call, argument_names, in_memory
from dnnffi.jax.primitives import (
    Arrays,
    Implementation,
    Shared,
    as_shared,
    call_handler,
    define,
    join_batch,
    join_problems,
    mapped_size,
    over_problems,
    varying_alike,
)
from dnnffi.spec.conv_problem import (
    BACKWARD_DATA,
    BACKWARD_WEIGHTS,
    FORWARD,
    RESULTS,
    ConvProblem,
)


class Task(NamedTuple):
    """Parameters of the primitive; with ``or_lax`` JAX computes what ``implementation`` cannot."""

    implementation: Implementation
    problem: ConvProblem
    or_lax: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operands."""
        return argument_names(self.problem)

    @property
    def results(self) -> tuple[str, ...]:
        """Name of the one result."""
        return (RESULTS[self.problem.operation],)

    @property
    def divisible(self) -> bool:
        """Several devices may always share the batch."""
        return True

    def batch_axis(self, name: str) -> int:
        """Return the axis of an array that is the batch, counted with N; -1 for none."""
        return -1 if name in ("w", "dw", "bias") else 1

    def share(self, parts: int) -> Task:
        """Return the task of one of ``parts`` devices."""
        return self._replace(problem=self.problem._replace(batch=self.problem.batch // parts))


convolve = Primitive("dnnffi_conv")


def run(
    implementation: Implementation, problem: ConvProblem, operands: Arrays, *, or_lax: bool
) -> Any:
    """Return the result of operands without N."""
    varying = varying_alike([array[None] for array in operands])
    return _bind(Task(implementation, problem, or_lax), *varying)[0]


def _bind(task: Task, *operands: Any) -> Any:
    """Return the implementation's result, or else JAX's; raises its error if JAX may not run."""
    try:
        task.implementation.handlers.engine.decide(task.problem)
    except (LibraryNotFoundError, UnsupportedError) as error:
        if not task.or_lax:
            raise
        warn_once(f"lax.conv_general_dilated runs what dnnffi has no plan for: {error}")
        return over_problems(lambda *one: [by_lax.compute(task.problem, *one)], operands)[0]
    return convolve.bind(*operands, task=task)[0]


def _shapes(*avals: Any, task: Task) -> list[Any]:
    problem, like = task.problem, avals[0]
    count = max(aval.shape[0] for aval in avals)
    shape = (count, *in_memory(problem.result_shape, problem))
    if problem.operation == BACKWARD_WEIGHTS:
        whole = like.sharding.update(spec=PartitionSpec(*(None,) * len(shape)))
        return [like.update(shape=shape, sharding=whole, weak_type=False)]
    return [like.update(shape=shape, weak_type=False)]


# Differentiation


def _differentiate(primals: Arrays, tangents: Arrays, *, task: Task) -> tuple[Any, Any]:
    problem = task.problem
    (result,) = convolve.bind(*primals, task=task)
    alone = problem._replace(activation=None, residual=False, alpha=1.0, bias=False)
    linear = task._replace(problem=alone)
    moved = {
        name: tangent
        for name, tangent in zip(task.names, tangents, strict=True)
        if type(tangent) is not ad.Zero
    }
    first, second, *_ = task.names
    terms = []
    if first in moved:
        terms.append(_bind(linear, moved[first], primals[1]))
    if second in moved:
        terms.append(_bind(linear, primals[0], moved[second]))
    if "residual" in moved:
        residual = moved["residual"]
        terms.append(residual * jnp.asarray(problem.alpha, residual.dtype))
    if "bias" in moved:
        # Transposed it is a sum, and one in float16 loses what is small.
        bias = moved["bias"]
        wide = bias.astype(jnp.promote_types(bias.dtype, "float32"))
        over = jnp.broadcast_to(
            over_channels(wide, problem),
            result.shape,
            out_sharding=jax.typeof(result).sharding,
        )
        terms.append(over.astype(bias.dtype))
    dots = sum(terms[1:], start=terms[0])
    dots = jnp.broadcast_to(dots, result.shape)
    if problem.activation:
        dots = jnp.where(result > 0, dots, jnp.zeros((), dots.dtype))
    return [result], [dots]


_TRANSPOSED = {
    # operation: for either operand, the operation that makes its gradient, and what that reads of
    # the two operands and the cotangent
    FORWARD: ((BACKWARD_DATA, (2, 1)), (BACKWARD_WEIGHTS, (2, 0))),
    BACKWARD_DATA: ((FORWARD, (2, 1)), (BACKWARD_WEIGHTS, (0, 2))),
    BACKWARD_WEIGHTS: ((FORWARD, (1, 2)), (BACKWARD_DATA, (0, 2))),
}


def _transpose(cotangents: Arrays, *operands: Any, task: Task) -> list[Any]:
    problem = task.problem
    if problem.epilogue:
        raise NotImplementedError("a convolution with bias, residual or ReLU is not linear")
    gradients: list[Any] = [None, None]
    (cotangent,) = cotangents
    if type(cotangent) is ad.Zero:
        return gradients
    known = (*operands, cotangent)
    for number, (operation, reads) in enumerate(_TRANSPOSED[problem.operation]):
        operand = operands[number]
        if ad.is_undefined_primal(operand):
            asked = task._replace(problem=problem._replace(operation=operation))
            found = _bind(asked, *(known[n] for n in reads))
            gradients[number] = as_shared(found, operand.aval)
    return gradients


# Mapping


def _map(arrays: Arrays, axes: Sequence[int | None], *, task: Task) -> tuple[Any, Any]:
    """Join the mapped axis with the batch if mapped arrays and results have one; else N."""
    names = [name for name, axis in zip(task.names, axes, strict=True) if axis is not None]
    if any(task.batch_axis(name) < 0 for name in (*names, *task.results)):
        return join_problems(lambda *all: [_bind(task, *all)], arrays, axes)
    batch = task.problem.batch * mapped_size(arrays, axes)
    joined = task._replace(problem=task.problem._replace(batch=batch))
    return join_batch(lambda *all: [_bind(joined, *all)], arrays, axes, task=task)


# Lowering


def _call(task: Task, *operands: Any) -> list[Any]:
    """Return the call of a handler."""
    engine, problem = task.implementation.handlers.engine, task.problem
    count, names = Shared.of(task.names, operands)
    results = _shapes(*map(jax.typeof, operands), task=task)
    if count > 1 and any(_bytes_of_one(array) % ALIGNMENT for array in (*operands, *results)):
        # Not all would begin where every kernel of a library can read.
        apart = [
            _call(task, *(a[n : n + 1] if a.shape[0] > 1 else a for a in operands))
            for n in range(count)
        ]
        return [jnp.concatenate(parts) for parts in zip(*apart, strict=True)]
    choice = engine.decide(problem)
    workspace = max(engine.workspace_bytes(problem, choice), 1)  # none has no address
    call = Call(problem, choice, count, names, (*task.results, WORKSPACE), workspace)
    target = task.implementation.handlers.target(problem.operation)
    return call_handler(target, results, workspace, operands, call.text())


def _bytes_of_one(array: Any) -> int:
    size: int = array.size // array.shape[0] * array.dtype.itemsize if array.shape[0] > 1 else 0
    return size


define(convolve, _shapes, _map, _call)
ad.primitive_jvps[convolve] = _differentiate
ad.primitive_transposes[convolve] = _transpose
