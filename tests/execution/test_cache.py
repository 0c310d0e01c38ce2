"""The bounded cache of plans."""

from __future__ import annotations

import threading

import pytest

from dnnffi.execution.cache import PlanCache


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
