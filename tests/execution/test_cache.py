"""Tests of caches of objects that are made once, bounded or not, and of weak references."""

from __future__ import annotations

import gc
import signal
import threading
from contextlib import contextmanager

import pytest
from stress.bounds import bounded, in_child

from dnnffi.execution.cache import OnceCell, PlanCache, WeakRegistry, keep_newest


def test_a_plan_is_made_once():
    cache, made = PlanCache(4), []

    def make():
        made.append(object())
        return made[-1]

    assert cache.find("key") is None
    assert cache.get("key", make) is cache.get("key", make) is cache.find("key")
    assert len(made) == 1


def test_the_oldest_plan_is_dropped_first():
    cache = PlanCache(3)
    for number in range(5):
        cache.get(number, object)
    assert [number for number in range(5) if cache.find(number)] == [2, 3, 4]
    assert len(cache) == 3


def test_what_cannot_be_made_is_not_kept():
    cache = PlanCache(3)

    def fail():
        raise ValueError("no such plan")

    with pytest.raises(ValueError, match="no such plan"):
        cache.get("key", fail)
    assert len(cache) == 0


def test_clear_forgets_all():
    cache = PlanCache(3)
    cache.get("key", object)
    cache.clear()
    assert cache.find("key") is None


def test_threads_that_make_the_same_plan_get_one():
    cache, barrier, found = PlanCache(3), threading.Barrier(4), []

    def make():
        barrier.wait()  # all four are making it
        return object()

    threads = [
        threading.Thread(target=lambda: found.append(cache.get("key", make))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


# Made once


def test_an_object_is_made_at_its_first_use_and_kept():
    once, made = OnceCell(), []

    def make():
        made.append(object())
        return made[-1]

    assert once.find("key") is None
    first = once.get("key", make)
    assert once.get("key", make) is first is once.find("key")
    assert once.values() == made == [first]
    assert len(once) == 1


def test_what_is_dropped_is_made_anew():
    once = OnceCell()
    first, other = once.get("key", object), once.get("other", object)
    once.drop("key", first)
    again = once.get("key", object)
    assert again is not first
    once.drop("key", first)
    assert once.find("key") is again, "what another has made meanwhile is kept"
    assert once.find("other") is other
    once.clear()
    assert once.values() == []


def test_the_first_that_is_ready_is_everybodys():
    once, barrier, found = OnceCell(), threading.Barrier(4), []

    def make():
        barrier.wait()  # all four are making it
        return object()

    threads = [
        threading.Thread(target=lambda: found.append(once.get("key", make))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert set(map(id, found)) == {id(once.find("key"))}


@contextmanager
def handler(does):
    """Handle SIGUSR1 by calling ``does`` during a block, in which a hang is a failure."""
    before = signal.signal(signal.SIGUSR1, lambda number, frame: does())
    try:
        with bounded():
            yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Key:
    """A key whose hash raises SIGUSR1, which interrupts the lookup."""

    def __init__(self):
        self.looks = 0

    def __hash__(self):
        self.looks += 1
        if callable(signal.getsignal(signal.SIGUSR1)):
            signal.raise_signal(signal.SIGUSR1)
        return 1


@pytest.mark.parametrize("make_cache", [OnceCell, lambda: PlanCache(2)])
@pytest.mark.parametrize("what", ["get", "values", "clear", "find"])
def test_a_handler_may_use_a_cache_that_it_interrupts(make_cache, what):
    cache, found = make_cache(), []
    does = {
        "get": lambda: found.append(cache.get("another", object)),
        "values": lambda: found.append(cache.values()),
        "clear": cache.clear,
        "find": lambda: found.append(cache.find("another")),
    }[what]
    key = Key()
    with handler(does):
        made = cache.get(key, object)
    assert key.looks >= 2, "when it was looked up, and when it was put in"
    assert made in cache.values()


def test_a_handler_that_needs_what_is_being_made_makes_it():
    cache, found = PlanCache(2), []

    def make():
        signal.raise_signal(signal.SIGUSR1)
        return "of the interrupted"

    with handler(lambda: found.append(cache.get("key", lambda: "of the handler"))):
        found.append(cache.get("key", make))
    assert found == ["of the handler"] * 2


def test_an_interrupt_while_it_is_made_leaves_nothing():
    cache = PlanCache(2)

    def interrupt():
        raise KeyboardInterrupt

    with handler(interrupt), pytest.raises(KeyboardInterrupt):
        cache.get("key", lambda: signal.raise_signal(signal.SIGUSR1))
    assert len(cache) == 0
    assert cache.get("key", lambda: "a plan") == "a plan"


def test_a_child_that_was_forked_while_a_thread_makes_a_plan_makes_its_own():
    cache, making, done = PlanCache(2), threading.Event(), threading.Event()

    def make():
        making.set()
        done.wait()

    thread = threading.Thread(target=lambda: cache.get("key", make))
    thread.start()
    making.wait()
    try:
        in_child(lambda: cache.get("key", object))
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("most", [1, 2, 5, 6, 7])
def test_the_newest_are_kept(most):
    kept = dict.fromkeys(range(6))
    keep_newest(kept, most)
    assert list(kept) == list(range(6))[-most:]


# Known while it lives


class Thing:
    pass


def test_what_is_gone_is_not_known():
    living = WeakRegistry()
    things = [Thing() for _ in range(3)]
    for thing in things:
        living.add(thing)
    assert set(living.snapshot()) == set(things)
    del things[1], thing
    gc.collect()
    assert set(living.snapshot()) == set(things)
    things.clear()
    gc.collect()
    assert living.snapshot() == []
    assert living._references == set()


def test_what_is_added_twice_is_known_once():
    living, thing = WeakRegistry(), Thing()
    living.add(thing)
    living.add(thing)
    assert living.snapshot() == [thing]
