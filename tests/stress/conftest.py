"""No test here may hang; what the stand-in of tests/host is, and how much is done."""

from __future__ import annotations

import os

import pytest
from host.conftest import host, standin_path  # noqa: F401 - fixtures
from stress.bounds import bounded
from stress.calls import Calls


@pytest.fixture(autouse=True)
def no_hang():
    with bounded():
        yield


@pytest.fixture(scope="session")
def some():
    """Every so many-th of a list; all of it where DNNFFI_STRESS is large enough."""
    effort = int(os.environ.get("DNNFFI_STRESS", "1"))

    def chosen(items, stride):
        stride = max(1, stride // effort)
        return items[len(items) % stride :: stride]

    return chosen


@pytest.fixture(params=["reference", "cudnn"])
def calls(request):
    """Calls on the reference, and on the stand-in."""
    if request.param == "reference":
        made = Calls("reference")
    else:
        made = Calls("cudnn", request.getfixturevalue("host").asarray)
    yield made
    vars(made).clear()  # pytest keeps it for longer than the stand-in
