"""What captured graphs need of Python."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from dnnffi.device.graphs import uncollected


class Cycle:
    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def collector():
    enabled = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if enabled else gc.disable)()


def is_collected():
    """Whether garbage goes when many objects are made."""
    garbage = weakref.ref(Cycle())
    for_the_collector = [[] for _ in range(10 * gc.get_threshold()[0])]
    del for_the_collector
    return garbage() is None


def test_no_garbage_is_collected_in_a_capture():
    assert is_collected()
    with uncollected():
        assert not is_collected()
        with uncollected():
            pass
        assert not is_collected()
    assert is_collected()


def test_a_capture_that_fails_leaves_the_collector_on():
    with pytest.raises(MemoryError), uncollected():
        raise MemoryError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()


def test_the_last_of_several_threads_turns_it_on():
    begun, ended = threading.Event(), threading.Event()

    def capture():
        with uncollected():
            begun.set()
            ended.wait(60)

    thread = threading.Thread(target=capture)
    with uncollected():
        thread.start()
        begun.wait(60)
    assert not gc.isenabled()
    ended.set()
    thread.join(60)
    assert gc.isenabled()
