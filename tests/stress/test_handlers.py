"""Signal handlers that call dnnffi, at the points of a call at which Python may run one."""

from __future__ import annotations

import numpy as np
import pytest
from stress.calls import BATCH, SPEC, STEPS, Calls, assert_equal, is_equal, on_host
from stress.points import at_point, points_of

import dnnffi
from dnnffi.errors import CudnnError

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
        """As if nothing was called before."""
        dnnffi.clear_plans()
        self.state = dnnffi.DropoutState(1)

    def save(self):
        """As on SIGTERM."""
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
        # Of two forwards on one state, one draws the first random numbers.
        if name == handler == "train_on_the_state" and of_handler:
            both = [found, *of_handler]
            both = both if is_equal(found, expected[name]) else both[::-1]
            assert_equal(both[0], expected[name])
            assert_equal(both[1], again[name])
            continue
        assert_equal(found, expected[name])
        for results in of_handler:
            assert_equal(results, expected[handler])


def test_a_handler_in_a_call_that_runs_through_copies(host):
    # They are the plan's own, and one call's at a time.
    calls = Calls("cudnn", host.asarray)
    x = host.asarray(np.ones(SPEC.x_shape(STEPS, BATCH)))

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
    copies = host.memory.copies
    points = points_of(call)
    assert host.memory.copies > copies
    for number in range(1, points + 1):
        of_handler = []
        found = at_point(number, lambda: of_handler.append(other()), call)  # noqa: B023
        assert_equal(found, expected)
        for results in of_handler:
            assert_equal(results, expected_of_handler)


def test_a_handler_that_tunes_in_a_convolution_that_nothing_can_run(host):
    calls = Calls("cudnn", host.asarray)
    expected = on_host(calls.conv_backward_data())
    (plan,) = dnnffi.cached_plans()
    lib, execute = host.library.lib, host.library.lib.cudnnBackendExecute

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

    host.library.lib = refusing = Refusing()
    with pytest.raises(CudnnError, match="cudnnBackendExecute"):
        calls.conv_backward_data()
    assert refusing.count > 2, "one engine after the other"
    for at in range(1, refusing.count + 1):
        refusing.at, refusing.count = at, 0
        with pytest.raises(CudnnError, match="cudnnBackendExecute"):
            calls.conv_backward_data()
        assert refusing.count >= at
    host.library.lib = lib
    assert_equal(calls.conv_backward_data(), expected)
