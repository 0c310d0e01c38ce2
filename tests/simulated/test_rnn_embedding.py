"""Networks with an allocator, on the stand-in: what a call takes, refuses and returns."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial

import numpy as np
import pytest
from stress import user_arrays
from stress.user_arrays import UserArray

import dnnffi
from dnnffi import RNNSpec, RNNWeights
from dnnffi.device.external import DeviceArray
from dnnffi.rnn.network import CALLS_BEFORE_TUNING

STEPS, BATCH = 5, 2
SPECS = {
    mode: RNNSpec(mode=mode, input_size=3, hidden_size=4, dtype="float64")
    for mode in ("lstm", "gru")
}


@pytest.fixture(autouse=True)
def runtime(monkeypatch):
    return user_arrays.install(monkeypatch)


class User:
    """A user's library with its own arrays: arguments in its memory, results by its allocator."""

    def __init__(self, simulator):
        self._allocate = simulator.memory._allocate
        self.made = []
        self.keywords = {"backend": "cudnn", "options": {"allocator": self}}

    def __call__(self, shape, dtype):
        self.made.append(UserArray(self._allocate, shape, dtype))
        return self.made[-1]

    def random(self, shape, seed=0):
        values = np.random.default_rng(seed).uniform(-0.5, 0.5, shape)
        return UserArray.of(self._allocate, values)

    def arguments(self, mode):
        """x, the arrays of a state, weights."""
        spec = SPECS[mode]
        states = [self.random(spec.h_shape(BATCH), 1), self.random(spec.h_shape(BATCH), 2)]
        flat = self.random((dnnffi.weight_layout(spec, "cudnn").size,), 3)
        return self.random(spec.x_shape(STEPS, BATCH)), states, RNNWeights(flat, spec)


@pytest.fixture
def user(simulator):
    made = User(simulator)
    yield made
    made.made.clear()  # pytest keeps it for longer than the stand-in
    user_arrays.forget(simulator.library)


def of_mode(mode, states):
    return tuple(states) if mode == "lstm" else states[0]


def flat(result):
    """All arrays of a result."""
    if isinstance(result, tuple | list):
        return [array for part in result for array in flat(part)]
    return [] if result is None else [result]


@pytest.mark.filterwarnings("ignore:weights given as separate arrays")
@pytest.mark.parametrize("loose", [False, True], ids=["packed", "loose"])
@pytest.mark.parametrize("mode", SPECS)
def test_results_are_what_the_allocator_made(user, mode, loose):
    x, states, weights = user.arguments(mode)
    hx = of_mode(mode, states)
    on_host = [np.array(array) for array in weights.to("torch").arrays()]
    if loose:
        weights = [UserArray.of(user._allocate, array) for array in on_host]
    forward = getattr(dnnffi, f"{mode}_forward")
    *found, ctx = forward(x, hx, weights, **user.keywords)
    dy, dhx = user.random(found[0].shape, 4), of_mode(mode, [user.random(s.shape) for s in states])
    gradients = ctx.backward(dy, dhx)
    of_weights = gradients.weights if loose else gradients.weights.flat

    *expected, ctx = forward(
        np.array(x), of_mode(mode, list(map(np.array, states))), on_host, backend="reference"
    )
    right = ctx.backward(np.array(dy), of_mode(mode, list(map(np.array, flat([dhx])))))
    all_found = flat([found, gradients.x, gradients.hx])
    for one, other in zip(all_found, flat([expected, right.x, right.hx]), strict=True):
        assert any(one is made for made in user.made)
        np.testing.assert_allclose(np.array(one), other, rtol=1e-10, atol=1e-14)
    if loose:
        for one, other in zip(of_weights, right.weights, strict=True):
            assert any(one is made for made in user.made)
            np.testing.assert_allclose(np.array(one), other, rtol=1e-10, atol=1e-14)
    else:
        packed = RNNWeights.pack(right.weights, SPECS[mode])
        np.testing.assert_allclose(np.array(of_weights), packed.flat, rtol=1e-10, atol=1e-14)


