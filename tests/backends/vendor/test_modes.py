"""Tests that no backend takes a network of a mode that it does not know."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dnnffi.backends.own.recurrent.limits import LIMITS as OWN_LIMITS
from dnnffi.backends.registry import BACKENDS
from dnnffi.backends.vendor.limits import limit_of
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

LIMITS = {name: one.rnn_limits for name, one in BACKENDS.items() if name != "reference"}


@pytest.mark.parametrize("limits", [*LIMITS.values(), OWN_LIMITS], ids=[*LIMITS, "own"])
def test_a_mode_that_only_the_reference_has_is_refused(limits):
    spec = RNNSpec(mode="gru", input_size=2, hidden_size=3)
    problem = RNNProblem.dense(spec, steps=1, batch=1)
    assert not limit_of(limits, problem)
    fields = {name: getattr(problem, name) for name in problem._fields}
    other = SimpleNamespace(**fields | {"spec": SimpleNamespace(mode="indrnn")})
    assert limit_of(limits, other).startswith("there are no networks of mode 'indrnn'")
