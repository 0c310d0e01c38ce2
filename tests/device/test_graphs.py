"""Tests of what captured graphs need from Python."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import ExitStack, contextmanager

import pytest
from stress.bounds import in_child

from dnnffi.device.graphs import (
    recording,
    refuse_beside_capture,
    refuse_in_capture,
    uncollected,
)
from dnnffi.device.interface import StreamAt
from dnnffi.errors import CaptureError


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
    """Return whether garbage is collected when many objects are made."""
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


@contextmanager
def capturing_thread():
    """Let another thread capture until the block ends."""
    begun, ended = threading.Event(), threading.Event()

    def capture():
        with uncollected():
            begun.set()
            ended.wait(60)

    thread = threading.Thread(target=capture)
    thread.start()
    begun.wait(60)
    try:
        yield
    finally:
        ended.set()
        thread.join(60)


def test_the_last_of_several_threads_turns_it_on():
    with ExitStack() as other:
        with uncollected():
            other.enter_context(capturing_thread())
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_child_that_was_forked_while_a_thread_captures_collects_garbage():
    def work():
        assert gc.isenabled()

    with capturing_thread():
        in_child(work)


def test_a_child_leaves_the_capture_in_which_its_thread_forked():
    with ExitStack() as capture:
        capture.enter_context(uncollected())

        def work():
            capture.close()
            assert gc.isenabled()

        in_child(work)


@pytest.mark.parametrize("refuse", [refuse_in_capture, lambda at: refuse_beside_capture(at + 16)])
def test_a_thread_is_refused_while_it_captures(refuse):
    refuse(32)
    with recording(StreamAt(32)), pytest.raises(CaptureError, match="in the middle of a call"):
        refuse(32)
    refuse(32)


def test_a_thread_that_captures_takes_what_is_to_be_captured():
    with recording(StreamAt(32)):
        refuse_in_capture(0)  # of the null stream, which is never captured
        refuse_beside_capture(32)


def test_a_capture_in_a_capture_is_refused_and_the_first_goes_on():
    with recording(StreamAt(32)):
        with pytest.raises(CaptureError), recording(StreamAt(48)):
            pass
        with pytest.raises(CaptureError):
            refuse_in_capture(32)


def test_other_threads_are_not_refused():
    def use():
        refuse_in_capture(32)
        refuse_beside_capture(48)
        used.append(True)

    used = []
    with recording(StreamAt(32)):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join(60)
    assert used == [True]


def test_a_capture_that_fails_leaves_its_thread_free():
    with pytest.raises(MemoryError), recording(StreamAt(32)):
        raise MemoryError
    refuse_in_capture(32)