@pytest.mark.filterwarnings("ignore:weights given as separate arrays")
@pytest.mark.parametrize("loose", [False, True], ids=["packed", "loose"])
def test_of_an_empty_batch_too(simulator, user, loose):
    _, _, weights = user.arguments("lstm")
    if loose:
        arrays = [np.array(array) for array in weights.to("torch").arrays()]
        weights = [UserArray.of(user._allocate, array) for array in arrays]
    x, h = user.random((STEPS, 0, 3)), user.random((1, 0, 4))
    simulator.control.standin_reset()
    *found, ctx = dnnffi.lstm_forward(x, (h, h), weights, **user.keywords)
    gradients = ctx.backward(user.random((STEPS, 0, 4)), (h, h))
    results = flat([found, gradients.x, gradients.hx])
    assert [a.shape for a in results] == [
        (STEPS, 0, 4),
        h.shape,
        h.shape,
        x.shape,
        h.shape,
        h.shape,
    ]
    assert all(any(one is made for made in user.made) for one in results)
    if loose:
        assert all(any(one is made for made in user.made) for one in gradients.weights)
        assert [a.shape for a in gradients.weights] == [a.shape for a in weights]
        assert not any(np.array(a).any() for a in gradients.weights)
    else:
        assert gradients.weights.flat.shape == weights.flat.shape
        assert not np.array(gradients.weights.flat).any()
    assert simulator.calls("*") == 0


def test_a_state_that_is_left_out_is_zeros(user):
    x, (h_0, _), weights = user.arguments("gru")
    zeros = UserArray.of(user._allocate, np.zeros(h_0.shape))
    expected = dnnffi.gru(x, zeros, weights, **user.keywords)[0]
    found = dnnffi.gru(x, None, weights, **user.keywords)[0]
    np.testing.assert_array_equal(np.array(found), np.array(expected))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", [tuple, list])
def test_a_state_of_an_lstm_is_two_arrays(user, kind, count):
    x, (h, c), weights = user.arguments("lstm")
    wrong = kind([h, c, c][:count])
    got = f"got {kind.__name__} of {count}"
    with pytest.raises(TypeError, match=rf"^hx of an LSTM must be \(h_0, c_0\) or None; {got}$"):
        dnnffi.lstm(x, wrong, weights, **user.keywords)
    _, _, ctx = dnnffi.lstm_forward(x, (h, c), weights, **user.keywords)
    with pytest.raises(TypeError, match=rf"^dhx of an LSTM must be .* or None; {got}$"):
        ctx.backward(None, wrong)


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_state_of_a_gru_is_one_array(user, kind):
    x, states, weights = user.arguments("gru")
    message = rf"^h_0 must be one array: gru has no cell state; got a {kind.__name__} of 2$"
    with pytest.raises(TypeError, match=message):
        dnnffi.gru(x, kind(states), weights, **user.keywords)


@pytest.mark.parametrize("name", ["x", "h_0", "c_0", "weights[2]"])
def test_an_array_of_the_host_is_refused_by_its_name(user, name):
    x, states, weights = user.arguments("lstm")
    weights = [UserArray.of(user._allocate, a) for a in weights.to("torch").arrays()]
    places = {"x": x, "h_0": states[0], "c_0": states[1], "weights[2]": weights[2]}
    wrong = np.array(places[name])
    x, h, c = (wrong if at == name else places[at] for at in ("x", "h_0", "c_0"))
    weights[2] = wrong if name == "weights[2]" else weights[2]
    with pytest.raises(TypeError, match=rf"^{re.escape(name)} must be .*; .* is on the host: copy"):
        dnnffi.lstm(x, (h, c), weights, **user.keywords)


def test_arrays_that_say_where_they_are_name_the_backend(user):
    x, states, weights = user.arguments("gru")
    address = x.__cuda_array_interface__["data"][0]
    x = DeviceArray(x, "cuda", 0, address, x.shape, x.dtype)
    options = {"allocator": user}
    expected = partial(dnnffi.gru, backend="cudnn")(x, states[0], weights, options=options)[0]
    found = dnnffi.gru(x, states[0], weights, options=options)[0]
    np.testing.assert_array_equal(np.array(found), np.array(expected))


