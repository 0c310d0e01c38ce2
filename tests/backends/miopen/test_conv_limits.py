"""Tests that limits of MIOpen are refused before a library call, in the documentation's words."""

from __future__ import annotations

from math import prod

import pytest
from conformance_conv import cells, refusal

from dnnffi.backends.miopen.conv_executor import MiopenConvolution
from dnnffi.backends.miopen.conv_source import MiopenBiasGradient
from dnnffi.backends.vendor.descriptors.checks import INT32_MAX
from dnnffi.errors import UnsupportedError


class Asked(Exception):
    """Raised by the first library call."""


class Nobody:
    """A library that raises `Asked` at the first call."""

    version = 3, 4, 0

    def unsupported(self, limit):
        return UnsupportedError("MIOpen", "3.4.0", limit)

    def __getattr__(self, name):
        raise Asked(name)


def answer(call):
    """Return the limit in the error that a call raises; empty if it reaches the library."""
    with pytest.raises((UnsupportedError, Asked)) as caught:
        call()
    return getattr(caught.value, "limit", "")


@pytest.mark.parametrize(("problem", "cell"), cells("miopen"))
def test_a_problem(problem, cell):
    assert answer(lambda: MiopenConvolution(problem, None, Nobody())) == refusal(cell)


def test_the_most_elements_are_taken():
    problem = cells("miopen")[-1].values[0]
    assert prod(problem.x_shape) > INT32_MAX
    fewer = problem._replace(batch=problem.batch - 1)
    assert prod(fewer.x_shape) <= INT32_MAX
    assert answer(lambda: MiopenConvolution(fewer, None, Nobody())) == ""


@pytest.mark.parametrize(("dtype", "cell"), cells("miopen", "SUMS"))
def test_the_gradient_of_a_bias(dtype, cell):
    assert answer(lambda: MiopenBiasGradient((2, 3, 4), dtype, Nobody())) == refusal(cell)
