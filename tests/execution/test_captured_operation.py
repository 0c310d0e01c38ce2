"""Tests of `Operation`: the capture of a call as a graph, and the objects that it keeps alive."""

from __future__ import annotations

import gc
from weakref import ref

import pytest

from dnnffi.device.interface import Launch, StreamAt
from dnnffi.errors import CaptureError, UnsupportedError
from dnnffi.execution.replay import CapturedOperation, GraphBudget


class Owner:
    """Stand-in for an executor or a handle, with weak references."""


class Graph:
    """A captured graph of 100 bytes."""

    nbytes, launches = 100, 0


class Memory:
    """Memory whose capture calls the function on a stream of its own."""

    def __init__(self):
        self.captured = []
        self.error = None

    def capture(self, record):
        record(StreamAt(48))
        if self.error is not None:
            raise self.error
        self.captured.append(Graph())
        return self.captured[-1]


@pytest.fixture
def made():
    """(operation, memory, launches made for captures, reported failures)."""
    memory, launches, failures = Memory(), [], []

    def launch_on(stream):
        launches.append(Launch(stream, 0, 7, Owner()))
        return launches[-1]

    operation = CapturedOperation(memory, launch_on, GraphBudget(), lambda: failures.append(True))
    return operation, memory, launches, failures


def test_addresses_that_come_again_are_captured_and_then_known(made):
    operation, memory, launches, _ = made
    executor, ran = Owner(), []
    assert operation.graph((1, 2), executor, ran.append) is None
    graph = operation.graph((1, 2), executor, ran.append)
    assert graph is memory.captured[0]
    assert operation.graph((1, 2), executor, ran.append) is graph
    assert operation.graph((1, 3), executor, ran.append) is None
    assert ran == launches, "once, on the launch of the capture"
    assert launches[0].stream == StreamAt(48)


def test_a_graph_of_another_executor_is_not_known(made):
    operation, *_ = made
    first, second = Owner(), Owner()
    for _ in range(2):
        operation.graph((1,), first, id)
    assert operation.graph((1,), first, id) is not None
    assert operation.graph((1,), second, id) is None


def test_a_graph_of_an_executor_that_was_replaced_makes_room(made):
    operation, *_ = made
    first, second = Owner(), Owner()
    for executor in (first, first, second, second):
        operation.graph((1,), executor, id)
    assert operation.graphs[1,].executor is second


def test_a_graph_keeps_its_executor_and_the_handle_that_it_was_captured_with(made):
    operation, _, launches, _ = made
    executor = Owner()
    for _ in range(2):
        operation.graph((1,), executor, id)
    kept = [ref(executor), ref(launches[0].owner)]
    del executor
    launches.clear()
    gc.collect()
    assert all(one() is not None for one in kept)
    operation.clear()
    made[1].captured.clear()
    gc.collect()
    assert [one() for one in kept] == [None, None]


@pytest.mark.parametrize(
    "error", [UnsupportedError("it", "", "no"), MemoryError(), RuntimeError("no")]
)
def test_a_capture_that_fails_is_told_and_gives_no_graph(made, error):
    operation, memory, _, failures = made
    memory.error = error
    for _ in range(2):
        assert operation.graph((1,), Owner(), id) is None
    assert failures == [True]
    assert operation.nbytes == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, CaptureError])
def test_an_interrupt_of_a_capture_is_the_users(made, error):
    operation, memory, _, failures = made
    memory.error = error()
    operation.graph((1,), Owner(), id)
    with pytest.raises(error):
        operation.graph((1,), Owner(), id)
    assert failures == []


def test_what_a_user_captures_is_kept_for_good(made):
    operation, *_ = made
    executor, launch = Owner(), Launch(StreamAt(16), 0, 7, Owner())
    kept = [ref(executor), ref(launch.owner)]
    operation.keep_for_user(executor, launch)
    operation.clear()
    del executor, launch
    gc.collect()
    assert all(one() is not None for one in kept)
