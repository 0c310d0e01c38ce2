"""Tests of replay: capture of calls, kept graphs, and the limit of their memory."""

from __future__ import annotations

import gc
import random
import signal
import threading

import pytest
from stress.bounds import bounded, switching_often

from dnnffi.execution import replay
from dnnffi.execution.replay import GraphBudget, Replays


class FakeGraph:
    def __init__(self, nbytes=100):
        self.nbytes = nbytes
        self.launches = 0


def replays(max_graphs=4, budget=None, **more):
    return Replays(GraphBudget() if budget is None else budget, max_graphs, **more)


def call(operation, addresses):
    """Make a call as a plan does, and return whether it was captured."""
    graph = operation.graphs.get(addresses)
    captured = graph is None and operation.due(addresses)
    if captured:
        graph = FakeGraph()
        operation.add(addresses, graph)
    if graph is not None:
        graph.launches += 1
    return captured


def test_the_second_call_on_the_same_addresses_is_captured():
    operation = replays()
    assert [call(operation, (1, 2)) for _ in range(4)] == [False, True, False, False]
    assert operation.graphs[1, 2].launches == 3


@pytest.mark.parametrize("captured_at", [1, 3, 4])
def test_the_call_that_is_captured_can_be_chosen(captured_at):
    operation = replays(captured_at=captured_at)
    calls = [call(operation, (1, 2)) for _ in range(6)]
    assert calls.index(True) + 1 == captured_at
    assert calls.count(True) == 1


def test_addresses_count_each_for_themselves():
    operation = replays()
    assert [call(operation, (n,)) for n in (1, 2, 3, 2, 1)] == [False] * 3 + [True] * 2
    assert set(operation.graphs) == {(1,), (2,)}


def test_addresses_that_are_always_new_are_never_captured():
    operation = replays()
    assert not any(call(operation, (n,)) for n in range(1000))
    assert len(operation._seen) <= replay._MAX_SEEN


def test_the_count_begins_anew_after_many_others():
    operation = replays()
    call(operation, (-1,))
    for n in range(replay._MAX_SEEN):
        call(operation, (n,))
    assert not call(operation, (-1,))


def test_no_more_graphs_than_allowed():
    operation = replays(max_graphs=3)
    for n in range(50):
        for _ in range(n + 2):
            call(operation, (n,))
    assert len(operation.graphs) == 3


def test_the_graph_that_is_launched_least_goes():
    operation = replays(max_graphs=3)
    for addresses, times in (((1,), 9), ((2,), 4), ((3,), 7)):
        for _ in range(times):
            call(operation, addresses)
    while (4,) not in operation.graphs:
        call(operation, (4,))
    assert set(operation.graphs) == {(1,), (3,), (4,)}


def test_what_is_called_less_than_every_graph_takes_no_place():
    operation = replays(max_graphs=2)
    for n in (1, 2):
        for _ in range(20):
            call(operation, (n,))
    assert not any(call(operation, (3,)) for _ in range(10))
    assert set(operation.graphs) == {(1,), (2,)}


def test_launches_of_long_ago_count_less():
    operation = replays(max_graphs=2)
    for n in (1, 2):
        for _ in range(100):
            call(operation, (n,))
    # A loop over other arrays begins: sooner or later both graphs are of that one.
    calls = 0
    while set(operation.graphs) != {(3,), (4,)}:
        for n in (3, 4):
            call(operation, (n,))
        calls += 1
        assert calls < 1000
    assert calls < 200


def test_a_cycle_longer_than_the_limit_keeps_its_graphs():
    operation = replays(max_graphs=4)
    captures = [sum(call(operation, (n,)) for n in range(6)) for _ in range(100)]
    assert captures[1] == 4
    assert sum(captures) == 4
    assert min(graph.launches for graph in operation.graphs.values()) == 99


def test_adding_what_is_there_changes_nothing():
    budget = GraphBudget()
    operation = replays(budget=budget)
    first = FakeGraph()
    operation.add((1,), first)
    operation.add((1,), FakeGraph(nbytes=5000))
    assert operation.graphs == {(1,): first}
    assert budget.nbytes == operation.nbytes == 100


