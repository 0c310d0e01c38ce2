"""The names that types list are those that are taken at run time."""

from __future__ import annotations

from typing import get_args

import pytest

from dnnffi import typing
from dnnffi.backends.registry import BACKENDS
from dnnffi.spec import weights
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.conv_options import ConvOptions, ConvOptionsDict
from dnnffi.spec.options import ALGORITHMS, EMBEDDING, VENDOR_ALGORITHMS, RNNOptions, RNNOptionsDict
from dnnffi.spec.rnn import GATES


@pytest.mark.parametrize(
    ("listed", "taken"),
    [
        (typing.Mode, GATES),
        (typing.DType, ITEM_SIZES),
        (typing.BackendName, BACKENDS),
        (typing.LayoutName, weights._ORDERS),
    ],
)
def test_a_type_lists_what_is_taken(listed, taken):
    assert set(get_args(listed)) == set(taken)


def test_algorithms_are_auto_and_those_of_the_vendors():
    assert ("auto", *(name for own in VENDOR_ALGORITHMS.values() for name in own)) == ALGORITHMS


@pytest.mark.parametrize(
    ("written", "checked"), [(RNNOptionsDict, RNNOptions), (ConvOptionsDict, ConvOptions)]
)
def test_a_caller_may_write_every_option(written, checked):
    assert set(written.__annotations__) == {*checked._fields, *EMBEDDING}
