"""Helpers of the primitives of all families: how JAX transforms a call of a handler.

Arrays have an axis more in front, N: problems that lie one after the other. It is 1 until
`jax.vmap` maps something that the batch does not have; an operand that all problems share has 1
there. On several devices `jax.jit` divides batch and N among them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import SdyShardingRule, custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from dnnffi.errors import UnsupportedError

Arrays = Sequence[Any]


@dataclass(frozen=True)
class Implementation:
    """An implementation by handlers; ``platform`` is JAX's name of where it runs."""

    name: str
    platform: str
    handlers: Any

    def check_there(self) -> None:
        """Raise `UnsupportedError` unless JAX has a device for it."""
        try:
            jax.devices(self.platform)
        except RuntimeError:
            limit = f"has no device of {self.platform}, where implementation {self.name!r} runs"
            raise UnsupportedError("JAX", jax.__version__, limit) from None


class Task(Hashable, Protocol):
    """Parameters of a primitive, with the names of its operands and results."""

    @property
    def implementation(self) -> Any:
        """The `Implementation`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operands; the first has a batch."""

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the results; one without a batch is a sum over the batch."""

    @property
    def divisible(self) -> bool:
        """Whether several devices may share the batch."""

    def batch_axis(self, name: str) -> int:
        """Return the axis of an array that is the batch, counted with N; -1 for none."""

    def share(self, parts: int) -> Self:
        """Return the task of one of ``parts`` devices."""


def varying_alike(arrays: Arrays) -> list[Any]:
    """Return the arrays, each varying over the mesh axes of `jax.shard_map` that any of them does.

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


def as_shared(gradient: Any, operand: Any) -> Any:
    """Return the gradient of an operand, summed over axes of which it has one element.

    One is N where all problems share the operand.
    """
    sizes = zip(operand.shape, gradient.shape, strict=True)
    axes = tuple(axis for axis, (one, several) in enumerate(sizes) if one != several)
    return gradient.sum(axes, keepdims=True) if axes else gradient


def over_problems(compute: Callable[..., Sequence[Any]], arrays: Arrays) -> list[Any]:
    """Return the results of ``compute``, which takes arrays without N, for all problems."""
    axes = [0 if array.shape[0] > 1 else None for array in arrays]
    operands = [
        array[0] if axis is None else array for array, axis in zip(arrays, axes, strict=True)
    ]
    if any(axis == 0 for axis in axes):
        return list(jax.vmap(compute, axes)(*operands))
    return [array[None] for array in compute(*operands)]


# Mapping

Bind = Callable[..., Sequence[Any]]
"""Computes results of operands."""


