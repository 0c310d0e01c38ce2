"""Graphs of calls on the null stream: in order with all else there, and who waits for it."""

from __future__ import annotations

import numpy as np
import pytest

import dnnffi
from dnnffi.device.cupy import cupy_memory

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.alone  # milliseconds decide what would come too early

SPEC = dnnffi.ConvSpec(
    in_channels=32, out_channels=32, kernel=(3, 3), padding=(1, 1), dtype="float32"
)
X_SHAPE = (16, 32, 128, 128)  # long enough for what does not wait to come too early
CYCLES = 20_000_000  # of a GPU's clock: some milliseconds

NULL = cupy.cuda.Stream.null

SPIN = r"""
extern "C" __global__ void spin(long long cycles)
{
    const long long start = clock64();
    while (clock64() - start < cycles) {}
}
"""


class Replayed:
    """A held plan whose calls on ``x`` replay a graph, and what they have to give."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.plan = dnnffi.ConvPlan(SPEC, X_SHAPE, options={"deterministic": True})
        self.given = cupy.asarray(rng.standard_normal(X_SHAPE).astype("float32"))
        self.w = cupy.asarray(rng.standard_normal(SPEC.weight_shape).astype("float32"))
        self.expected = self.plan.run(self.given, self.w)
        self.x = self.given.copy()
        self.y = cupy.empty_like(self.expected)
        for _ in range(20):
            self.plan.run(self.x, self.w, out=self.y)
        assert self.plan.report().splitlines()[-1].startswith("1 graphs")
        self.x.fill(0)
        self.y.fill(0)
        self.spin = cupy.RawKernel(SPIN, "spin")
        self.spin((1,), (1,), (0,))
        cupy.cuda.Device().synchronize()

    def write(self):
        """Fill x on the current stream, late."""
        self.spin((1,), (1,), (CYCLES,))
        self.x[...] = self.given

    def run(self):
        return self.plan.run(self.x, self.w, out=self.y)

    def is_right(self, found):
        return bool(cupy.array_equal(found, self.expected))


@pytest.fixture
def replayed():
    with cupy.cuda.Device(0), NULL:
        made = Replayed()
        yield made
        made.plan.close()


def test_a_graph_waits_for_what_the_null_stream_did_before(replayed):
    replayed.write()
    replayed.run()
    assert replayed.is_right(replayed.y)


def test_what_the_null_stream_does_next_waits_for_the_graph(replayed):
    replayed.write()
    found = replayed.run().copy()
    replayed.x.fill(0)
    replayed.y.fill(0)
    assert replayed.is_right(found)


def test_a_graph_waits_for_the_events_that_the_null_stream_waits_for(replayed):
    other = cupy.cuda.Stream(non_blocking=True)
    with other:
        replayed.write()
        event = other.record()
    NULL.wait_event(event)
    replayed.run()
    assert replayed.is_right(replayed.y)


def test_an_event_of_the_null_stream_comes_after_the_graph(replayed):
    replayed.write()
    replayed.run()
    event = NULL.record()
    other = cupy.cuda.Stream(non_blocking=True)
    other.wait_event(event)
    with other:
        found = replayed.y.copy()
    other.synchronize()
    assert replayed.is_right(found)


@pytest.mark.parametrize("wait", ["synchronize", "event"])
def test_who_waits_for_the_null_stream_waits_for_the_graph(replayed, wait):
    replayed.write()
    replayed.run()
    assert not NULL.done
    if wait == "synchronize":
        NULL.synchronize()
    else:
        NULL.record().synchronize()
    other = cupy.cuda.Stream(non_blocking=True)  # one that waits for nothing itself
    with other:
        found = replayed.y.copy()
    other.synchronize()
    assert replayed.is_right(found)


def test_a_graph_waits_for_what_a_blocking_stream_did_before(replayed):
    with cupy.cuda.Stream():
        replayed.write()
    replayed.run()
    assert replayed.is_right(replayed.y)


def test_what_a_blocking_stream_does_next_waits_for_the_graph(replayed):
    replayed.write()
    replayed.run()
    other = cupy.cuda.Stream()
    with other:
        found = replayed.y.copy()
    other.synchronize()
    assert replayed.is_right(found)


def test_a_copy_to_the_host_waits_for_the_graph(replayed):
    replayed.write()
    replayed.run()
    found = replayed.y.get()
    assert np.array_equal(found, replayed.expected.get())


def test_a_captured_step_is_in_order_with_the_null_stream(replayed):
    step = cupy_memory().capture_step(replayed.run)
    for _ in range(2):
        replayed.x.fill(0)
        replayed.write()
        found = step.launch().copy()
        replayed.y.fill(0)
        assert replayed.is_right(found)
