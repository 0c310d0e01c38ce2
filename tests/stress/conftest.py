"""Fixtures: a time limit for each test, the simulator of cuDNN, and a choice of cases."""

from __future__ import annotations

import pytest
from simulated.conftest import simulator, standin_path  # noqa: F401 - fixtures
from stress.bounds import EFFORT, bounded
from stress.calls import Calls


@pytest.fixture(autouse=True)
def no_hang():
    with bounded():
        yield


@pytest.fixture(scope="session")
def some():
    """A function that picks evenly spaced items of a list, at most ``most`` times `EFFORT`."""

    def chosen(items, most):
        stride = -(-len(items) // (most * EFFORT)) if EFFORT else 1
        return items[stride // 2 :: stride]

    return chosen


@pytest.fixture(params=["reference", "cudnn"])
def calls(request):
    """Calls on the reference, and on the stand-in."""
    if request.param == "reference":
        made = Calls("reference")
    else:
        made = Calls("cudnn", request.getfixturevalue("simulator").asarray)
    yield made
    vars(made).clear()  # pytest keeps it for longer than the stand-in
