"""Lengths on the device in handlers that XLA calls: dnnffi's own kernels on the host."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla.jax_programs import TOLERANCES, assert_close, reset_network

from dnnffi import jax as djax

LENGTHS = jnp.asarray((5, 0, 3, 2))
CASES = {
    "zeros": {"rows": 0},
    "batch first": {"batch_first": True, "rows": 1},
    "both directions": {"bidirectional": True},
    "gru": {"mode": "gru", "bidirectional": True, "rows": 1},
    "float16": {"dtype": "float16", "rows": 1},
}


def results(one, implementation, lengths):
    """Return the results without resets, and their gradients."""
    x, hx, weights, _ = one.arrays
    function = partial(
        getattr(djax, one.spec.mode),
        spec=one.spec,
        layout="cudnn",
        implementation=implementation,
        batch_first=one.problem.layout == "batch_major",
        options=one.problem.options,
    )

    def loss(x, hx, weights, lengths):
        found = jax.tree.leaves(function(x, hx, weights, lengths=lengths))
        return sum((each.astype("float32") ** 2).sum() for each in found)

    gradients = jax.jit(jax.grad(loss, (0, 1, 2)))(x, hx, weights, lengths)
    return function(x, hx, weights, lengths=lengths), gradients


@pytest.mark.parametrize("case", CASES.values(), ids=[*CASES])
def test_own_kernels_give_results_and_gradients_of_the_scan(own_host, case):
    one = reset_network(**case)
    found, expected = (results(one, name, LENGTHS) for name in ("standin", "scan"))
    assert_close(found, expected, max(TOLERANCES[one.spec.dtype], 2e-3), terms=2)
    assert own_host.host.calls("cudnnRNNForward") == 0


@pytest.mark.parametrize("case", CASES.values(), ids=[*CASES])
def test_they_go_together_with_resets(own_host, case):
    one = reset_network(**case)
    found, expected = (one.results(name, lengths=LENGTHS) for name in ("standin", "scan"))
    assert_close(found, expected, max(TOLERANCES[one.spec.dtype], 2e-3), terms=2)


@pytest.mark.parametrize("implementation", ["standin", "scan"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_values_out_of_range_count_as_the_nearest(own_host, implementation, dtype):
    one = reset_network(bidirectional=True)
    largest = np.iinfo(dtype).max
    given = jnp.asarray([largest, 0, 3, 2], dtype)
    assert_close(results(one, implementation, given), results(one, implementation, LENGTHS), 1e-6)


def test_one_program_serves_all_lengths(own_host):
    one = reset_network(num_layers=1)
    traced = []

    @jax.jit
    def run(lengths):
        traced.append(1)
        return one.run("standin", *one.arrays, lengths=lengths)

    for lengths in ((5, 0, 3, 2), (0, 0, 0, 0), (5, 5, 5, 5), (1, 2, 3, 4)):
        on_device = jnp.asarray(lengths)
        assert_close(run(on_device), one.run("scan", *one.arrays, lengths=on_device), 2e-3)
    assert len(traced) == 1


@pytest.mark.parametrize("mapped", ["lengths", "x", "both"])
def test_mapped_calls_are_those_of_the_scan(own_host, mapped):
    one = reset_network(num_layers=1)
    x, hx, weights, reset_to = one.arrays
    several = jnp.stack([LENGTHS, LENGTHS[::-1], jnp.zeros_like(LENGTHS)])
    axes = (0 if mapped != "lengths" else None, 0 if mapped != "x" else None)
    arrays = (
        jnp.stack([x, 2 * x, -x]) if mapped != "lengths" else x,
        several if mapped != "x" else LENGTHS,
    )

    def found(implementation):
        def run(x, lengths):
            return one.run(implementation, x, hx, weights, reset_to, lengths=lengths)

        return jax.jit(jax.vmap(run, axes))(*arrays)

    assert_close(found("standin"), found("scan"), 2e-3)


def test_a_divided_batch_keeps_its_lengths_divided(own_host):
    mesh = jax.make_mesh((2,), ("rows",))
    one = reset_network(num_layers=1)
    x, hx, weights, reset_to = one.arrays
    by_rows = jax.sharding.PartitionSpec
    placed = jax.device_put(x, jax.sharding.NamedSharding(mesh, by_rows(None, "rows")))
    lengths = jax.device_put(LENGTHS, jax.sharding.NamedSharding(mesh, by_rows("rows")))

    @jax.jit
    def run(x, lengths):
        return one.run("standin", x, hx, weights, reset_to, lengths=lengths)

    found = run(placed, lengths)
    assert_close(found, one.run("scan", x, hx, weights, reset_to, lengths=LENGTHS), 2e-3)
    text = run.lower(placed, lengths).compile().as_text()
    assert "s32[1,2]" in text  # half of the lengths reach each call
