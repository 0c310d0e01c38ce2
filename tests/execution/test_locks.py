"""Tests of locks that signal handlers re-enter and child processes find free, and of `TryLock`."""

from __future__ import annotations

import gc
import signal
import threading

import pytest
from stress.bounds import bounded, in_child

from dnnffi.execution import locks
from dnnffi.execution.locks import TryLock, new_lock


@pytest.fixture(autouse=True)
def no_hang():
    with bounded():
        yield


@pytest.fixture
def held():
    """A lock that another thread holds during the test."""
    lock, taken, done = new_lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    yield lock
    done.set()
    thread.join()


def is_free(lock):
    """Return whether another thread can acquire a lock now."""
    found = []

    def take():
        found.append(lock.acquire(blocking=False))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found[0]


def test_a_handler_takes_the_lock_that_it_interrupts():
    lock, entered = new_lock(), []

    def handler(number, frame):
        with lock:
            entered.append(number)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with lock:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert entered == [signal.SIGUSR1]
    assert is_free(lock)


def test_a_lock_keeps_other_threads_out(held):
    assert not held.acquire(blocking=False)


def test_a_child_finds_the_lock_of_another_thread_free(held):
    def work():
        with held:
            pass

    in_child(work)
    assert not held.acquire(blocking=False), "the parent's is as it was"


def test_a_child_keeps_the_lock_of_the_thread_that_forked():
    lock = new_lock()

    def work():
        assert not is_free(lock)

    with lock:
        in_child(work)
    assert is_free(lock)


def test_a_child_leaves_the_block_in_which_it_was_forked():
    lock = new_lock()

    def work():
        lock.release()  # as the end of the block does
        assert is_free(lock)
        lock.acquire()

    with lock:
        in_child(work)


def test_a_lock_is_known_for_as_long_as_it_lives():
    lock = new_lock()
    assert lock in locks._locks.snapshot()
    known = len(locks._locks.snapshot())
    del lock
    gc.collect()
    assert len(locks._locks.snapshot()) < known


# Turns


def test_one_takes_a_turn_at_a_time():
    turn = TryLock()
    with turn.take() as mine:
        assert mine
        with turn.take() as other:
            assert not other
        assert not turn.take()  # the end of the inner turn does not end the outer one
    assert turn.take()


def test_a_turn_is_not_another_threads_either():
    turn, found = TryLock(), []
    with turn.take() as mine:
        thread = threading.Thread(target=lambda: found.append(bool(turn.take())))
        thread.start()
        thread.join()
        assert mine
    assert found == [False]


def test_a_turn_ends_with_an_exception_that_is_kept():
    turn = TryLock()

    def work():
        with turn.take() as mine:
            assert mine
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as kept:
        work()
    assert kept.tb is not None  # has the frame, and in it the turn
    assert turn.take()


def test_a_turn_that_never_began_ends_with_its_object():
    turn = TryLock()
    mine = turn.take()
    assert mine
    assert not turn.take()
    del mine
    assert turn.take()


def test_an_interrupt_at_the_end_of_take_leaves_the_turn_free(monkeypatch):
    turn = TryLock()

    class Lock:
        def __enter__(self):
            pass

        def __exit__(self, *error):
            raise KeyboardInterrupt

    monkeypatch.setattr(turn, "_lock", Lock())
    with pytest.raises(KeyboardInterrupt):
        turn.take()
    monkeypatch.undo()
    assert turn.take()
