"""Signal handlers that call dnnffi, at the points of a call at which Python may run one."""

from __future__ import annotations

import numpy as np
import pytest
from stress.calls import BATCH, SPEC, STEPS, Calls, assert_equal, is_equal, on_host
from stress.points import at_point, points_of

import dnnffi
from dnnffi.errors import CaptureError, CudnnError

EXECUTION_FAILED = 5000
CALLS = ("lstm", "train_on_the_state", "plan_step", "conv", "conv_backward_weights", "conv_plan")


class Work:
    """The interrupted call, and what handlers do, on a state of random numbers for both."""

    def __init__(self, calls):
        self.calls = calls
        self.state = dnnffi.DropoutState(1)

    def __getattr__(self, name):
        return getattr(self.calls, name)

    def train_on_the_state(self):
        return self.calls.train(0.5, self.state)

    def begin_anew(self):
        """Reset the plans and the state, as if nothing was called before."""
        dnnffi.clear_plans()
        self.state = dnnffi.DropoutState(1)

    def save(self):
        """Save the state, as a handler of SIGTERM does."""
        assert self.state.save()["seed"] == 1
        return ()

    def clear(self):
        dnnffi.clear_plans()
        return ()

    def look(self):
        assert all(min(held) >= 0 for held in dnnffi.held_memory().values())
        assert all(plan.report() for plan in dnnffi.cached_plans())
        return ()


HANDLERS = ("save", "clear", "look", "lstm", "train_on_the_state", "plan_step", "conv")


@pytest.mark.parametrize("name", CALLS)
def test_a_call_and_the_handler_in_it_give_what_they_always_do(calls, name, some):
    work = Work(calls)
    call = getattr(work, name)
    expected, again = {}, {}
    for one in dict.fromkeys((*CALLS, *HANDLERS)):
        work.begin_anew()
        expected[one], again[one] = (on_host(getattr(work, one)()) for _ in range(2))
    work.begin_anew()
    points = points_of(call)
    assert points > 10
    for number, handler in some([(n, h) for n in range(1, points + 1) for h in HANDLERS], 60):
        work.begin_anew()
        of_handler = []
        does = getattr(work, handler)
        found = at_point(number, lambda: of_handler.append(does()), call)  # noqa: B023
        # Two forward passes on one state: one of them draws the first random numbers.
        if name == handler == "train_on_the_state" and of_handler:
            both = [found, *of_handler]
            both = both if is_equal(found, expected[name]) else both[::-1]
            assert_equal(both[0], expected[name])
            assert_equal(both[1], again[name])
            continue
        assert_equal(found, expected[name])
        for results in of_handler:
            assert_equal(results, expected[handler])


def test_a_handler_in_a_call_that_runs_through_copies(simulator):
    # They are the plan's own, and one call's at a time.
    calls = Calls("cudnn", simulator.asarray)
    x = simulator.asarray(np.ones(SPEC.x_shape(STEPS, BATCH)))

    kept = []  # so that no addresses come again, which would be captured

    def other():
        options = {"tune": "now"}
        kept.append(dnnffi.lstm(x, calls.hx, calls.weights, backend="cudnn", options=options))
        return kept[-1][:1]

    def call():
        kept.append(calls.lstm(tune="now"))
        return kept[-1]

    expected, expected_of_handler = on_host(call()), on_host(other())
    for _ in range(3):
        call()
    copies = simulator.memory.copies
    points = points_of(call)
    assert simulator.memory.copies > copies
    for number in range(1, points + 1):
        of_handler = []
        found = at_point(number, lambda: of_handler.append(other()), call)  # noqa: B023
        assert_equal(found, expected)
        for results in of_handler:
            assert_equal(results, expected_of_handler)