def join_batch(
    bind: Bind, arrays: Arrays, axes: Sequence[int | None], *, task: Task
) -> tuple[Any, Any]:
    """Join the mapped axis with the batch; ``bind`` is for the larger one.

    In a mesh of explicit axes, what divides either of them divides the larger batch.
    """
    size = mapped_size(arrays, axes)
    moved, places = [], [task.batch_axis(name) for name in task.names]
    for array, axis, at in zip(arrays, axes, places, strict=True):
        if at >= 0:
            if axis is None:
                array, axis = jnp.broadcast_to(array, (size, *array.shape)), 0
            array = jnp.moveaxis(array, axis, at)
        moved.append(array)
    batched = [(array, at) for array, at in zip(moved, places, strict=True) if at >= 0]
    of_map = next(filter(None, (_explicit(array, at) for array, at in batched)), ())
    of_batch = next(filter(None, (_explicit(array, at + 1) for array, at in batched)), ())
    of_batch = tuple(axis for axis in of_batch if axis not in of_map)
    # The divided one of the two axes comes first, so that no row moves to another device. Lengths
    # are in the order of the map.
    is_moved = bool(of_batch) and not of_map and task.divisible
    operands = []
    for array, at in zip(moved, places, strict=True):
        if at >= 0:
            if is_moved:
                array = jnp.moveaxis(array, at, at + 1)
            shape = (*array.shape[:at], -1, *array.shape[at + 2 :])
            array = _reshaped(array, shape, at, 2, [of_map + of_batch])
        operands.append(array)
    results = bind(*operands)
    at_batch = [task.batch_axis(name) for name in task.results]
    apart = []
    for array, at in zip(results, at_batch, strict=True):
        sizes, parts = (size, array.shape[at] // size), [of_map, of_batch]
        if is_moved:
            sizes, parts = sizes[::-1], parts[::-1]
        shape = (*array.shape[:at], *sizes, *array.shape[at + 1 :])
        apart.append(_reshaped(array, shape, at, 1, parts))
    return apart, [at + is_moved for at in at_batch]


def _explicit(array: Any, axis: int) -> tuple[Any, ...]:
    """Return the explicit axes of a mesh that divide an axis of an array."""
    return mesh_axes(jax.typeof(array).sharding.spec[axis])


def _reshaped(
    array: Any, shape: tuple[int, ...], at: int, count: int, parts: Sequence[tuple[Any, ...]]
) -> Any:
    """``array`` in a shape that has others for ``count`` axes from ``at`` on, over ``parts``."""
    if not any(parts):
        return array.reshape(shape)
    sharding = jax.typeof(array).sharding
    shape = tuple(array.size // -prod(shape) if size == -1 else size for size in shape)
    spec = [*sharding.spec]
    spec[at : at + count] = [axes or None for axes in parts]
    # Where JAX does not see how, it is told.
    return jax.lax.reshape(array, shape, out_sharding=sharding.update(spec=PartitionSpec(*spec)))


def join_problems(bind: Bind, arrays: Arrays, axes: Sequence[int | None]) -> tuple[Any, Any]:
    """Join the mapped axis with N, which is divided by what divides either of them."""
    size = mapped_size(arrays, axes)
    # With the mapped axis in front, which has one element where nothing is mapped.
    moved = [
        array[None] if axis is None else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(arrays, axes, strict=True)
    ]
    count = max(array.shape[1] for array in moved)
    of_map = next(filter(None, (_explicit(array, 0) for array in moved)), ())
    of_count = next(filter(None, (_explicit(array, 1) for array in moved)), ())
    of_count = tuple(axis for axis in of_count if axis not in of_map)
    is_moved = bool(of_count) and not of_map
    operands = []
    for array, axis in zip(moved, axes, strict=True):
        rest = array.shape[2:]
        if axis is None and array.shape[1] == 1:
            operands.append(array.reshape(1, *rest))
            continue
        array = jnp.broadcast_to(array, (size, count, *rest))
        if is_moved:
            array = jnp.moveaxis(array, 0, 1)
        operands.append(_reshaped(array, (-1, *rest), 0, 2, [of_map + of_count]))
    apart = []
    for array in bind(*operands):
        sizes, parts = (size, count), [of_map, of_count]
        if is_moved:
            sizes, parts = sizes[::-1], parts[::-1]
        apart.append(_reshaped(array, (*sizes, *array.shape[1:]), 0, 1, parts))
    return apart, [int(is_moved)] * len(apart)


def map_some(
    shapes: Any, rule: Any, arrays: Arrays, axes: Sequence[int | None], *, task: Task
) -> tuple[Any, Any]:
    """Apply ``rule`` to the mapped axis; without rows, return empty results."""
    if mapped_size(arrays, axes):
        done: tuple[Any, Any] = rule(arrays, axes, task=task)
        return done
    rows = [
        jax.typeof(array if axis is None else jnp.zeros(np.delete(array.shape, axis), array.dtype))
        for array, axis in zip(arrays, axes, strict=True)
    ]
    empty = [jnp.zeros((0, *one.shape), one.dtype) for one in shapes(*rows, task=task)]
    return empty, [0] * len(empty)


def mapped_size(arrays: Arrays, axes: Sequence[int | None]) -> int:
    """Return the size of the mapped axis."""
    return next(
        int(array.shape[axis]) for array, axis in zip(arrays, axes, strict=True) if axis is not None
    )


# Calls


class Shared(NamedTuple):
    """The operands of a call: how many problems there are, and names that say what they share."""

    problems: int
    names: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str], operands: Arrays) -> Shared:
        """Return the names; that of an operand that all problems share ends with "*"."""
        count = max(array.shape[0] for array in operands)
        marked = (
            f"{name}*" if count > 1 and array.shape[0] == 1 else name
            for name, array in zip(names, operands, strict=True)
        )
        return cls(count, tuple(marked))


def call_handler(
    target: str, results: Arrays, workspace: int, operands: Arrays, text: str, **keywords: Any
) -> list[Any]:
    """Call a handler, whose last result is its workspace; return the other results."""
    shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in results]
    scratch = jax.ShapeDtypeStruct((workspace,), jnp.dtype("uint8"))
    done = jax.ffi.ffi_call(target, [*shapes, scratch], **keywords)(*operands, call=text)
    return list(done[:-1])


Call = Callable[..., Sequence[Any]]
"""The results of a task, from it and its operands."""


def define(primitive: Primitive, shapes: Any, rule: Any, call: Call) -> None:
    """Set up a primitive that is lowered to ``call``; ``rule`` maps it."""
    primitive.multiple_results = True
    primitive.def_abstract_eval(shapes)
    primitive.def_impl(partial(_run_eagerly, primitive))
    batching.primitive_batchers[primitive] = partial(map_some, shapes, rule)
    mlir.register_lowering(primitive, partial(_lower, call))
    # Have JAX name the devices of a program when it lowers the primitive.
    try:
        from jax._src.dispatch import prim_requires_devices_during_lowering as known
    except ImportError:  # then the work of a sharded program is not divided, but right
        return
    known.add(primitive)


