"""The number of BLAS threads: one for small products, and what it is after a call."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress

import bounded
import numpy as np
import pytest
from stress.points import at_point, points_of
from threadpoolctl import threadpool_info, threadpool_limits

import dnnffi
from dnnffi.execution.cache import OnceCell
from dnnffi.reference import threads
from dnnffi.reference.threads import Library, ThreadLimit, dot_of, matmul_of, on_one_thread

ALL = 7


class Counts:
    """A BLAS of ``ALL`` threads by default: its count, and the counts at its products."""

    def __init__(self):
        self.count = ALL
        self.at_products = []
        self.limit = ThreadLimit(Library(lambda: self.count, self.set, ALL))

    def set(self, count):
        self.count = count


@pytest.fixture
def counts(monkeypatch):
    found = Counts()
    limits = OnceCell()
    limits.get("process", lambda: (found.limit,))
    monkeypatch.setattr(threads, "_limits", limits)

    def counted(multiply):
        def count(*arguments, **keywords):
            found.at_products.append(found.count)
            return multiply(*arguments, **keywords)

        return count

    for name in ("matmul", "dot"):
        monkeypatch.setattr(np, name, counted(getattr(np, name)))
    dnnffi.clear_plans()  # plans keep the function that multiplies
    yield found
    dnnffi.clear_plans()


def network(steps=3, batch=2, size=4, mode="lstm", **of_spec):
    spec = dnnffi.RNNSpec(mode=mode, input_size=size, hidden_size=size, **of_spec)
    weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    return np.ones((steps, batch, size), np.float32), weights


def train(x, weights):
    y, _, context = dnnffi.lstm_forward(x, None, weights)
    return context.backward(dy=y)


def test_small_products_of_a_network_use_one_thread(counts):
    train(*network(num_layers=2, bidirectional=True, proj_size=3))
    assert set(counts.at_products) == {1}
    assert counts.count == ALL


@pytest.mark.parametrize("mode", ["rnn_tanh", "gru"])
def test_small_products_of_inference_use_one_thread(counts, mode):
    x, weights = network(mode=mode)
    for _ in range(2):
        counts.at_products.clear()
        getattr(dnnffi, mode)(x, None, weights)
        assert counts.at_products == [1, 1, 1, 1]
    assert counts.count == ALL


def test_small_products_of_a_convolution_use_one_thread(counts):
    x, w = np.ones((2, 3, 8), np.float32), np.ones((4, 3, 3), np.float32)
    y = dnnffi.conv(x, w)
    dnnffi.conv_backward_data(y, w, x.shape)
    dnnffi.conv_backward_weights(y, x, w.shape)
    assert counts.at_products == [1, 1, 1]
    assert counts.count == ALL


def test_large_products_use_all_threads(counts, monkeypatch):
    # Products of the inputs of all steps have 3 * 2 * 4 * 16 = 384 multiply-adds, those of a step
    # a third of them.
    monkeypatch.setattr(threads, "MIN_PARALLEL_MACS", 384)
    x, weights = network()
    dnnffi.lstm(x, None, weights)
    assert counts.at_products == [ALL, 1, 1, 1]
    dnnffi.conv(np.ones((2, 3, 10), np.float32), np.ones((4, 3, 3), np.float32))  # 576
    assert counts.at_products[4:] == [ALL]
    x, weights = network(steps=12, mode="rnn_tanh")
    dnnffi.rnn_tanh(x, None, weights)
    assert counts.at_products[5:] == [ALL, *[1] * 12]
    assert counts.count == ALL


@pytest.mark.parametrize(("choose", "expected"), [(matmul_of, np.matmul), (dot_of, np.dot)])
def test_the_size_of_a_product_decides(choose, expected):
    small, large = (choose(np, threads.MIN_PARALLEL_MACS - less) for less in (1, 0))
    assert small is expected
    assert large is threads.parallel_matmul


@pytest.mark.parametrize("choose", [matmul_of, dot_of])
def test_arrays_of_another_module_are_multiplied_by_it(choose):
    class Module:
        matmul = object()

    assert choose(Module, threads.MIN_PARALLEL_MACS) is Module.matmul


def test_a_large_product_outside_a_call_changes_nothing(counts):
    threads.parallel_matmul(np.ones((2, 2)), np.ones((2, 2)))
    assert counts.at_products == [ALL]
    assert counts.count == ALL


@pytest.mark.parametrize("count", [1, 3, 9])
def test_a_count_that_the_user_has_set_is_kept(counts, count):
    counts.count = count
    train(*network())
    assert set(counts.at_products) == {count}
    assert counts.count == count


def test_a_limit_after_a_call_is_kept_by_the_next_one(counts):
    train(*network())
    counts.count = 1
    train(*network())
    assert counts.count == 1


def test_an_error_leaves_the_count_as_it_was(counts):
    @on_one_thread
    def fails():
        assert counts.count == 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert counts.count == ALL


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("min_macs", [1, 384, 2**26])
def test_a_call_interrupted_at_any_point_leaves_the_count_as_it_was(counts, monkeypatch, min_macs):
    monkeypatch.setattr(threads, "MIN_PARALLEL_MACS", min_macs)
    arrays = network(steps=2)

    def call():
        train(*arrays)

    call()
    points = points_of(call)
    assert points > 50
    for number in range(1, points + 1):
        with suppress(KeyboardInterrupt):
            at_point(number, interrupt, call)
        assert counts.count == ALL, number
        assert not counts.limit._calls, number


def test_a_call_in_the_middle_of_another_one_leaves_it_its_thread(counts):
    arrays = network(steps=2)

    def call():
        train(*arrays)

    for number in range(1, points_of(call) + 1):
        counts.at_products.clear()
        at_point(number, call, call)
        assert set(counts.at_products) == {1}, number
        assert counts.count == ALL, number


def test_a_call_while_the_count_is_read_for_the_end_of_another_one_restores_it_once(counts):
    arrays, set_counts = network(), []

    def count():
        if counts.limit._restored and not counts.limit._calls:  # the end of the outer call
            counts.limit._get_num_threads = lambda: counts.count
            train(*arrays)
        return counts.count

    counts.limit._get_num_threads = count
    counts.limit._set_num_threads = lambda number: set_counts.append(number) or counts.set(number)
    train(*arrays)
    assert counts.count == ALL
    assert set(set_counts) == {1, ALL}


def test_the_last_of_overlapping_calls_restores_the_count(counts):
    entered, ended = threading.Event(), threading.Event()
    seen = []

    @on_one_thread
    def first():
        entered.set()
        assert ended.wait(30)
        seen.append(counts.count)

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(30)
    train(*network())
    seen.append(counts.count)
    threads.parallel_matmul(np.ones((2, 2)), np.ones((2, 2)))
    assert counts.at_products[-1] == 1, "the other call has small products"
    ended.set()
    thread.join()
    assert seen == [1, 1]
    assert counts.count == ALL


def test_many_threads_leave_the_count_as_it_was(counts, monkeypatch):
    monkeypatch.setattr(threads, "MIN_PARALLEL_MACS", 384)
    arrays = network()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [
            threading.Thread(target=lambda: [train(*arrays) for _ in range(20)]) for _ in range(4)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    assert counts.count == ALL
    assert not counts.limit._calls


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forgets_the_calls_of_threads_that_it_has_not(counts):
    entered, ended = threading.Event(), threading.Event()

    @on_one_thread
    def held():
        entered.set()
        assert ended.wait(30)

    thread = threading.Thread(target=held)
    thread.start()
    assert entered.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(counts.count)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ended.set()
    thread.join()
    assert status == ALL


@pytest.mark.parametrize("name", threads.SETTINGS)
def test_nothing_is_limited_if_the_environment_says_how_many(name, monkeypatch):
    for other in threads.SETTINGS:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "2")
    assert threads._new_limits() == ()


COUNTS_OF_A_CALL = """
import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

