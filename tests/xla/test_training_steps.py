"""Training steps as the tests on a GPU compare them, here by the implementations of the host."""

from __future__ import annotations

import conformance
import pytest
from xla.jax_programs import training_step

import dnnffi
from dnnffi.jax.rnn.engine import ReferenceExecutor
from dnnffi.spec.options import rnn_options


def case_of(mode, dtype):
    spec = dnnffi.RNNSpec(
        mode=mode, input_size=6, hidden_size=8, num_layers=2, bidirectional=True, dtype=dtype
    )
    problem = dnnffi.RNNProblem.dense(
        spec, steps=4, batch=3, training=True, options=rnn_options({"math": "strict"}, mode)
    )
    return conformance.Case(problem, states=True, seed=0)


def right(case):
    return conformance.expected(case, conformance.arrays_of(case))


CASES = [
    ("standin", mode, dtype) for mode in conformance.MODES for dtype in ("bfloat16", "float32")
]
CASES += [("reference", "lstm", "float16"), ("reference", "rnn_relu", "float16")]


@pytest.mark.parametrize(("implementation", "mode", "dtype"), CASES)
def test_results_and_gradients_are_those_of_the_reference(cudnn_host, implementation, mode, dtype):
    case = case_of(mode, dtype)
    conformance.assert_close(case, training_step(case, implementation)(), right(case))


@pytest.mark.parametrize("factor", [0, -1, 0.9, 1.1])
def test_a_gradient_that_is_scaled_is_found(monkeypatch, factor):
    backward_data = ReferenceExecutor.backward_data

    def scaled(self, launch, at):
        backward_data(self, launch, at)
        dx = self._array(at.dx, self.problem.x_shape)
        dx[...] = dx * dx.dtype.type(factor)

    monkeypatch.setattr(ReferenceExecutor, "backward_data", scaled)
    case = case_of("rnn_relu", "bfloat16")
    with pytest.raises(AssertionError, match="dx: relative error"):
        conformance.assert_close(case, training_step(case, "reference")(), right(case))
