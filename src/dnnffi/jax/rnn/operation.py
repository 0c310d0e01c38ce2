"""The JAX primitives of a network, over the handlers, and their rules for every transformation.

Arrays have an axis more in front, N: problems that lie one after the other. It is 1 until
`jax.vmap` maps weights, or a gradient; an operand that all problems share has 1 there.

- `infer` is what a user's call is until somebody differentiates it. Mapped over anything but the
  weights, the mapped axis joins the batch; mapped over weights it joins N.
- Differentiated it becomes `forward` and `linear`, which is linear in the tangents and has no
  value of its own: transposed it is `backward`. What is mapped there joins N, because the reserve
  space cannot be divided, and gradients of weights are asked for each row of the map.
- Where the implementation refuses training, or the larger batch of a map, and the call named no
  implementation, the scan takes its place.
- Lowered, each is one call of a handler. On several devices `jax.jit` divides the batch among them.

Operands go by name: x, weights, then h_0 (and c_0) where there are states, then `lengths` where
these are on the device, then the flags `resets`, and reset_h (and reset_c) where states are
replaced by others than zeros. These may have one row for all of the batch; their gradients have a
row for each, and are summed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from dnnffi.errors import LibraryNotFoundError, UnsupportedError
from dnnffi.jax import primitives
from dnnffi.jax.arrays import warn_once
from dnnffi.jax.calls import WORKSPACE
from dnnffi.jax.primitives import (
    Arrays,
    Shared,
    as_shared,
    call_handler,
    define,
    join_batch,
    join_problems,
    map_some,
    mapped_size,
    mesh_axes,
    over_problems,
    varying_alike,
)
from dnnffi.jax.rnn import scan
from dnnffi.jax.rnn.call import (
    BACKWARD,
    DTYPES,
    FORWARD,
    INFER,
    RESET_STATES,
    Call,
    array_shape,
)
from dnnffi.jax.rnn.weights import apart
from dnnffi.spec.names import LayoutName
from dnnffi.spec.problem import BATCH_MAJOR, RNNProblem


@dataclass(frozen=True)
class Implementation(primitives.Implementation):
    """An implementation by handlers, which read weights in a layout."""

    layout: LayoutName = "cudnn"
    has_resets: bool = False
    has_device_lengths: bool = False


class Task(NamedTuple):
    """Parameters of a primitive; hashable. ``names`` are those of its operands.

    ``unroll`` is the number of steps in one round of the scan's loop, which runs what the
    implementation refuses; None if the call named the implementation.
    """

    implementation: Implementation
    problem: RNNProblem
    candidate: str
    reserve_row: int
    names: tuple[str, ...]
    results: tuple[str, ...]
    has_one_reset_row: bool = False
    unroll: int | None = None

    @property
    def divisible(self) -> bool:
        """Whether devices may share the batch: not with host lengths, which a call lists by row."""
        return self.problem.lengths is None

    def share(self, parts: int) -> Task:
        """Return the task of one of ``parts`` devices."""
        return self._replace(problem=self.problem._replace(batch=self.problem.batch // parts))

    def batch_axis(self, name: str) -> int:
        """Return the axis of an array that is the batch, counted with N; -1 for none."""
        if name in ("weights", "dweights"):
            return -1
        if name in RESET_STATES and self.has_one_reset_row:
            return -1
        if name == "lengths":
            return 1
        in_x = name in ("x", "y", "dx", "dy", "resets")
        return 1 if in_x and self.problem.layout == BATCH_MAJOR else 2


def run(
    implementation: Implementation,
    problem: RNNProblem,
    operands: Mapping[str, Any],
    unroll: int | None,
) -> list[Any]:
    """y, h_n and, of an LSTM, c_n, of operands without N. The problem is one of inference.

    ``unroll`` is that of `Task`.
    """
    implementation.handlers.decide(problem)
    results = ("y", "h_n", "c_n") if problem.spec.has_cell else ("y", "h_n")
    has_one_reset_row = "reset_h" in operands and operands["reset_h"].shape[1] == 1
    task = Task(implementation, problem, "", 0, tuple(operands), results, has_one_reset_row, unroll)
    varying = varying_alike([array[None] for array in operands.values()])
    return [array[0] for array in infer.bind(*varying, task=task)]


def warn_of_scan(problem: RNNProblem, error: Exception) -> None:
    """Warn that the scan runs a problem, which was refused with ``error``."""
    is_own = problem.has_resets or problem.has_device_lengths
    faster = "dnnffi's own kernels" if is_own else "cuDNN"
    warn_once(f"lax.scan runs what {faster} would be faster at: {error}")


def _scan(task: Task, *operands: Any) -> list[Any]:
    """Return the results of a problem of inference by the scan, of operands with N."""
    problem, unroll = task.problem, task.unroll
    spec, layout = problem.spec, task.implementation.layout
    assert unroll is not None

    def compute(*arrays: Any) -> list[Any]:
        of_name = dict(zip(task.names, arrays, strict=True))
        lengths, resets = of_name.get("lengths"), None
        if problem.lengths is not None:
            lengths = jnp.asarray(problem.lengths)
        if problem.has_resets:
            resets = scan.Resets(of_name["resets"], *map(of_name.get, RESET_STATES))
        found = scan.network(
            *(spec, of_name["x"], of_name.get("h_0"), of_name.get("c_0")),
            apart(of_name["weights"], spec, layout),
            batch_first=problem.layout == BATCH_MAJOR,
            lengths=lengths,
            resets=resets,
            options=problem.options,
            unroll=unroll,
            is_on_cpu=task.implementation.platform == "cpu",
        )
        return [array for array in found if array is not None]

    return over_problems(compute, operands)


# The primitives

infer, forward, linear, backward = (
    Primitive(f"dnnffi_rnn_{name}") for name in (INFER, FORWARD, "linear", BACKWARD)
)
_KINDS = {infer: INFER, forward: FORWARD, backward: BACKWARD}


def _shapes(*avals: Any, task: Task) -> list[Any]:
    count = max(aval.shape[0] for aval in avals)
    x, operands = avals[0], dict(zip(task.names, avals, strict=True))
    # What divides N, unless it divides the batch.
    of_batch = mesh_axes(x.sharding.spec[task.batch_axis("x")])
    divided = next((aval for aval in avals if mesh_axes(aval.sharding.spec[0])), x)
    of_count = mesh_axes(divided.sharding.spec[0])
    of_count = tuple(axis for axis in of_count if axis not in of_batch)
    found = []
    for name in task.results:
        dtype = jnp.dtype(DTYPES.get(name, x.dtype))
        shape = (count, *array_shape(task.problem, task.reserve_row, name))
        at_batch = task.batch_axis(name)
        # In a mesh of explicit axes a gradient is divided as its operand is, any other result as
        # x, whose other axes no result has.
        of = operands.get(name.removeprefix("d")) if name.startswith("d") else None
        spec = [None] * len(shape) if of is None else [*of.sharding.spec]
        if of is None or (at_batch >= 0 and of.shape[at_batch] != shape[at_batch]):
            spec[at_batch] = of_batch or None
        spec[0] = of_count or None
        sharding = divided.sharding.update(spec=PartitionSpec(*spec))
        found.append(x.update(shape=shape, dtype=dtype, sharding=sharding, weak_type=False))
    return found


# Differentiation


def _differentiate(primals: Arrays, tangents: Arrays, *, task: Task) -> tuple[Any, Any]:
    problem, handlers = task.problem._replace(training=True), task.implementation.handlers
    try:
        candidate = handlers.decide(problem)
        # Counts the devices of all hosts: a program of several processes divides its batch among
        # all.
        row = handlers.sizes(problem, candidate, jax.device_count()).reserve_row
    except (LibraryNotFoundError, UnsupportedError) as error:
        if task.unroll is None:
            raise
        warn_of_scan(problem, error)
        return _differentiate_scan(primals, tangents, task=task)
    task = task._replace(problem=problem, candidate=candidate, reserve_row=row)
    trained = task._replace(results=(*task.results, "reserve"))
    *results, reserve = forward.bind(*primals, task=trained)
    moved = {
        f"d{name}": ad.instantiate_zeros(tangent)
        for name, tangent in zip(task.names, tangents, strict=True)
        if name not in DTYPES  # integers have no tangent
    }
    names = (*task.names, "y", "reserve", *moved)
    linear_task = task._replace(names=names)
    dots = linear.bind(*primals, results[0], reserve, *moved.values(), task=linear_task)
    return results, dots


def _differentiate_scan(primals: Arrays, tangents: Arrays, *, task: Task) -> tuple[Any, Any]:
    moved = {
        place: tangent
        for place, (name, tangent) in enumerate(zip(task.names, tangents, strict=True))
        if name not in DTYPES and type(tangent) is not ad.Zero
    }

    def function(*arrays: Any) -> list[Any]:
        of_place = dict(enumerate(primals)) | dict(zip(moved, arrays, strict=True))
        return _scan(task, *of_place.values())

    done: tuple[Any, Any] = jax.jvp(
        function, [primals[place] for place in moved], [*moved.values()]
    )
    return done


def _transpose(cotangents: Arrays, *operands: Any, task: Task) -> list[Any]:
    count = task.names.index("reserve") + 1
    names = task.names[:count]
    residuals, tangents = operands[:count], operands[count:]
    given = {"dy": cotangents[0]}
    for name, cotangent in zip(("dh_n", "dc_n"), cotangents[1:], strict=False):
        if type(cotangent) is not ad.Zero:
            given[name] = cotangent
    given["dy"] = ad.instantiate_zeros(given["dy"])
    moved = task.names[count:]
    wanted = dict(zip(moved, map(ad.is_undefined_primal, tangents), strict=True))
    # The library makes all but the gradient of the weights anyway.
    results = [name for name in moved if name != "dweights"]
    if wanted["dweights"]:
        results.append("dweights")
    asked = task._replace(names=(*names, *given), results=(*results, "spent"))
    found = dict(
        zip(asked.results, backward.bind(*residuals, *given.values(), task=asked), strict=True)
    )
    of_name = dict(zip(names, residuals, strict=True))
    gradients = [
        as_shared(found[name], of_name[name.removeprefix("d")]) if wanted[name] else None
        for name in moved
    ]
    return [None] * len(residuals) + gradients


def _refuse(what: str, task: Task) -> NoReturn:
    raise NotImplementedError(
        f"implementation {task.implementation.name!r} has no {what}; implementation='scan' has"
    )


def _refuse_second(primals: Arrays, tangents: Arrays, *, task: Task) -> NoReturn:
    _refuse("second derivatives (a gradient of a gradient, jax.hessian)", task)


def _refuse_forward_mode(*arrays: Any, task: Task) -> NoReturn:
    _refuse("forward-mode derivatives (jax.jvp, jax.linearize, jax.jacfwd)", task)


# Mapping


def _map_infer(arrays: Arrays, axes: Sequence[int | None], *, task: Task) -> tuple[Any, Any]:
    """Without mapped weights the mapped axis joins the batch, else N."""
    if axes[task.names.index("weights")] is not None:
        return join_problems(partial(infer.bind, task=task), arrays, axes)
    size, problem = mapped_size(arrays, axes), task.problem
    lengths = None if problem.lengths is None else problem.lengths * size
    larger = problem._replace(batch=problem.batch * size, lengths=lengths)
    try:
        task.implementation.handlers.decide(larger)
    except (LibraryNotFoundError, UnsupportedError) as error:
        if task.unroll is None:
            raise
        warn_of_scan(larger, error)
        return jax.vmap(partial(_scan, task), axes)(*arrays), [0] * len(task.results)
    task, arrays, axes = _with_rows_of_resets(task, arrays, axes)
    joined = task._replace(problem=larger)
    return join_batch(partial(infer.bind, task=joined), arrays, axes, task=task)


def _with_rows_of_resets(
    task: Task, arrays: Arrays, axes: Sequence[int | None]
) -> tuple[Task, Arrays, Sequence[int | None]]:
    """Repeat a mapped state of resets that has one row, so that its rows can join the batch."""
    places = [place for place, name in enumerate(task.names) if name in RESET_STATES]
    if not task.has_one_reset_row or all(axes[place] is None for place in places):
        return task, arrays, axes
    arrays, axes = list(arrays), list(axes)
    for place in places:
        array = arrays[place]
        if axes[place] is not None:
            array, axes[place] = jnp.moveaxis(array, axes[place], 0), 0
        shape = (*array.shape[:-2], task.problem.batch, array.shape[-1])
        arrays[place] = jnp.broadcast_to(array, shape)
    return task._replace(has_one_reset_row=False), arrays, axes


def _map_by_position(
    primitive: Primitive, arrays: Arrays, axes: Sequence[int | None], *, task: Task
) -> tuple[Any, Any]:
    if primitive is infer:
        return _map_infer(arrays, axes, task=task)
    return join_problems(partial(primitive.bind, task=task), arrays, axes)


# Lowering


def _call(kind: str, task: Task, *operands: Any) -> list[Any]:
    """Return the call of a handler."""
    handlers, problem = task.implementation.handlers, task.problem
    candidate = task.candidate if problem.training else handlers.decide(problem)
    arrays, aliases = list(operands), {}
    if kind == BACKWARD:
        # Backward data spends it: a result in its place, so that XLA copies where it is still
        # needed. Problems that share one need one each.
        at = task.names.index("reserve")
        count = max(array.shape[0] for array in arrays)
        arrays[at] = jnp.broadcast_to(arrays[at], (count, *arrays[at].shape[1:]))
        aliases = {at: task.results.index("spent")}
    count, names = Shared.of(task.names, arrays)
    results = _shapes(*map(jax.typeof, operands), task=task)
    workspace = handlers.sizes(problem, candidate, 1).workspace
    names_of_results = (*task.results, WORKSPACE)
    row = task.reserve_row
    one_row = task.has_one_reset_row
    call = Call(problem, candidate, count, names, names_of_results, row, workspace, one_row)
    target = handlers.target(kind)
    return call_handler(
        target, results, workspace, arrays, call.text(), input_output_aliases=aliases
    )


def _set_up() -> None:
    for primitive, kind in _KINDS.items():
        define(primitive, _shapes, partial(_map_by_position, primitive), partial(_call, kind))
        ad.primitive_jvps[primitive] = _differentiate if primitive is infer else _refuse_second
    linear.multiple_results = True
    linear.def_abstract_eval(_shapes)
    linear.def_impl(_refuse_forward_mode)
    rule = partial(_map_by_position, linear)
    batching.primitive_batchers[linear] = partial(map_some, _shapes, rule)
    mlir.register_lowering(linear, lambda context, *operands, task: _refuse_forward_mode(task=task))
    ad.primitive_jvps[linear] = _refuse_second
    ad.primitive_transposes[linear] = _transpose


_set_up()
