"""Hypothesis profiles: ``ci`` unless HYPOTHESIS_PROFILE names ``thorough``; options; compilers."""

from __future__ import annotations

import gc
import os

import needs
import pytest
from alone import (  # noqa: F401
    pytest_collection_modifyitems,
    pytest_configure_node,
    pytest_runtestloop,
    pytest_testnodedown,
)
from hypothesis import HealthCheck, given, settings, strategies

# No test reads the measurements of another run, or leaves any for one.
os.environ["DNNFFI_CACHE_DIR"] = "off"

# The same examples in every run, and no failure because a machine is slow.
settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile(
    "thorough",
    settings.get_profile("ci"),
    derandomize=False,
    max_examples=2000,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser):
    parser.addoption(
        "--record", action="store_true", help="write what the run showed to docs/verification"
    )
    parser.addoption(
        "--record-bits",
        action="store_true",
        help="write the hashes of the recurrent kernels' results again (bits.json); with -n 0",
    )
    needs.add_option(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    """Print each missing requirement once, below the errors of all tests that lack it."""
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        for text in needs.said(reporter.getreports("error")):
            reporter.write_line(text, red=True)
    return result


@pytest.fixture(scope="session")
def compiler(pytestconfig):
    return needs.program(pytestconfig, "cc")


@pytest.fixture(scope="session")
def cxx_compiler(pytestconfig):
    return needs.program(pytestconfig, "c++")


@pytest.fixture(scope="session")
def first_example():
    """Hypothesis makes its random numbers, and looks for who refers to them.

    It would not find what is frozen, and warns then (Python 3.14).
    """

    @settings(max_examples=1, database=None)
    @given(strategies.none())
    def run(_):
        pass

    run()


@pytest.fixture(scope="module", autouse=True)
def frozen_garbage(first_example):
    """Exclude objects older than a module from the garbage collections of its tests.

    Hundreds of tests collect garbage, which takes 0.2 s with the objects of ten thousand tests.
    The objects are not unfrozen at the end, since the next module would search them again.
    """
    gc.collect()
    gc.freeze()
