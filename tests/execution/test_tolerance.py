"""Tests of tolerances: larger where fewer bits were requested, and small in all cases."""

from __future__ import annotations

import pytest

from dnnffi.execution.comparison import ROUNDOFFS, TOLERANCES


def test_a_tolerance_is_many_roundings_and_a_small_part():
    assert TOLERANCES.keys() == ROUNDOFFS.keys()
    for key, tolerance in TOLERANCES.items():
        assert 16 * ROUNDOFFS[key] < tolerance <= 0.1, key


@pytest.mark.parametrize("table", [TOLERANCES, ROUNDOFFS], ids=["tolerances", "roundoffs"])
def test_fewer_bits_are_allowed_more(table):
    precise = [
        *(("float64", "default"), ("float32", "strict")),
        *(("float32", "default"), ("bfloat16", "default")),
    ]
    values = [table[key] for key in precise]
    assert values == sorted(values)
    assert len(set(values)) == len(values)
