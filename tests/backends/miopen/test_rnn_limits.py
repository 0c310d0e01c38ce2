"""Tests of the limits of MIOpen's recurrent networks by version and problem."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dnnffi.backends.miopen.limits import RNN_LIMITS
from dnnffi.backends.miopen.rnn_executor import MiopenRNNExecutor
from dnnffi.backends.vendor.limits import check_limits
from dnnffi.device.interface import Launch, StreamAt
from dnnffi.errors import UnsupportedError
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

SPEC = RNNSpec(mode="lstm", input_size=1, hidden_size=1)
UNBIASED = RNNSpec(mode="lstm", input_size=1, hidden_size=1, bias=False)


def library_of(version):
    """Return the part of a library that limits need."""
    return SimpleNamespace(
        version=version, unsupported=lambda limit: UnsupportedError("miopen", "", limit)
    )


def limit_told(problem, version=(3, 5, 1)):
    """Return the limit with which a version of the library refuses a problem, or an empty text."""
    try:
        check_limits(RNN_LIMITS, problem, library_of(version))
    except UnsupportedError as error:
        return error.limit
    return ""


@pytest.mark.parametrize(
    ("problem", "refused"),
    [
        (RNNProblem.dense(SPEC, steps=65_535, batch=2), False),
        (RNNProblem.dense(SPEC, steps=65_536, batch=1), True),
        (RNNProblem.dense(SPEC, steps=65_536, batch=2, lengths=(1, 65_535)), False),
        (RNNProblem.packed(SPEC, [1] * 65_536), True),
        (RNNProblem.dense(UNBIASED, steps=65_536, batch=1), False),
    ],
)
def test_steps_of_a_row_that_have_biases(problem, refused):
    assert ("a row has at most 65,535 steps" in limit_told(problem)) is refused


@pytest.mark.parametrize(("version", "refused"), [((3, 5, 9), True), ((3, 6, 0), False)])
def test_the_limit_ends_with_the_version_that_mended_it(version, refused):
    problem = RNNProblem.dense(SPEC, steps=65_536, batch=1)
    assert bool(limit_told(problem, version)) is refused


def test_a_state_of_more_elements_than_an_int32_is_refused():
    spec = RNNSpec(mode="lstm", input_size=1, hidden_size=2**7, bias=False)
    problem = RNNProblem.dense(spec, steps=1, batch=2**24)
    with pytest.raises(UnsupportedError, match="a state has at most 2147483647 elements; h_0 is "):
        MiopenRNNExecutor(problem, Launch(StreamAt(0), 0), library_of((3, 4, 0)))


def test_weights_of_more_elements_than_an_int32_are_refused():
    spec = RNNSpec(mode="lstm", input_size=2**14, hidden_size=2**14)
    problem = RNNProblem.dense(spec, steps=1, batch=1)
    assert "the weights have at most 2147483647 elements" in limit_told(problem)
