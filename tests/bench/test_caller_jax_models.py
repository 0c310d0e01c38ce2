"""JAX's models of callers on the CPU; dnnffi's is in test_jax_models.py."""

from __future__ import annotations

import pytest
from bench.bench_models import SHAPES, run

jax = pytest.importorskip("jax")

from dnnffi.bench.callers import jax_models  # noqa: E402 - it imports JAX


@pytest.mark.parametrize("name", ["one layer", "gru"])
def test_the_empty_function_has_as_many_results_as_a_network(name):
    shape = SHAPES[name]
    with jax.enable_x64(True):
        for training in (False, True):
            found, _ = run(jax_models.empty, shape, training=training)
            expected = run(jax_models.ours, shape, training=training)
            assert len(jax.tree.leaves(found)) == len(jax.tree.leaves(expected[0]))
            assert all(one.shape == () for one in found)


def test_the_empty_function_takes_operands_that_it_does_not_use():
    shape = SHAPES["one layer"]
    with jax.enable_x64(True):
        model = jax_models.empty(shape, shape.draw(), "cpu", True)
        function, operands = model.forward.func, model.forward.args
        compiled = function.lower(*operands).compile()
    assert len(jax.tree.leaves(compiled.args_info)) == len(jax.tree.leaves(operands)) == 5


def test_both_models_are_measured():
    assert [(one.name, one.tunes) for one in jax_models.CREATORS] == [
        ("dnnffi jax", True),
        ("empty jax function", False),
    ]
