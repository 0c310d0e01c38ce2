"""Tests of `KnownCalls`: known calls, their lifetime and their number."""

from __future__ import annotations

import pytest

from dnnffi.execution.remembered import KnownCalls


class Plan:
    """An object with weak references."""


def test_a_call_is_known_with_its_plan_for_as_long_as_that_lives():
    calls, plan = KnownCalls(), Plan()
    calls.add(("a", 1), plan, "more")
    known = calls.find(("a", 1))
    assert known.plan() is plan
    assert known.about == "more"
    assert calls.find(("a", 2)) is None
    del plan
    assert known.plan() is None


@pytest.mark.parametrize(("made", "most"), [(lambda: KnownCalls(3), 3), (KnownCalls, 1024)])
def test_so_many_calls_are_known_before_they_are_forgotten_all_at_once(made, most):
    calls, plan = made(), Plan()
    for number in range(3 * most):
        calls.add((number,), plan)
        assert calls.find((number,)).plan() is plan
        assert len(calls) == number % most + 1


def test_what_is_cleared_is_not_known():
    calls, plan = KnownCalls(), Plan()
    calls.add((), plan)
    calls.clear()
    assert len(calls) == 0
    assert calls.find(()) is None
