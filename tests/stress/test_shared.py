"""Tests of shared state during concurrent calls: known plans, and first calls."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
from stress import user_arrays
from stress.bounds import switching_often
from stress.calls import BATCH, SPEC, STEPS, Calls
from stress.points import at_point, points_of
from stress.user_arrays import UserArray

import dnnffi
from dnnffi.backends.cudnn.rnn_candidates import Generator
from dnnffi.backends.vendor.handle import current_launch
from dnnffi.device.external import device_array
from dnnffi.errors import CaptureError, ContextError
from dnnffi.rnn.arguments import Arguments
from simulators.cudnn.library import open_simulator


def looks():
    assert all(min(held) >= 0 for held in dnnffi.held_memory().values())
    for plan in dnnffi.cached_plans():
        assert plan.report()


@pytest.mark.parametrize("call", [dnnffi.held_memory, dnnffi.clear_plans, looks])
def test_plans_are_made_in_the_middle(calls, call, some):
    made = [calls.plan() for _ in range(3)]

    def new_plans():
        made.append(calls.plan())
        calls.conv()
        calls.lstm()

    calls.lstm()
    points = points_of(call, everywhere=True)
    assert points > 5
    for number in some(range(1, points + 1), 60):
        calls.lstm()
        known = dnnffi.cached_plans()
        at_point(number, new_plans, call, everywhere=True)
        if call is dnnffi.clear_plans:
            calls.lstm()
            assert not {*map(id, known)} & {*map(id, dnnffi.cached_plans())}
        del made[3:]


def test_threads_make_plans_while_others_look_and_clear(calls):
    makers, lookers = [threading.Barrier(4)] * 2
    failed, done = [], threading.Event()
    rng = np.random.default_rng(0)
    xs = [calls.asarray(rng.standard_normal((t, BATCH, 3))) for t in range(1, 9)]

    def make():
        makers.wait()
        for n in range(60):
            # The stand-in's memory captures for one thread at a time, so nothing is measured.
            off = {"tune": "off"}
            dnnffi.lstm(xs[n % 8], None, calls.weights, backend=calls.backend, options=off)
            calls.plan().close()

    def look():
        lookers.wait()
        while not done.is_set():
            looks()
            dnnffi.clear_plans()

    def work(what):
        try:
            what()
        except BaseException as error:
            failed.append(error)
            raise

    with switching_often():
        threads = [threading.Thread(target=work, args=(what,)) for what in (make, make, look, look)]
        for thread in threads:
            thread.start()
        for thread in threads[:2]:
            thread.join()
        done.set()
        for thread in threads[2:]:
            thread.join()
    assert failed == []


# A plan is for one thread at a time. What two do with one fails with an error of dnnffi's.


def on_plan(calls):
    """Calls on a plan of a network, by name."""
    zeros = calls.weights.like(calls.asarray(np.zeros(calls.weights.flat.shape)))
    return {
        "forward": calls.plan_forward,
        "backward": calls.plan_backward,
        "backward_data": calls.plan_backward_data,
        "backward_weights": calls.plan_backward_weights,
        "accumulate": lambda plan: plan.backward_weights(out=zeros, accumulate=True),
        "close": lambda plan: plan.close(),
    }


def prepared(calls, name):
    """A plan on which this call is the next one in order."""
    plan = calls.plan()
    if name not in ("forward", "close"):
        calls.plan_forward(plan)
    if name in ("backward_weights", "accumulate"):
        calls.plan_backward_data(plan)
    return plan


def is_of_misuse(error):
    return isinstance(error, ContextError | CaptureError) or (
        type(error) is ValueError and str(error).endswith("is closed")
    )


def test_a_call_on_a_plan_in_the_middle_of_another_gives_errors_of_dnnffi(calls, some):
    does = on_plan(calls)
    wrong, cases = [], []

    def attempt(name, plan):
        try:
            does[name](plan)
        except Exception as error:
            if not is_of_misuse(error):
                wrong.append((name, error))

    for first in does:
        with prepared(calls, first) as plan:
            points = points_of(lambda: attempt(first, plan))  # noqa: B023
        # A forward pass that begins inside another call of a plan is documented misuse. A GPU does
        # not notice it; the stand-in does, so it is left out there.
        others = [name for name in does if calls.backend == "reference" or name != "forward"]
        cases += [(n, first, other) for n in range(1, points + 1) for other in others]
    for number, first, other in some(cases, 1500 if calls.backend == "reference" else 300):
        with prepared(calls, first) as plan:
            at_point(number, lambda: attempt(other, plan), lambda: attempt(first, plan))  # noqa: B023
    assert wrong == []


def test_a_forward_pass_ends_a_backward_pass_that_has_begun_with_an_earlier_one(
    simulator, monkeypatch
):
    calls = Calls("cudnn", simulator.asarray)
    check = Arguments.backward_weights

    def interrupted(*arguments, **keywords):
        monkeypatch.undo()
        calls.plan_forward(plan)  # as another thread does
        return check(*arguments, **keywords)

    with calls.plan() as plan:
        calls.plan_forward(plan)
        calls.plan_backward_data(plan)
        monkeypatch.setattr(Arguments, "backward_weights", interrupted)
        with pytest.raises(ContextError, match=r"^backward weights runs once after backward data"):
            calls.plan_backward_weights(plan)
        calls.plan_backward(plan)
    vars(calls).clear()


# First calls, of a library that is new


def first_calls(simulator):
    """A network of its own length, or a convolution of its own size, for each number."""
    calls = Calls("cudnn", simulator.asarray)
    rng = np.random.default_rng(0)

    def lstm(steps):
        x = simulator.asarray(rng.standard_normal((steps, BATCH, SPEC.input_size)))
        dnnffi.lstm(x, None, calls.weights, backend="cudnn")

    def conv(size):
        x = simulator.asarray(rng.standard_normal((1, 2, size, 3)).astype("f4"))
        dnnffi.conv(x, calls.w, backend="cudnn")

    return lstm, conv


@pytest.mark.parametrize("family", [0, 1])
@pytest.mark.parametrize("other", [0, 1])
def test_a_first_call_in_the_middle_of_another_is_on_the_same_backend(
    standin_path, family, other, some
):
    for _ in range(2):  # what is computed once in a process is known the second time
        with open_simulator(standin_path) as simulator:
            points = points_of(partial(first_calls(simulator)[family], STEPS))
    for number in some(range(1, points + 1), 40):
        with open_simulator(standin_path) as simulator:
            calls = first_calls(simulator)
            at_point(number, partial(calls[other], STEPS + 1), partial(calls[family], STEPS))
            assert len(dnnffi.cached_plans()) == 2
            assert simulator.live("handle") == 1
            del calls


def test_first_calls_of_threads_are_on_the_same_backend(standin_path, some):
    for _ in some(range(100), 10):
        with open_simulator(standin_path) as simulator, switching_often():
            barrier = threading.Barrier(4)

            def work(call, number, barrier=barrier):
                barrier.wait()
                call(number)

            threads = [
                threading.Thread(target=work, args=(call, number))
                for call in first_calls(simulator)
                for number in (3, 4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(dnnffi.cached_plans()) == 4
            del threads


def test_a_first_call_with_an_allocator_in_the_middle_of_another(standin_path, monkeypatch, some):
    user_arrays.install(monkeypatch)

    def first_call(simulator, steps):
        def asarray(values):
            return device_array("x", UserArray.of(simulator.memory._allocate, values))

        options = {"allocator": partial(UserArray, simulator.memory._allocate)}
        calls = Calls("cudnn", asarray, options)
        calls.x = asarray(np.zeros((steps, BATCH, SPEC.input_size)))
        return calls.lstm

    for _ in range(2):
        with open_simulator(standin_path) as simulator:
            points = points_of(first_call(simulator, STEPS))
            forget_external(simulator)
    for number in some(range(1, points + 1), 40):
        with open_simulator(standin_path) as simulator:
            at_point(number, first_call(simulator, STEPS + 1), first_call(simulator, STEPS))
            assert len(dnnffi.cached_plans()) == 2
            forget_external(simulator)


def forget_external(simulator):
    user_arrays.forget(simulator.library)


def test_a_generator_has_one_descriptor_for_a_probability(simulator):
    launch = current_launch(simulator.library)
    generator = Generator(simulator.library, 0, seed=1)
    points = points_of(lambda: generator.descriptor(0.5, launch.owner))
    for number in range(1, points + 1):
        probability = number / (2 * points + 2)  # a new one each time
        of_handler = []

        def descriptor(probability=probability):
            return generator.descriptor(probability, launch.owner)

        found = at_point(number, lambda: of_handler.append(descriptor()), descriptor)  # noqa: B023
        assert of_handler == [found]
        assert of_handler[0] is found
    generator.close()
