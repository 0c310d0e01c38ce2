"""Works of a capture are branches of it, and others follow each other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dnnffi.device.branches import Branches
from dnnffi.device.interface import Launch, StreamAt

CAPTURED, PLAIN, NULL = 16, 32, 0


class FakeRuntime:
    """Streams of which some are captured: what waits for an event of a capture joins it."""

    def __init__(self):
        self.capture_of = {CAPTURED: 1}
        self.log, self.made = [], []

    def new_stream(self):
        self.made.append(SimpleNamespace(ptr=1000 + len(self.made)))
        return self.made[-1]

    def new_event(self):
        return SimpleNamespace(capture=None, on=None)

    def record(self, event, at):
        event.on, event.capture = at, self.capture_of.get(at)

    def is_capturing(self, at):
        assert at != NULL
        return at in self.capture_of

    def wait(self, at, event):
        assert self.capture_of.get(at, event.capture) == event.capture, "of two captures"
        self.capture_of[at] = event.capture
        self.log.append((at, "waits for", event.on))

    def end(self, capture):
        self.capture_of = {at: one for at, one in self.capture_of.items() if one != capture}


@pytest.fixture
def runtime():
    return FakeRuntime()


@pytest.fixture
def branches(runtime):
    return Branches(runtime)


def works(runtime, count):
    return [lambda launch, n=n: runtime.log.append((launch.stream.ptr, n)) for n in range(count)]


@pytest.mark.parametrize("at", [NULL, PLAIN])
def test_without_a_capture_works_follow_each_other(runtime, branches, at):
    branches.run(Launch(StreamAt(at), 0), works(runtime, 3))
    assert runtime.log == [(at, 0), (at, 1), (at, 2)]
    assert not runtime.made


def test_in_a_capture_they_fork_and_join(runtime, branches):
    branches.run(Launch(StreamAt(CAPTURED), 0), works(runtime, 3))
    assert runtime.log == [
        (1000, "waits for", CAPTURED),
        (1000, 1),
        (1001, "waits for", CAPTURED),
        (1001, 2),
        (CAPTURED, 0),
        (CAPTURED, "waits for", 1001),
        (CAPTURED, "waits for", 1000),
    ]


def test_one_work_has_no_branch(runtime, branches):
    branches.run(Launch(StreamAt(CAPTURED), 0), works(runtime, 1))
    assert runtime.log == [(CAPTURED, 0)]


def test_streams_are_used_again_after_a_capture_only(runtime, branches):
    branches.run(Launch(StreamAt(CAPTURED), 0), works(runtime, 2))
    runtime.capture_of[PLAIN] = 2  # a second capture of the same thread
    branches.run(Launch(StreamAt(PLAIN), 0), works(runtime, 2))
    assert len(runtime.made) == 2
    runtime.end(1)
    branches.run(Launch(StreamAt(PLAIN), 0), works(runtime, 2))
    assert len(runtime.made) == 2


def test_streams_are_of_a_device(runtime, branches):
    branches.run(Launch(StreamAt(CAPTURED), 0), works(runtime, 2))
    runtime.end(1)
    runtime.capture_of[PLAIN] = 2
    branches.run(Launch(StreamAt(PLAIN), 1), works(runtime, 2))
    assert len(runtime.made) == 2


def test_branches_join_after_an_error(runtime, branches):
    def fails(launch):
        raise MemoryError

    with pytest.raises(MemoryError):
        branches.run(Launch(StreamAt(CAPTURED), 0), [*works(runtime, 1), fails])
    assert runtime.log[-1] == (CAPTURED, "waits for", 1000)