@pytest.mark.parametrize("is_known", [False, True])
def test_an_array_of_another_place_is_refused_in_a_known_call_too(user, is_known):
    x, states, weights = user.arguments("gru")
    address, options = x.__cuda_array_interface__["data"][0], {"allocator": user}
    given = {kind: DeviceArray(x, kind, 0, address, x.shape, x.dtype) for kind in ("cuda", "rocm")}
    if is_known:
        dnnffi.gru(given["cuda"], states[0], weights, options=options)
    with pytest.raises(TypeError, match=r"^x must be an array on CUDA .* is on ROCm"):
        dnnffi.gru(given["rocm"], states[0], weights, backend="cudnn", options=options)
    with pytest.raises(TypeError, match=r"^weights must be on the host"):
        dnnffi.gru(np.array(x), states[0], weights, options=options)


class Loop:
    """A training step on the same arrays, with an allocator that gives out the same memory again.

    ``count`` is how often the allocator was called.
    """

    def __init__(self, user):
        self._user = user
        self._arguments = (*user.arguments("lstm"), user.random((STEPS, BATCH, 4), 4))
        self._kept = {}
        self.count = 0

    def step(self):
        self._given = Counter()
        x, states, weights, dy = self._arguments
        keywords = {"backend": "cudnn", "options": {"allocator": self._allocate}}
        *results, ctx = dnnffi.lstm_forward(x, tuple(states), weights, **keywords)
        gradients = ctx.backward(dy)
        arrays = flat([results, gradients.x, gradients.hx, gradients.weights.flat])
        return [np.array(array) for array in arrays]

    def _allocate(self, *wanted):
        self.count += 1
        kept, number = self._kept.setdefault(wanted, []), self._given[wanted]
        self._given[wanted] += 1
        if number == len(kept):
            kept.append(self._user(*wanted))
        return kept[number]

    def drop(self):
        self._kept.clear()
        self._arguments = ()


@pytest.fixture
def loop(user):
    made = Loop(user)
    yield made
    made.drop()  # pytest keeps it for longer than the stand-in


def the_plan():
    (plan,) = dnnffi.cached_plans()
    return plan


def test_a_loop_is_measured_and_replayed(loop, simulator):
    expected = loop.step()
    for _ in range(CALLS_BEFORE_TUNING + 4):
        for one, other in zip(loop.step(), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    plan = the_plan()
    assert plan.finder.choice.replayed is not None
    assert plan.operations.graph_count == 2  # forward pass, backward pass
    calls = simulator.calls("cudnnRNNForward"), sum(graph.launches for graph in graphs_of(plan))
    loop.step()
    assert sum(graph.launches for graph in graphs_of(plan)) == calls[1] + 2
    assert simulator.calls("cudnnRNNForward") == calls[0] + 1  # made by the graph of the stand-in


def graphs_of(plan):
    return [graph for one in plan.operations._all for graph in one.graphs.values()]


def test_the_allocator_makes_results_and_no_arrays_for_measuring(loop):
    counts = []
    for _ in range(CALLS_BEFORE_TUNING + 4):
        before = loop.count
        loop.step()
        counts.append(loop.count - before)
    assert the_plan().finder.choice is not None
    # The first call needs most: later the workspace is kept by stream.
    assert max(counts) == counts[0]


def test_a_call_runs_although_there_is_no_memory_to_measure_on(loop, runtime):
    def allocate(nbytes):
        raise MemoryError("the device is full")

    runtime.allocate = allocate
    expected = loop.step()
    for _ in range(CALLS_BEFORE_TUNING + 1):
        for one, other in zip(loop.step(), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    assert the_plan().finder.choice is None


def test_memory_for_measuring_is_given_back(loop, simulator):
    for _ in range(CALLS_BEFORE_TUNING - 1):
        loop.step()
    before = simulator.control.standin_registered()
    for _ in range(4):
        loop.step()
    assert the_plan().finder.choice is not None
    # The word of the null stream.
    assert simulator.control.standin_registered() == before + 1


def test_calls_in_a_capture_of_the_users_are_measured_after_it(user, simulator):
    x, states, weights = user.arguments("gru")
    options = {"allocator": user, "stream": 0x70}

    def call():
        return dnnffi.gru(x, states[0], weights, backend="cudnn", options=options)

    simulator.memory.capture_number = 7
    for _ in range(2 * CALLS_BEFORE_TUNING):
        call()
    assert the_plan().finder.choice is None
    simulator.memory.capture_number = 0
    for _ in range(CALLS_BEFORE_TUNING):
        call()
    assert the_plan().finder.choice is not None