def test_clearing_lets_go_of_graphs_and_counts():
    budget = GraphBudget()
    operation, other = replays(budget=budget), replays(budget=budget)
    for _ in range(3):
        call(operation, (1,))
        call(other, (1,))
    call(operation, (2,))
    operation.clear()
    assert operation.graphs == {}
    assert budget.nbytes == other.nbytes == 100
    assert not call(operation, (2,)), "what was seen before is forgotten"


# Memory of all graphs


def idle(budget, operations):
    """Mark the graphs of ``operations`` as not launched since the last check."""
    for operation in operations:
        for addresses, graph in operation.graphs.items():
            held = budget._held[operation.weak, addresses]
            budget._held[operation.weak, addresses] = held._replace(launches=graph.launches)


def test_where_memory_is_short_no_graph_is_captured_that_would_push_out_one_in_use():
    budget = GraphBudget(max_bytes=250)
    operations = [replays(budget=budget) for _ in range(5)]
    captures = [sum(call(operation, (1,)) for operation in operations) for _ in range(100)]
    assert captures[:3] == [0, 3, 0]
    assert sum(captures) == 3
    assert [len(operation.graphs) for operation in operations] == [1, 1, 1, 0, 0]
    assert budget.nbytes == 300


def test_a_graph_that_is_no_longer_launched_makes_room():
    budget = GraphBudget(max_bytes=250)
    old, new = ([replays(budget=budget) for _ in range(3)] for _ in range(2))
    for _ in range(50):
        for operation in old:
            call(operation, (1,))
    assert all(operation.graphs for operation in old)
    steps = 0
    while not all(operation.graphs for operation in new):
        for operation in new:
            call(operation, (1,))
        steps += 1
        assert steps < 10
    assert [operation.graphs for operation in old] == [{}, {}, {}]
    assert budget.nbytes == 300


def test_as_many_graphs_go_as_the_new_one_needs():
    budget = GraphBudget(max_bytes=350)
    one, two, three = (replays(budget=budget) for _ in range(3))
    one.add((1,), FakeGraph(nbytes=100))
    two.add((1,), FakeGraph(nbytes=1000))
    idle(budget, (one, two))
    assert budget.has_room()
    assert (one.graphs, two.graphs, budget.nbytes) == ({}, {}, 0)
    three.add((1,), FakeGraph())
    assert budget.nbytes == 100


def test_no_more_goes_than_makes_room():
    budget = GraphBudget(max_bytes=250)
    operation = replays(budget=budget)
    for n in range(3):
        operation.add((n,), FakeGraph())
    idle(budget, (operation,))
    assert budget.has_room()
    assert set(operation.graphs) == {(1,), (2,)}


def test_graphs_of_as_many_bytes_as_there_may_be_leave_no_room():
    budget = GraphBudget(max_bytes=200)
    operation = replays(budget=budget)
    for n in range(2):
        operation.add((n,), FakeGraph())
    idle(budget, (operation,))
    assert budget.has_room()
    assert set(operation.graphs) == {(1,)}


def test_a_limit_of_no_bytes_lets_one_graph_in_at_a_time():
    budget = GraphBudget(max_bytes=0)
    one, two = replays(budget=budget), replays(budget=budget)
    assert budget.has_room()
    one.add((1,), FakeGraph())
    idle(budget, (one,))
    assert budget.has_room()
    two.add((1,), FakeGraph())
    assert (len(one.graphs), len(two.graphs)) == (0, 1)


def test_a_graph_that_another_replaces_is_not_counted():
    budget = GraphBudget()
    operation = replays(max_graphs=1, budget=budget)
    operation.add((1,), FakeGraph(nbytes=300))
    operation.add((2,), FakeGraph())
    assert budget.nbytes == operation.nbytes == 100


def test_graphs_of_an_operation_that_is_gone_are_not_counted():
    budget = GraphBudget()
    one, two = replays(budget=budget), replays(budget=budget)
    for n in range(3):
        one.add((n,), FakeGraph())
        two.add((n,), FakeGraph())
    del one
    gc.collect()
    assert budget.nbytes == 300
    assert len(budget._held) == 3


