"""What is a network to JAX? Primitives over the handlers, and their rules for every transformation.

Arrays have an axis more in front, N: problems that lie one after the other. It is 1 until
`jax.vmap` maps weights, or a gradient; an operand that all problems share has 1 there.

- `infer` is what a user's call is until somebody differentiates it. Mapped over anything but the
  weights, the mapped axis joins the batch; mapped over weights it joins N.
- Differentiated it becomes `forward` and `linear`, which is linear in the tangents and has no
  value of its own: transposed it is `backward`. What is mapped there joins N, because the reserve
  space cannot be divided, and gradients of weights are asked for each row of the map.
- Lowered, each is one call of a handler. On several devices `jax.jit` divides the batch among them.

Operands go by name: x, weights, then h_0 (and c_0) where there are states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import SdyShardingRule, custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from dnnffi.jax.call import BACKWARD, FORWARD, INFER, Call
from dnnffi.jax.handlers import Handlers
from dnnffi.spec.names import LayoutName
from dnnffi.spec.problem import BATCH_MAJOR, RNNProblem

Arrays = Sequence[Any]


class Way(NamedTuple):
    """An implementation by handlers.

    platform : JAX's name of where it runs
    layout : the layout of the weights that its handlers read
    """

    name: str
    platform: str
    handlers: Handlers
    layout: LayoutName = "cudnn"


class Task(NamedTuple):
    """What a primitive is about; hashable. ``names`` are those of its operands."""

    way: Way
    problem: RNNProblem
    candidate: str
    reserve_row: int
    names: tuple[str, ...]
    results: tuple[str, ...]

    def shape(self, name: str, count: int) -> tuple[int, ...]:
        """The shape of a result."""
        problem = self.problem
        if name == "spent":
            return (count, 1, problem.batch, self.reserve_row)
        of = name.removeprefix("d")[0]
        shapes = {"x": problem.x_shape, "y": problem.y_shape}
        shapes |= {"h": problem.h_shape, "c": problem.c_shape}
        return (count, *shapes[of])

    def batch_axis(self, name: str) -> int:
        """Which axis of an array is the batch; weights have none, -1."""
        if name in ("weights", "dweights"):
            return -1
        in_x = name in ("x", "y", "dx", "dy")
        return 1 if in_x and self.problem.layout == BATCH_MAJOR else 2


def run(way: Way, problem: RNNProblem, operands: Mapping[str, Any]) -> list[Any]:
    """y, h_n and, of an LSTM, c_n, of operands without N. The problem is one of inference."""
    way.handlers.decide(problem)
    results = ("y", "h_n", "c_n") if problem.spec.has_cell else ("y", "h_n")
    task = Task(way, problem, "", 0, tuple(operands), results)
    varying = varying_alike([array[None] for array in operands.values()])
    return [array[0] for array in infer.bind(*varying, task=task)]


def varying_alike(arrays: Arrays) -> list[Any]:
    """The arrays, each varying over the mesh axes of `jax.shard_map` that any of them does.

    Its transposition sums the gradient of what did not vary.
    """
    axes = frozenset[Any]().union(*map(_varying, arrays))
    missing = [tuple(axes - _varying(array)) for array in arrays]
    return [
        jax.lax.pcast(array, over, to="varying") if over else array
        for array, over in zip(arrays, missing, strict=True)
    ]


def _varying(array: Any) -> frozenset[Any]:
    found: frozenset[Any] = jax.typeof(array).mat.varying
    return found


# The primitives

infer, forward, linear, backward = (
    Primitive(f"dnnffi_rnn_{name}") for name in (INFER, FORWARD, "linear", BACKWARD)
)
_KINDS = {infer: INFER, forward: FORWARD, backward: BACKWARD}


def _shapes(*avals: Any, task: Task) -> list[Any]:
    count = max(aval.shape[0] for aval in avals)
    shapes = {
        "dweights": (count, avals[1].shape[1]),
        "reserve": (count, 1, task.problem.batch, task.reserve_row),
    }
    found = []
    for name in task.results:
        like = avals[1 if name == "dweights" else 0]
        dtype = jnp.dtype("uint8") if name in ("reserve", "spent") else like.dtype
        shape = shapes.get(name) or task.shape(name, count)
        found.append(like.update(shape=shape, dtype=dtype, weak_type=False))
    return found


@lru_cache(maxsize=512)
def _compiled(primitive: Primitive, task: Task) -> Any:
    return jax.jit(partial(primitive.bind, task=task))


def _run_eagerly(primitive: Primitive, *arrays: Any, task: Task) -> Any:
    return _compiled(primitive, task)(*arrays)


# Differentiation


def _differentiate(primals: Arrays, tangents: Arrays, *, task: Task) -> tuple[Any, Any]:
    problem = task.problem._replace(training=True)
    candidate = task.way.handlers.decide(problem)
    row = task.way.handlers.sizes(problem, candidate, jax.local_device_count()).reserve_row
    task = task._replace(problem=problem, candidate=candidate, reserve_row=row)
    trained = task._replace(results=(*task.results, "reserve"))
    *results, reserve = forward.bind(*primals, task=trained)
    names = (*task.names, "y", "reserve", *(f"d{name}" for name in task.names))
    moved = [ad.instantiate_zeros(tangent) for tangent in tangents]
    dots = linear.bind(*primals, results[0], reserve, *moved, task=task._replace(names=names))
    return results, dots


def _transpose(cotangents: Arrays, *operands: Any, task: Task) -> list[Any]:
    count = (len(task.names) - 2) // 2
    residuals, tangents = operands[: count + 2], operands[count + 2 :]
    given = {"dy": cotangents[0]}
    for name, cotangent in zip(("dh_n", "dc_n"), cotangents[1:], strict=False):
        if type(cotangent) is not ad.Zero:
            given[name] = cotangent
    given["dy"] = ad.instantiate_zeros(given["dy"])
    names = task.names[: count + 2]
    wanted = dict(zip(names[:count], map(ad.is_undefined_primal, tangents), strict=True))
    results = ["dx", *(f"d{name}" for name in names[2:count])]  # the library makes them anyway
    if wanted["weights"]:
        results.append("dweights")
    asked = task._replace(names=(*names, *given), results=(*results, "spent"))
    found = dict(
        zip(asked.results, backward.bind(*residuals, *given.values(), task=asked), strict=True)
    )
    gradients = [
        _as_shared(found[f"d{name}"], operand) if wanted[name] else None
        for name, operand in zip(names[:count], operands, strict=False)
    ]
    return [None] * len(residuals) + gradients


def _as_shared(gradient: Any, operand: Any) -> Any:
    """The gradient of an operand, summed over N where all problems share the operand."""
    if operand.shape[0] == gradient.shape[0]:
        return gradient
    return gradient.sum(0, keepdims=True)


def _refuse(what: str, task: Task) -> NoReturn:
    raise NotImplementedError(
        f"implementation {task.way.name!r} has no {what}; implementation='scan' has"
    )


def _refuse_second(primals: Arrays, tangents: Arrays, *, task: Task) -> NoReturn:
    _refuse("second derivatives (a gradient of a gradient, jax.hessian)", task)


def _refuse_forward_mode(*arrays: Any, task: Task) -> NoReturn:
    _refuse("forward-mode derivatives (jax.jvp, jax.linearize, jax.jacfwd)", task)


# Mapping


def _map_infer(arrays: Arrays, axes: Sequence[int | None], *, task: Task) -> tuple[Any, Any]:
    """Without mapped weights the mapped axis joins the batch, else N."""
    if axes[task.names.index("weights")] is not None:
        return _map(infer, arrays, axes, task=task)
    size = _size(arrays, axes)
    problem = task.problem
    batch = problem.batch * size
    lengths = None if problem.lengths is None else problem.lengths * size
    joined = task._replace(problem=problem._replace(batch=batch, lengths=lengths))
    operands = []
    for name, array, axis in zip(task.names, arrays, axes, strict=True):
        at = task.batch_axis(name)
        if at >= 0:
            if axis is None:
                array, axis = jnp.broadcast_to(array, (size, *array.shape)), 0
            array = jnp.moveaxis(array, axis, at)
            array = array.reshape(*array.shape[:at], batch, *array.shape[at + 2 :])
        operands.append(array)
    task.way.handlers.decide(joined.problem)
    results = infer.bind(*operands, task=joined)
    at_batch = [task.batch_axis(name) for name in task.results]
    apart = [
        array.reshape(*array.shape[:at], size, problem.batch, *array.shape[at + 1 :])
        for array, at in zip(results, at_batch, strict=True)
    ]
    return apart, at_batch


def _map(
    primitive: Primitive, arrays: Arrays, axes: Sequence[int | None], *, task: Task
) -> tuple[Any, Any]:
    """The mapped axis joins N."""
    size = _size(arrays, axes)
    # With the mapped axis in front; what is not mapped has none.
    moved = [
        array if axis is None else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(arrays, axes, strict=True)
    ]
    counts = [
        array.shape[0 if axis is None else 1] for array, axis in zip(moved, axes, strict=True)
    ]
    count = max(counts)
    operands = []
    for array, axis, own in zip(moved, axes, counts, strict=True):
        if axis is not None or own > 1:
            rest = array.shape[1 if axis is None else 2 :]
            if axis is None:
                array = array[None]
            array = jnp.broadcast_to(array, (size, count, *rest)).reshape(-1, *rest)
        operands.append(array)
    results = primitive.bind(*operands, task=task)
    return [array.reshape(size, count, *array.shape[1:]) for array in results], [0] * len(results)


def _size(arrays: Arrays, axes: Sequence[int | None]) -> int:
    return next(
        int(array.shape[axis]) for array, axis in zip(arrays, axes, strict=True) if axis is not None
    )


# Lowering


def _lower(primitive: Primitive, context: Any, *operands: Any, task: Task) -> Any:
    platforms = context.module_context.platforms
    if set(platforms) != {task.way.platform}:
        raise NotImplementedError(
            f"implementation {task.way.name!r} runs on {task.way.platform}; this program is for "
            f"{', '.join(platforms)}"
        )
    function = partial(_call, _KINDS[primitive], task)
    where = context.module_context.axis_context
    several = isinstance(where, mlir.ShardingContext) and where.num_devices > 1
    if several and where.device_assignment is not None and task.problem.lengths is None:
        # Without lengths, which a call of one program for all devices names by row.
        function = _divided(function, primitive, task, context.avals_in, context.avals_out)
    return mlir.lower_fun(function, multiple_results=True)(context, *operands)


def _call(kind: str, task: Task, *operands: Any) -> list[Any]:
    """The call of a handler."""
    handlers, problem = task.way.handlers, task.problem
    count = max(array.shape[0] for array in operands)
    candidate = task.candidate if problem.training else handlers.decide(problem)
    arrays, aliases = list(operands), {}
    if kind == BACKWARD:
        # Backward data spends it: a result in its place, so that XLA copies where it is still
        # needed. Problems that share one need one each.
        at = task.names.index("reserve")
        arrays[at] = jnp.broadcast_to(arrays[at], (count, *arrays[at].shape[1:]))
        aliases = {at: task.results.index("spent")}
    names = tuple(
        f"{name}*" if count > 1 and array.shape[0] == 1 else name
        for name, array in zip(task.names, arrays, strict=True)
    )
    results = _shapes(*map(jax.typeof, operands), task=task)
    workspace = jax.ShapeDtypeStruct(
        (handlers.sizes(problem, candidate, 1).workspace,), jnp.dtype("uint8")
    )
    call = Call(problem, candidate, count, names, (*task.results, "workspace"), task.reserve_row)
    shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in results]
    done = jax.ffi.ffi_call(
        handlers.target(kind), [*shapes, workspace], input_output_aliases=aliases
    )(*arrays, call=call.text())
    return list(done[:-1])


# Several devices


def _divided(
    function: Any, primitive: Primitive, task: Task, avals_in: Arrays, avals_out: Arrays
) -> Any:
    """``function`` where the devices share the work: the batch, and N, may be divided."""
    batches = [task.batch_axis(name) for name in (*task.names, *task.results)]
    ranks = [aval.ndim for aval in (*avals_in, *avals_out)]
    shared = [aval.shape[0] == 1 for aval in (*avals_in, *avals_out)]
    mappings, alone = [], []
    for number, (batch, rank, one) in enumerate(zip(batches, ranks, shared, strict=True)):
        factors = [f"f{number}x{axis}" for axis in range(rank)]
        if batch >= 0:
            factors[batch] = "b"
        if not one:
            factors[0] = "n"
        mappings.append(tuple(factors))
        alone += [factor for factor in factors if factor.startswith("f")]
    rule = SdyShardingRule(
        tuple(mappings[: len(avals_in)]),
        tuple(mappings[len(avals_in) :]),
        need_replication_factors=tuple(alone),
    )

    def partition(mesh: Any, operands: Any, results: Any) -> Any:
        found = operands[task.names.index("x")].sharding.spec
        axis = task.batch_axis("x")
        over_batch = found[axis] if len(found) > axis else None
        over_count = found[0] if len(found) > 0 else None

        def sharding(number: int) -> NamedSharding:
            spec: list[Any] = [None] * ranks[number]
            if batches[number] >= 0:
                spec[batches[number]] = over_batch
            if not shared[number]:
                spec[0] = over_count
            return NamedSharding(mesh, PartitionSpec(*spec))

        shardings = [sharding(number) for number in range(len(ranks))]
        parts = _parts(mesh, over_batch)
        local = task._replace(problem=task.problem._replace(batch=task.problem.batch // parts))

        def lowered(*arrays: Any) -> Any:
            done = _call(_KINDS[primitive], local, *arrays)
            return tuple(
                jax.lax.psum(array, over_batch)
                if name == "dweights" and over_batch is not None
                else array
                for name, array in zip(task.results, done, strict=True)
            )

        return mesh, lowered, tuple(shardings[len(avals_in) :]), tuple(shardings[: len(avals_in)])

    divided = custom_partitioning(lambda *arrays: tuple(function(*arrays)))
    divided.def_partition(partition=partition, sharding_rule=rule)
    return divided


def _parts(mesh: Any, axes: Any) -> int:
    """Among how many devices an axis that is divided over ``axes`` of the mesh lies."""
    if axes is None:
        return 1
    return prod(mesh.shape[axis] for axis in (axes if isinstance(axes, tuple) else (axes,)))


def _ask_for_devices() -> None:
    """Have JAX name the devices of a program when it lowers the primitives."""
    try:
        from jax._src.dispatch import prim_requires_devices_during_lowering as known
    except ImportError:  # then the work of a sharded program is not divided, but right
        return
    known.update((infer, forward, backward))


def _set_up() -> None:
    _ask_for_devices()
    for primitive in (infer, forward, linear, backward):
        primitive.multiple_results = True
        primitive.def_abstract_eval(_shapes)
        batching.primitive_batchers[primitive] = partial(_map_by_position, primitive)
        if primitive is linear:
            primitive.def_impl(_refuse_forward_mode)
            mlir.register_lowering(
                primitive, lambda context, *operands, task: _refuse_forward_mode(task=task)
            )
        else:
            primitive.def_impl(partial(_run_eagerly, primitive))
            mlir.register_lowering(primitive, partial(_lower, primitive))
        ad.primitive_jvps[primitive] = _differentiate if primitive is infer else _refuse_second
    ad.primitive_transposes[linear] = _transpose


def _map_by_position(
    primitive: Primitive, arrays: Arrays, axes: Sequence[int | None], *, task: Task
) -> tuple[Any, Any]:
    if primitive is infer:
        return _map_infer(arrays, axes, task=task)
    return _map(primitive, arrays, axes, task=task)


_set_up()
