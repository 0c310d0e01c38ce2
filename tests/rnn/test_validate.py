"""``validate``: what rounding makes of a small network is valid, and what is wrong is not.

The backend here is the reference itself, with the result of each operation rounded to the dtype.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dnnffi
from dnnffi import RNNProblem, RNNSpec, ValidationError, testing
from dnnffi.device.dtypes import dtype_object
from dnnffi.execution import comparison
from dnnffi.rnn.backend import rnn_backends
from dnnffi.rnn.reference_plan import ReferenceRNNPlan

MODES = ("rnn_tanh", "rnn_relu", "gru", "lstm")
DTYPES = ("float16", "bfloat16")


def rounded_to(dtype):
    """A function that takes arrays to ones whose every operation is rounded to ``dtype``."""

    class Rounded(np.ndarray):
        def __array_ufunc__(self, ufunc, method, *operands, **keywords):
            (out,) = keywords.pop("out", (None,))
            plain = [a.view(np.ndarray) if isinstance(a, Rounded) else a for a in operands]
            result = getattr(ufunc, method)(*plain, **keywords)
            if isinstance(result, np.ndarray) and result.dtype == np.float64:
                result = result.astype(dtype).astype(np.float64).view(Rounded)
            if out is None:
                return result
            out[...] = result
            return out

    return lambda a: None if a is None else np.asarray(a).astype(np.float64).view(Rounded)


class RoundingPlan(ReferenceRNNPlan):
    """The reference in the dtype of the problem: its results are right except for rounding.

    ``damage`` spoils the results of a forward pass; ``damage_weights`` the weights before it.
    """

    damage_results = staticmethod(lambda results: None)
    damage_weights = staticmethod(lambda weights, spec: None)

    def __init__(self, problem):
        super().__init__(problem)
        dtype = dtype_object(problem.spec.dtype)
        self.up = rounded_to(dtype)
        self.down = lambda a: None if a is None else np.asarray(a).astype(dtype)

    def forward(self, x, h_0, c_0, weights):
        weights = [np.array(w) for w in weights]
        self.damage_weights(weights, self.problem.spec)
        *results, tape = super().forward(*map(self.up, (x, h_0, c_0)), [*map(self.up, weights)])
        results = [self.down(a) for a in results]
        self.damage_results(results)
        return (*results, tape)

    def backward(self, saved, dy, dh_n, dc_n, **keywords):
        gradients = map(self.up, (dy, dh_n, dc_n))
        *data, weights, of_resets = super().backward(saved, *gradients, **keywords)
        return (*map(self.down, data), [self.down(w) for w in weights], of_resets)


@pytest.fixture(scope="module")
def rounding():
    """All plans of the reference's backend round."""
    backend = rnn_backends.of("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "plan", lambda problem, device, generator: RoundingPlan(problem))
        backend.plans.clear()
        yield backend
    backend.plans.clear()


def run(problem, seed):
    """A validated training step."""
    a = testing.inputs(problem, seed)
    keywords = testing.keywords(problem)
    keywords["options"] = (keywords.get("options") or {}) | {"validate": True}
    function = getattr(dnnffi, f"{problem.spec.mode}_forward")
    *_, ctx = function(a.x, a.hx, a.weights, **keywords)
    ctx.backward(a.dy, a.dhx)


def raises(problem, seed):
    """Return whether validation finds the results of a problem wrong."""
    try:
        run(problem, seed)
    except ValidationError:
        return True
    return False


def drawn(seed, dtype, hidden, modes=MODES):
    """A network with a number of hidden units out of ``hidden``, trained on a few steps."""
    random = np.random.default_rng(seed)
    spec = RNNSpec(
        mode=str(random.choice(modes)),
        input_size=int(random.integers(1, 8)),
        hidden_size=int(random.choice(hidden)),
        num_layers=int(random.integers(1, 4)),
        bidirectional=bool(random.integers(2)),
        dtype=dtype,
    )
    steps, batch = (int(n) for n in random.integers(1, 6, 2))
    lengths = [int(n) for n in random.integers(1, steps + 1, batch)]
    return RNNProblem.dense(
        spec,
        steps=steps,
        batch=batch,
        lengths=lengths if random.integers(2) else None,
        training=True,
    )


SMALL, LARGER = (1, 2, 3), (4, 5, 6, 7, 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_rounding_makes_of_a_small_network_is_valid(rounding, monkeypatch, dtype):
    problems = {seed: drawn(seed, dtype, SMALL) for seed in range(294, 336)}
    assert not [seed for seed, problem in problems.items() if raises(problem, seed)]
    # Judged by the tolerance alone, some of them would be wrong.
    monkeypatch.setattr(comparison, "_DRAWS", 0)
    assert [seed for seed, problem in problems.items() if raises(problem, seed)]


@given(
    testing.problems(testing.specs(dtypes=DTYPES, max_size=3), training=True, with_options=True),
    st.integers(0, 2**32 - 1),
)
def test_what_rounding_makes_of_any_small_network_is_valid(rounding, problem, seed):
    run(problem, seed)


@pytest.mark.parametrize(("dtype", "by"), [("float16", 1.05), ("bfloat16", 1.2)])
@pytest.mark.parametrize("index", [0, 1], ids=["y", "h_n"])
def test_one_wrong_element_is_found(rounding, monkeypatch, dtype, by, index):
    def damage(results):
        flat = results[index].reshape(-1)
        flat[abs(flat).argmax()] *= by

    monkeypatch.setattr(RoundingPlan, "damage_results", staticmethod(damage))
    name = ("y", "h_n")[index]
    found = {}
    for hidden in (SMALL, LARGER):
        found[hidden] = 0
        for seed in range(25):
            problem = drawn(seed, dtype, hidden)
            with pytest.raises(ValidationError) as caught:
                run(problem, seed)
            found[hidden] += list(caught.value.deviations) == [name]
    assert found == {SMALL: 25, LARGER: 25}


def without_a_bias(weights, spec):
    """Leave out the bias of the first gate of the last layer."""
    weights[-2][: spec.hidden_size] = 0


@pytest.mark.parametrize("hidden", [SMALL, LARGER], ids=["small", "larger"])
def test_the_missing_bias_of_one_gate_is_found(rounding, monkeypatch, hidden):
    monkeypatch.setattr(RoundingPlan, "damage_weights", staticmethod(without_a_bias))
    found = sum(raises(drawn(seed, "float16", hidden), seed) for seed in range(40))
    # The bias of a unit that a ReLU turned off has no effect; that of one or two units may be tiny.
    assert found >= {SMALL: 36, LARGER: 40}[hidden]