@pytest.mark.parametrize("limit", [100, 10_000])
def test_the_count_of_bytes_is_always_that_of_the_graphs(limit):
    budget = GraphBudget(max_bytes=limit)
    operations = [replays(max_graphs=3, budget=budget) for _ in range(3)]
    for n in range(400):
        call(operations[n * 7 % 3], (n * n % 23,))
        if n % 97 == 0:
            operations[n % 3].clear()
        assert budget.nbytes == sum(operation.nbytes for operation in operations)


# Threads


def test_two_threads_that_add_the_same_keep_one():
    budget = GraphBudget()
    operation = replays(budget=budget)
    barrier = threading.Barrier(4)

    def add():
        for n in range(50):
            barrier.wait()
            operation.add((n % 3,), FakeGraph())

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.nbytes == operation.nbytes == 300


def test_no_lock_is_held_while_a_graph_of_another_operation_is_dropped():
    # A thread that collects a plan may hold the other lock and wait for this one.
    budget = GraphBudget(max_bytes=100)
    free = []

    class Watched(Replays):
        def drop(self, addresses):
            def take():
                free.append(budget._lock.acquire(blocking=False))
                if free[-1]:
                    budget._lock.release()

            thread = threading.Thread(target=take)
            thread.start()
            thread.join()
            super().drop(addresses)

    watched = Watched(budget)
    watched.add((1,), FakeGraph())
    assert budget.has_room()
    assert free == [True]
    assert watched.graphs == {}


def test_an_operation_is_collected_while_another_thread_holds_the_lock():
    # The collecting thread may hold a lock that the other thread waits for.
    budget = GraphBudget()
    operation = replays(budget=budget)
    operation.add((1,), FakeGraph())
    taken, done = threading.Event(), threading.Event()

    def hold():
        with budget._lock:
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        with bounded():
            del operation
            gc.collect()
    finally:
        done.set()
        thread.join()
    assert budget.nbytes == 0
    assert budget._held == {}


class TellingGraph(FakeGraph):
    """A graph that calls a function when it is deleted."""

    goes = staticmethod(lambda: None)

    def __del__(self):
        self.goes()


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no SIGALRM on this system")
@pytest.mark.parametrize("how", ["replaced", "cleared", "makes room"])
def test_a_graph_that_goes_may_change_what_it_was_in(how):
    budget = GraphBudget(max_bytes=250 if how == "makes room" else 10_000)
    operation, other = replays(max_graphs=3, budget=budget), replays(budget=budget)
    found, active = [], [True]

    def goes():
        if not active:
            return
        found.append(budget.nbytes)
        other.add((len(found),), FakeGraph())
        operation.clear()

    for n in range(3):
        graph = TellingGraph()
        graph.goes = goes
        operation.add((n,), graph)
    del graph
    with bounded():
        if how == "replaced":
            operation.add((3,), FakeGraph())
        elif how == "cleared":
            operation.clear()
        else:
            idle(budget, (operation,))
            assert budget.has_room()
    active.clear()
    assert len(found) == 3
    assert budget.nbytes == operation.nbytes + other.nbytes


def test_a_graph_dropped_before_it_is_counted_is_not_counted():
    budget = GraphBudget()
    operation = replays(budget=budget)

    class Graph(FakeGraph):
        @property
        def nbytes(self):
            operation.clear()  # as another thread may
            return 100

        @nbytes.setter
        def nbytes(self, value):
            pass

    operation.add((1,), Graph())
    assert operation.graphs == {}
    assert budget.nbytes == 0


@pytest.mark.parametrize("seed", range(3))
def test_threads_leave_as_many_graphs_as_allowed_and_count_them(seed):
    budget = GraphBudget(max_bytes=1000)
    operations = [replays(max_graphs=3, budget=budget) for _ in range(3)]
    barrier = threading.Barrier(4)

    def work(number):
        rng = random.Random(10 * seed + number)
        barrier.wait()
        for _ in range(300):
            operation = rng.choice(operations)
            if rng.random() < 0.05:
                operation.clear()
            else:
                call(operation, (rng.randrange(8),))

    with switching_often():
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for operation in operations:
        operation.add((99,), FakeGraph())
        assert len(operation.graphs) <= 3
    assert budget.nbytes == sum(operation.nbytes for operation in operations)
