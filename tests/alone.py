"""Run tests marked ``alone`` after all others, one by one, when pytest-xdist shares out a run.

The workers leave these tests out. Once all workers are done, the process that started them runs the
tests left out, so that a run has one summary, one exit status and one record. ``conftest.py``
imports the hooks from here.
"""

from __future__ import annotations

import pytest

LEFT_OUT = pytest.StashKey[list[str]]()
"""The names of the tests that the workers did not run."""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a worker to leave these tests out, since this process runs them."""
    node.workerinput["leaves_out"] = True


@pytest.hookimpl(trylast=True)  # after the hooks that select
def pytest_collection_modifyitems(config, items):
    if getattr(config, "workerinput", {}).get("leaves_out"):
        alone = [item for item in items if item.get_closest_marker("alone")]
        items[:] = [item for item in items if item not in alone]
        config.workeroutput["left_out"] = [item.nodeid for item in alone]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    # The same of all workers; one that crashed has no output.
    if output := getattr(node, "workeroutput", None):
        node.config.stash[LEFT_OUT] = output.get("left_out", [])


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    result = yield
    names = session.config.stash.get(LEFT_OUT, [])
    if names:
        counted = session.testscollected
        items = session.perform_collect([str(session.config.rootpath / name) for name in names])
        session.testscollected += counted
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
    return result
