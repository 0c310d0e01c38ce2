"""An allocator that raises, at each allocation of each public call: the next call is as ever."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from stress import user_arrays
from stress.calls import CONV, X_SHAPE, Calls, assert_equal, in_a_thread, on_host
from stress.user_arrays import UserArray

import dnnffi
from dnnffi.device.external import device_array
from dnnffi.device.external.use import current_allocator


class Refused(Exception):
    """An error of a user's allocator, which is not one of dnnffi's."""


ERRORS = (MemoryError, ValueError, Refused, KeyboardInterrupt)


class Faulty:
    """An allocator of the stand-in's memory, one of whose allocations raises."""

    def __init__(self, simulator):
        self._allocate = simulator.memory._allocate
        self.count, self._nth, self._error = 0, None, None

    def fail(self, nth=None, error=None):
        self.count, self._nth, self._error = 0, nth, error

    def __call__(self, nbytes):
        self.count += 1
        if self.count == self._nth:
            raise self._error("of the allocator")
        return self._allocate(nbytes)


@pytest.fixture(autouse=True)
def user_arrays_can_be_had(monkeypatch):
    user_arrays.install(monkeypatch)


@pytest.fixture
def faulty(simulator, monkeypatch):
    """The faulty allocator, installed for the arrays that look like CuPy's."""
    allocate = Faulty(simulator)
    monkeypatch.setattr(simulator.memory, "_allocate", allocate)
    return allocate


def nothing(calls):
    return None


def forwarded(calls):
    """Return a plan on which a forward pass has run."""
    plan = calls.plan()
    calls.plan_forward(plan)
    return plan


def gone_back(calls):
    plan = forwarded(calls)
    calls.plan_backward_data(plan)
    return plan


def held_conv(calls):
    return dnnffi.ConvPlan(CONV, X_SHAPE, bias=True, backend=calls.backend)


def makes_a_plan(calls, _):
    calls.plan(options={"tune": "now"}).close()
    return ()


def tunes(calls, plan):
    plan.autotune()
    return ()


def with_a_new_state(calls):
    return dnnffi.DropoutState(1)


EMBEDDED = {
    "lstm": (nothing, lambda calls, _: calls.lstm()),
    "lstm_forward": (nothing, lambda calls, _: calls.lstm_forward()[0]),
    "dropout": (with_a_new_state, lambda calls, state: calls.lstm_forward(0.5, state)[0]),
    "backward": (lambda calls: calls.lstm_forward()[1], Calls.backward),
    "retain": (lambda calls: calls.lstm_forward()[1], partial(Calls.backward, retain=True)),
}
OPERATIONS = EMBEDDED | {
    "lstm, tuned": (nothing, lambda calls, _: calls.lstm(tune="now")),
    "training, tuned": (nothing, lambda calls, _: calls.train(tune="now")),
    "RNNPlan, tuned": (nothing, makes_a_plan),
    "RNNPlan.forward": (Calls.plan, Calls.plan_forward),
    "RNNPlan.backward_data": (forwarded, Calls.plan_backward_data),
    "RNNPlan.backward_weights": (gone_back, Calls.plan_backward_weights),
    "RNNPlan.backward": (forwarded, Calls.plan_backward),
    "RNNPlan.autotune": (Calls.plan, tunes),
    "conv": (nothing, lambda calls, _: calls.conv()),
    "conv, tuned": (nothing, lambda calls, _: calls.conv(tune="now")),
    "conv_backward_data": (nothing, lambda calls, _: calls.conv_backward_data()),
    "conv_backward_weights": (nothing, lambda calls, _: calls.conv_backward_weights()),
    "ConvPlan.run": (held_conv, lambda calls, plan: (plan.run(calls.image, calls.w, calls.bias),)),
    "ConvPlan.autotune": (held_conv, tunes),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_allocation_that_fails(simulator, faulty, name, error, some):
    check(simulator, faulty, Calls("cudnn", simulator.asarray), OPERATIONS[name], error, some)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", EMBEDDED)
def test_an_allocation_of_the_users_that_fails(simulator, name, error, some):
    faulty = Faulty(simulator)

    def asarray(values):
        made = UserArray.of(simulator.memory._allocate, np.asarray(values))
        return device_array("an array", made)

    calls = Calls("cudnn", asarray, {"allocator": partial(UserArray, faulty)})
    check(simulator, faulty, calls, EMBEDDED[name], error, some)


def check(simulator, faulty, calls, operation, error, some):
    prepare, call = operation

    def begin_anew():
        faulty.fail()
        user_arrays.forget(simulator.library)
        simulator.forget_plans()
        return simulator.live(), simulator.control.standin_registered()

    begin_anew()
    expected = on_host(call(calls, prepare(calls)))
    left = begin_anew()
    prepared = prepare(calls)
    faulty.fail()
    call(calls, prepared)
    total = faulty.count
    del prepared
    assert begin_anew() == left
    raised = 0
    for number in some(range(1, total + 1), 6):
        prepared = prepare(calls)
        faulty.fail(number, error)
        raised += raises(error, partial(call, calls, prepared))
        assert faulty.count >= number
        assert current_allocator() is None
        faulty.fail()
        assert_equal(call(calls, prepared), expected)
        assert_equal(in_a_thread(lambda: call(calls, prepare(calls))), expected)
        del prepared
        assert begin_anew() == left
    begin_anew()
    assert raised or error is MemoryError, "which tuning and convolutions go on without"


def raises(error, call):
    """Return whether a call raises ``error``, without keeping the frames that hold its arrays."""
    try:
        call()
    except error:
        return True
    return False