class Capturing:
    """A plan's calls on the same arrays: the first runs, the second is captured, others replay."""

    def __init__(self, simulator):
        self.host = simulator
        self.calls = Calls("cudnn", simulator.asarray)
        self.other_stream = simulator.memory.new_stream()
        self.out = self.calls.lstm(tune="off")
        self.expected = on_host(self.out)

    def plan(self):
        return dnnffi.RNNPlan(
            SPEC, batch=BATCH, steps=STEPS, backend="cudnn", options={"tune": "now"}
        )

    def __call__(self, plan):
        for one in self.out:
            one[...] = np.nan
        y, *states = self.out
        plan.forward(self.calls.x, self.calls.hx, self.calls.weights, (y, tuple(states)))
        return on_host(self.out)

    # Handlers

    def lstm(self):
        return self.calls.lstm(tune="off")

    def lstm_elsewhere(self):
        memory = self.host.memory
        before, memory.stream = memory.stream, self.other_stream
        try:
            return self.lstm()
        finally:
            memory.stream = before

    def tuned(self):
        return self.calls.lstm(tune="now")

    def train_on_a_state(self):
        return self.calls.train(0.5, dnnffi.DropoutState(1))

    def conv(self):
        return self.calls.conv()


IN_CAPTURES = ("lstm", "lstm_elsewhere", "tuned", "train_on_a_state", "conv")


@pytest.mark.parametrize("handler", IN_CAPTURES)
def test_a_handler_in_a_capture_is_refused_and_not_captured(simulator, handler):
    call = Capturing(simulator)
    does = getattr(call, handler)
    expected = on_host(does())
    with call.plan() as plan:
        call(plan)
        points = points_of(lambda: call(plan))
    refused, done = [], []

    def handle():
        try:
            done.append(does())
        except CaptureError:
            refused.append(handler)

    for number in range(1, points + 1):
        with call.plan() as plan:
            call(plan)
            found = at_point(number, handle, lambda: call(plan))
            assert_equal(found, call.expected)
            for _ in range(3):
                assert_equal(call(plan), call.expected)
            assert "1 graphs" in plan.report()
    for results in done:
        assert_equal(results, expected)  # also after the replays
    assert refused
    assert done


def test_a_handler_that_is_refused_interrupts_the_call_as_any_error_does(simulator):
    call = Capturing(simulator)
    with call.plan() as plan:
        call(plan)
        points = points_of(lambda: call(plan))
    refused = 0
    for number in range(1, points + 1):
        with call.plan() as plan:
            call(plan)
            try:
                at_point(number, call.lstm, lambda: call(plan))
            except CaptureError:
                refused += 1
            for _ in range(3):
                assert_equal(call(plan), call.expected)
            assert "1 graphs" in plan.report()
    assert refused


def test_a_handler_that_tunes_in_a_convolution_that_nothing_can_run(simulator):
    calls = Calls("cudnn", simulator.asarray)
    expected = on_host(calls.conv_backward_data())
    (plan,) = dnnffi.cached_plans()
    lib, execute = simulator.library.lib, simulator.library.lib.cudnnBackendExecute

    class Refusing:
        """A library that runs nothing, except in the handler that comes at one of the calls."""

        at, count, handled = 0, 0, False

        def __getattr__(self, name):
            return getattr(lib, name)

        def cudnnBackendExecute(self, *arguments):
            if self.handled:
                return execute(*arguments)
            self.count += 1
            if self.count == self.at:
                self.handled = True
                assert plan.autotune()
                self.handled = False
            return EXECUTION_FAILED

    simulator.library.lib = refusing = Refusing()
    with pytest.raises(CudnnError, match="cudnnBackendExecute"):
        calls.conv_backward_data()
    assert refusing.count > 2, "one engine after the other"
    for at in range(1, refusing.count + 1):
        refusing.at, refusing.count = at, 0
        with pytest.raises(CudnnError, match="cudnnBackendExecute"):
            calls.conv_backward_data()
        assert refusing.count >= at
    simulator.library.lib = lib
    assert_equal(calls.conv_backward_data(), expected)


def test_a_handler_in_a_call_whose_workspace_has_a_padded_image(simulator):
    calls, others = (Calls("cudnn", simulator.asarray, {"tune": "off"}) for _ in range(2))
    others.image = simulator.asarray(-np.array(calls.image))
    expected, expected_of_handler = (on_host(one.conv_padded()) for one in (calls, others))
    for number in range(1, points_of(calls.conv_padded) + 1):
        of_handler = []
        does = lambda: of_handler.append(others.conv_padded())  # noqa: B023, E731
        assert_equal(at_point(number, does, calls.conv_padded), expected)
        for results in of_handler:
            assert_equal(results, expected_of_handler)