@lru_cache(maxsize=512)
def _compiled(primitive: Primitive, task: Task) -> Any:
    return jax.jit(partial(primitive.bind, task=task))


def _run_eagerly(primitive: Primitive, *arrays: Any, task: Task) -> Any:
    # A handler needs a program, so each setting by which JAX would run the function of the program
    # without jax.jit, which is this call again, is off inside; its check is made here.
    find_nan, find_inf = jax.config.jax_debug_nans, jax.config.jax_debug_infs
    if not (find_nan or find_inf):
        with jax.disable_jit(False):
            return _compiled(primitive, task)(*arrays)
    with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
        results = _compiled(primitive, task)(*arrays)
    _check_finite(primitive, results, find_nan=find_nan, find_inf=find_inf)
    return results


def _check_finite(primitive: Primitive, results: Arrays, *, find_nan: bool, find_inf: bool) -> None:
    """Raise ``FloatingPointError`` for NaN, or infinity, in results, as JAX's primitives do."""
    for array in results:
        if not jnp.issubdtype(array.dtype, jnp.inexact):  # a reserve space is bytes
            continue
        for shard in array.addressable_shards:
            values = np.asarray(shard.data)
            for name, asked, found in (("nan", find_nan, np.isnan), ("inf", find_inf, np.isinf)):
                if asked and found(values).any():
                    raise FloatingPointError(f"invalid value ({name}) encountered in {primitive}")


def _lower(call: Call, context: Any, *operands: Any, task: Task) -> Any:
    platforms = context.module_context.platforms
    implementation = task.implementation
    if set(platforms) != {implementation.platform}:
        raise NotImplementedError(
            f"implementation {implementation.name!r} runs on {implementation.platform}; this "
            f"program is for {', '.join(platforms)}. Inside jax.jit, None chooses for JAX's "
            f"default device: name an implementation that runs there"
        )
    function: Any = partial(call, task)
    where = context.module_context.axis_context
    several = isinstance(where, mlir.ShardingContext) and where.num_devices > 1
    if several and where.device_assignment is not None and task.divisible:
        function = _divided(call, task, context.avals_in, context.avals_out)
    return mlir.lower_fun(function, multiple_results=True)(context, *operands)


# Several devices


def _divided(call: Call, task: Task, avals_in: Arrays, avals_out: Arrays) -> Any:
    """``call`` where the devices share the work: the batch, and N, may be divided."""
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
        def over(number: int, axis: int) -> Any:
            """Return the mesh axes that divide an operand's axis; None where shares differ."""
            spec = operands[number].sharding.spec
            axes = spec[axis] if len(spec) > axis else None
            return None if avals_in[number].shape[axis] % _parts(mesh, axes) else axes

        over_batch = over(0, batches[0])
        # By the first operand that not all problems share: x may be shared, and weights mapped.
        apart = shared[: len(avals_in)]
        over_count = over(apart.index(False), 0) if False in apart else None
        if {*mesh_axes(over_batch)} & {*mesh_axes(over_count)}:  # x by rows, weights by networks
            over_count = None

        def sharding(number: int) -> NamedSharding:
            spec: list[Any] = [None] * ranks[number]
            if batches[number] >= 0:
                spec[batches[number]] = over_batch
            if not shared[number]:
                spec[0] = over_count
            return NamedSharding(mesh, PartitionSpec(*spec))

        shardings = [sharding(number) for number in range(len(ranks))]
        local = task.share(_parts(mesh, over_batch))

        def lowered(*arrays: Any) -> Any:
            done = call(local, *arrays)
            return tuple(
                jax.lax.psum(array, over_batch)
                if task.batch_axis(name) < 0 and over_batch is not None
                else array
                for name, array in zip(task.results, done, strict=True)
            )

        return mesh, lowered, tuple(shardings[len(avals_in) :]), tuple(shardings[: len(avals_in)])

    divided = custom_partitioning(lambda *arrays: tuple(call(task, *arrays)))
    divided.def_partition(partition=partition, sharding_rule=rule)
    return divided


def _parts(mesh: Any, axes: Any) -> int:
    """Among how many devices an axis that is divided over ``axes`` of the mesh lies."""
    return prod(mesh.shape[axis] for axis in mesh_axes(axes))


def mesh_axes(axes: Any) -> tuple[Any, ...]:
    """Return the axes of a mesh that an entry of a `PartitionSpec` names."""
    return () if axes is None else axes if isinstance(axes, tuple) else (axes,)