import dnnffi
from dnnffi.reference import threads

def counts():
    return sorted({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"})

spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
matmul, seen = np.matmul, []

def counted(*arguments, **keywords):
    seen.append(counts())
    return matmul(*arguments, **keywords)

def call():
    seen.clear()
    before = counts()
    dnnffi.gru(np.ones((1, 2, 3), np.float32), None, weights)
    assert counts() == before
    assert seen[0] == seen[1]
    return before + seen[0]

np.matmul = counted
with threadpool_limits(3):
    print(*call())
print(*call())
"""


def test_the_count_of_numpys_own_library(monkeypatch):
    for name in threads.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    if not threads._new_limits():
        pytest.skip("NumPy's BLAS is no OpenBLAS with threads of its own")
    environment = "".join(f"os.environ.pop({name!r}, None)\n" for name in threads.SETTINGS)
    found = bounded.run(f"import os\n{environment}{COUNTS_OF_A_CALL}")
    default = threads._new_limits()[0]._default
    assert found.split("\n")[:2] == ["3 3", f"{default} 1"]


def test_nothing_is_limited_where_libraries_cannot_be_listed(monkeypatch):
    def without_proc():
        raise FileNotFoundError("/proc/self/maps")

    monkeypatch.setattr(threads, "ThreadpoolController", without_proc)
    assert threads._libraries() == []


def test_a_thread_that_has_called_leaves_limits_to_the_others(monkeypatch):
    for name in threads.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_limits", OnceCell())
    may_end, called = threading.Event(), threading.Event()

    def work():
        train(*network())
        called.set()
        assert may_end.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    assert called.wait(30)
    try:
        with threadpool_limits(1, user_api="blas"):
            pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    finally:
        may_end.set()
        thread.join()
    assert {pool["num_threads"] for pool in pools} <= {1}
