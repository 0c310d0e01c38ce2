"""Ctrl-C at the points of a call at which Python raises it: nothing stays locked, nothing leaks."""

from __future__ import annotations

import gc
from contextlib import suppress
from functools import partial

import pytest
from stress.calls import Calls, assert_equal, in_a_thread, is_equal, on_host
from stress.points import at_point, points_of

import dnnffi
from dnnffi.backends.cudnn.graph.types import DESCRIPTORS
from dnnffi.backends.vendor.handle import close_handles

VARIANT_PACK = DESCRIPTORS["CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR"]
CALLS = (
    *("lstm", "train", "train_with_dropout", "plan_step"),
    *("conv", "conv_backward_data", "conv_backward_weights", "conv_backward_bias", "conv_plan"),
)

pytestmark = [
    # Ctrl-C in a finalizer is Python's to tell; what it was about to destroy goes later.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_call_leaves_nothing_locked_and_nothing_behind(calls, name, some):
    call = getattr(calls, name)
    expected = on_host(call())
    dnnffi.clear_plans()
    points = points_of(call)
    assert points > 10
    interrupted = 0
    for number in some(range(1, points + 1), 40):
        dnnffi.clear_plans()
        try:
            found = on_host(at_point(number, interrupt, call))
        except KeyboardInterrupt:
            interrupted += 1
        else:
            assert_equal(found, expected)  # where it came in a finalizer
        assert_equal(in_a_thread(call), expected)
        assert_equal(call(), expected)
    assert interrupted


@pytest.mark.parametrize("used", [0, 1])
def test_an_interrupted_forward_leaves_its_random_numbers_to_the_next(calls, used, some):
    def begin():
        """A state after some forwards, and another one on it."""
        state = dnnffi.DropoutState(1)
        for _ in range(used):
            calls.train(0.5, state)
        return state, partial(calls.train, 0.5, state)

    _, train = begin()
    drawn = [on_host(train()) for _ in range(2)]
    for number in some(range(1, points_of(begin()[1]) + 1), 60):
        state, train = begin()
        with suppress(KeyboardInterrupt):
            at_point(number, interrupt, train)
        found = in_a_thread(train)
        assert is_equal(found, drawn[0]) or is_equal(found, drawn[1]), "it drew them, or not"
        assert in_a_thread(lambda: [state.save()["seed"]]) == [1]  # noqa: B023


class Interrupting:
    """The library, of whose calls one is interrupted when it was made: there signals are told."""

    def __init__(self, lib):
        self._lib = lib
        self.left = -1

    def __getattr__(self, name):
        function = getattr(self._lib, name)

        def call(*arguments):
            result = function(*arguments)
            # Calls in finalizers are not counted. Nor is the making of a variant pack: there may be
            # one for each call, so that it omits the steps that other descriptors go through.
            if "Destroy" not in name and VARIANT_PACK not in arguments[:1]:
                self.left -= 1
                if self.left == 0:
                    raise KeyboardInterrupt
            return result

        return call


@pytest.mark.parametrize("name", ["train_with_dropout", "plan_step", "conv", "conv_plan"])
def test_an_interrupted_call_of_the_library_leaves_nothing_behind(simulator, name, some):
    calls = Calls("cudnn", simulator.asarray)
    simulator.library.lib = lib = Interrupting(simulator.library.lib)
    call = getattr(calls, name)
    expected = on_host(call())

    def begin_anew():
        simulator.forget_plans()
        close_handles(simulator.library)
        gc.collect()
        return simulator.live(), simulator.control.standin_registered()

    left = begin_anew()
    assert left[0] == 0
    lib.left = 0
    call()
    made = -lib.left
    assert made > 10
    begin_anew()
    for number in some(range(1, made + 1), 12):
        lib.left = number
        with pytest.raises(KeyboardInterrupt):
            call()
        assert begin_anew() == left
        assert_equal(in_a_thread(call), expected)
        assert begin_anew() == left
