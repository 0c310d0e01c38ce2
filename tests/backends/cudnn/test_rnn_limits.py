"""Limits of cuDNN's recurrent networks that depend on its version."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dnnffi.backends.cudnn.limits import RNN_LIMITS
from dnnffi.backends.vendor.limits import check_limits
from dnnffi.errors import UnsupportedError
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec


def check(dtype, version, hidden_size=1, batch=1):
    spec = RNNSpec(mode="gru", input_size=1, hidden_size=hidden_size, dtype=dtype)
    library = SimpleNamespace(
        version=version, unsupported=lambda limit: UnsupportedError("cuDNN", "", limit)
    )
    check_limits(RNN_LIMITS, RNNProblem.dense(spec, steps=1, batch=batch), library)


def test_bfloat16_is_refused_before_9_13():
    with pytest.raises(UnsupportedError, match=r"before 9\.13 bfloat16 RNNs are not used"):
        check("bfloat16", (9, 12, 5))


@pytest.mark.parametrize(("dtype", "version"), [("bfloat16", (9, 13, 0)), ("float16", (9, 12, 5))])
def test_others_are_not(dtype, version):
    check(dtype, version)


def test_a_state_of_more_elements_than_an_int32_is_refused():
    with pytest.raises(UnsupportedError, match="a state has at most 2147483647 elements; h_0 is "):
        check("float16", (9, 19, 0), hidden_size=2**16, batch=2**15)
