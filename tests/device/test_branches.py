"""Works of a capture are branches of it, and others follow each other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dnnffi.device.branches import Branches
from dnnffi.device.interface import Launch, StreamAt

CAPTURED, PLAIN, NULL = 16, 32, 0


class FakeCupy:
    """Streams of which some are captured: what waits for an event of a capture joins it."""

    def __init__(self):
        self.capture_of = {CAPTURED: 1}
        self.log, self.made, self.events = [], [], {}
        self.cuda = SimpleNamespace(runtime=self, Event=self.event, Stream=self.stream)

    def stream(self, non_blocking):
        assert non_blocking  # a stream that waits for the null stream cannot be captured
        self.made.append(SimpleNamespace(ptr=1000 + len(self.made)))
        return self.made[-1]

    def event(self, disable_timing):
        event = SimpleNamespace(ptr=object(), capture=None, on=None)

        def record(stream):
            event.on, event.capture = stream.ptr, self.capture_of.get(stream.ptr)
            self.events[event.ptr] = event

        event.record = record
        return event

    def streamIsCapturing(self, at):
        assert at != NULL
        return at in self.capture_of

    def streamWaitEvent(self, at, event):
        event = self.events[event]
        assert self.capture_of.get(at, event.capture) == event.capture, "of two captures"
        self.capture_of[at] = event.capture
        self.log.append((at, "waits for", event.on))

    def end(self, capture):
        self.capture_of = {at: one for at, one in self.capture_of.items() if one != capture}


@pytest.fixture
def cupy():
    return FakeCupy()


@pytest.fixture
def branches(cupy):
    return Branches(cupy)


def works(cupy, count):
    return [lambda launch, n=n: cupy.log.append((launch.stream.ptr, n)) for n in range(count)]


@pytest.mark.parametrize("at", [NULL, PLAIN])
def test_without_a_capture_works_follow_each_other(cupy, branches, at):
    branches.run(Launch(StreamAt(at), 0), works(cupy, 3))
    assert cupy.log == [(at, 0), (at, 1), (at, 2)]
    assert not cupy.made


def test_in_a_capture_they_fork_and_join(cupy, branches):
    branches.run(Launch(StreamAt(CAPTURED), 0), works(cupy, 3))
    assert cupy.log == [
        (1000, "waits for", CAPTURED),
        (1000, 1),
        (1001, "waits for", CAPTURED),
        (1001, 2),
        (CAPTURED, 0),
        (CAPTURED, "waits for", 1001),
        (CAPTURED, "waits for", 1000),
    ]


def test_one_work_has_no_branch(cupy, branches):
    branches.run(Launch(StreamAt(CAPTURED), 0), works(cupy, 1))
    assert cupy.log == [(CAPTURED, 0)]


def test_streams_are_used_again_after_a_capture_only(cupy, branches):
    branches.run(Launch(StreamAt(CAPTURED), 0), works(cupy, 2))
    cupy.capture_of[PLAIN] = 2  # another capture of the same thread, beside the first
    branches.run(Launch(StreamAt(PLAIN), 0), works(cupy, 2))
    assert len(cupy.made) == 2
    cupy.end(1)
    branches.run(Launch(StreamAt(PLAIN), 0), works(cupy, 2))
    assert len(cupy.made) == 2


def test_streams_are_of_a_device(cupy, branches):
    branches.run(Launch(StreamAt(CAPTURED), 0), works(cupy, 2))
    cupy.end(1)
    cupy.capture_of[PLAIN] = 2
    branches.run(Launch(StreamAt(PLAIN), 1), works(cupy, 2))
    assert len(cupy.made) == 2


def test_branches_join_after_an_error(cupy, branches):
    def fails(launch):
        raise MemoryError

    with pytest.raises(MemoryError):
        branches.run(Launch(StreamAt(CAPTURED), 0), [*works(cupy, 1), fails])
    assert cupy.log[-1] == (CAPTURED, "waits for", 1000)
