"""Several devices: shard_map, and sharded arrays under jit."""

from __future__ import annotations

import jax
import pytest
from jax import P
from jax_programs import assert_close, network

import dnnffi

SPEC = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, bidirectional=True)
PROBLEM = dnnffi.RNNProblem.dense(SPEC, 5, 4)
BATCH = (P(None, "d"), (P(None, "d"), P(None, "d")), P())
TYPES = (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit)


@pytest.fixture(params=TYPES, ids=str)
def mesh(request):
    if jax.device_count() < 2:
        pytest.skip("JAX was imported before it was told to have two devices")
    return jax.make_mesh((2,), ("d",), axis_types=(request.param,))


def placed(mesh, arrays):
    return jax.device_put(arrays, jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), BATCH))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("implementation", ["scan", "reference"])
def test_gradients_of_weights_are_summed_over_the_mesh(mesh, implementation, check_vma):
    one = network(PROBLEM, implementation)
    arrays = placed(mesh, one.arrays)

    def squares(*arrays):
        return (one.function(*arrays)[0] ** 2).sum()

    expected = jax.grad(squares, (0, 1, 2))(*one.arrays)
    whole = jax.shard_map(
        lambda *arrays: jax.lax.psum(squares(*arrays), "d"),
        mesh=mesh,
        in_specs=BATCH,
        out_specs=P(),
        check_vma=check_vma,
    )
    assert_close(jax.jit(jax.grad(whole, (0, 1, 2)))(*arrays), expected)

    def local(*arrays):
        x, hx, weights = jax.grad(squares, (0, 1, 2))(*arrays)
        return x, hx, weights if check_vma else jax.lax.psum(weights, "d")

    inside = jax.shard_map(local, mesh=mesh, in_specs=BATCH, out_specs=BATCH, check_vma=check_vma)
    assert_close(jax.jit(inside)(*arrays), expected)


@pytest.mark.parametrize("implementation", ["scan", "reference"])
def test_without_states_inside_a_mesh(mesh, implementation):
    one = network(PROBLEM, implementation)
    x, _, weights = placed(mesh, one.arrays)
    inside = jax.shard_map(
        lambda x, w: one.function(x, None, w)[0],
        mesh=mesh,
        in_specs=(P(None, "d"), P()),
        out_specs=P(None, "d"),
    )
    expected = one.function(one.x, None, one.arrays[2])[0]
    assert_close(jax.jit(inside)(x, weights), expected)


@pytest.mark.parametrize("mapped", [False, True], ids=["batch", "map"])
def test_a_sharded_batch_stays_sharded(mesh, mapped):
    one = network(PROBLEM, "reference")

    def program(x, hx, weights):
        if mapped:
            loss = jax.vmap(one.loss, (1, 1, None))
            each = (array[:, :, None] for array in (x, *hx))
            x, *hx = each
            return jax.grad(lambda *a: loss(*a).sum(), (0, 1, 2))(x, tuple(hx), weights)
        return one.function(x, hx, weights), jax.grad(one.loss, (0, 1, 2))(x, hx, weights)

    compiled = jax.jit(program)
    arrays = placed(mesh, one.arrays)
    found = compiled(*arrays)
    assert_close(found, compiled(*one.arrays))
    *batched, weights = jax.tree.leaves(found)
    assert all(not array.is_fully_replicated for array in batched)
    assert weights.is_fully_replicated
    assert "all-gather" not in compiled.lower(*arrays).compile().as_text()


def test_lengths_of_a_sharded_batch_are_right(mesh):
    problem = PROBLEM._replace(lengths=(1, 5, 3, 2))
    one = network(problem, "reference")
    gradient = jax.jit(jax.grad(one.loss, (0, 1, 2)))
    assert_close(gradient(*placed(mesh, one.arrays)), gradient(*one.arrays))
