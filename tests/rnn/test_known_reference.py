"""Calls on NumPy arrays of networks and convolutions that earlier calls have checked."""

from __future__ import annotations

import numpy as np
import pytest

import dnnffi
from dnnffi import RNNSpec, RNNWeights
from dnnffi.convolution import functions as conv_functions
from dnnffi.reference import rnn as reference
from dnnffi.rnn import call_path

STEPS, BATCH = 4, 3
SPEC = RNNSpec(mode="lstm", input_size=5, hidden_size=6, num_layers=2, bidirectional=True)
MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
DTYPES = ("float16", "float32", "float64")


def random(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def weights_of(spec=SPEC, backend="cudnn"):
    return RNNWeights.random(spec, np.random.default_rng(9), backend=backend)


def state_of(spec, batch=BATCH):
    h_0 = random(spec.h_shape(batch), spec.dtype, 1)
    return (h_0, random(spec.c_shape(batch), spec.dtype, 2)) if spec.has_cell else h_0


def flattened(results):
    y, state = results
    return [y, *(state if isinstance(state, tuple) else (state,))]


def forget(monkeypatch):
    """Refuse the checks of a network that is not known."""
    monkeypatch.setattr(call_path, "weights_of", None)


def gradients(context, y):
    found = context.backward(dy=y)
    hx = found.hx if isinstance(found.hx, tuple) else (found.hx,)
    return [found.x, *hx, found.weights.flat]


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_a_known_call_gives_what_the_first_gave(mode, dtype, monkeypatch):
    spec = RNNSpec(mode=mode, input_size=5, hidden_size=6, num_layers=2, dtype=dtype)
    weights, x, hx = weights_of(spec), random(spec.x_shape(STEPS, BATCH), dtype), state_of(spec)
    infer, train = getattr(dnnffi, mode), getattr(dnnffi, f"{mode}_forward")
    expected = flattened(infer(x, hx, weights))
    y, _, context = train(x, hx, weights)
    expected_gradients = gradients(context, y)
    forget(monkeypatch)
    found = flattened(infer(x, hx, weights))
    assert_equal(found, expected)
    assert {one.dtype.name for one in found} == {dtype}
    y, _, context = train(x, hx, weights)
    assert_equal(gradients(context, y), expected_gradients)


@pytest.mark.parametrize("with_state", [True, False])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("spec", [{}, {"bias": False}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (4, 3), (13, 40), (2, 300)])
@pytest.mark.parametrize("mode", MODES)
def test_inference_gives_what_training_gives(mode, steps, batch, spec, batch_first, with_state):
    # 13 * 40 and 2 * 300 rows are multiplied in several products.
    spec = RNNSpec(mode=mode, input_size=5, hidden_size=6, **spec)
    weights, x = weights_of(spec), random(spec.x_shape(steps, batch))
    if batch_first:
        x = np.ascontiguousarray(x.swapaxes(0, 1))
    hx = state_of(spec, batch) if with_state else None
    expected = getattr(dnnffi, f"{mode}_forward")(x, hx, weights, batch_first=batch_first)[:2]
    for _ in range(2):
        found = getattr(dnnffi, mode)(x, hx, weights, batch_first=batch_first)
        assert_equal(flattened(found), flattened(expected))
        assert all(one.flags.c_contiguous for one in flattened(found))


@pytest.mark.parametrize(
    ("shape", "keywords"),
    [
        ((BATCH, STEPS, 5), {"batch_first": True}),
        ((STEPS, BATCH, 5), {"lengths": [1, 4, 2]}),
        ((7, 5), {"batch_sizes": [3, 2, 1, 1]}),
    ],
)
def test_each_layout_is_known(shape, keywords, monkeypatch):
    weights, x = weights_of(), random(shape)
    expected = dnnffi.lstm(x, None, weights, **keywords)
    forget(monkeypatch)
    y, state = dnnffi.lstm(x, None, weights, **keywords)
    np.testing.assert_array_equal(y, expected[0])
    assert_equal(state, expected[1])


def test_what_is_written_to_the_weights_is_read_by_known_calls():
    weights, x = weights_of(), random((STEPS, BATCH, 5))
    dnnffi.lstm(x, None, weights)
    weights.flat *= 2
    found = dnnffi.lstm(x, None, weights)[0]
    np.testing.assert_array_equal(
        found, dnnffi.lstm(x, None, weights.arrays(), num_layers=2, bidirectional=True)[0]
    )


@pytest.mark.parametrize("mode", MODES)
def test_results_of_a_known_call_share_no_memory_with_others(mode):
    spec = RNNSpec(mode=mode, input_size=5, hidden_size=6)
    weights, x, hx = weights_of(spec), random((1, BATCH, 5)), state_of(spec)
    states = hx if isinstance(hx, tuple) else (hx,)
    function, arrays = getattr(dnnffi, mode), []
    function(x, hx, weights)
    for _ in range(2):
        arrays += flattened(function(x, hx, weights))
    for number, one in enumerate(arrays):
        assert not any(np.shares_memory(one, other) for other in (x, *states, *arrays[:number]))


def test_a_known_network_takes_new_sizes(monkeypatch):
    weights = weights_of()
    x = random((STEPS + 2, BATCH + 1, 5))
    expected = dnnffi.lstm(x, None, weights)[0]
    weights = weights_of()
    dnnffi.lstm(random((STEPS, BATCH, 5)), None, weights)
    dnnffi.clear_plans()
    dnnffi.lstm(random((STEPS, BATCH, 5)), None, weights)
    forget(monkeypatch)
    np.testing.assert_array_equal(dnnffi.lstm(x, None, weights)[0], expected)


def unaligned(array):
    memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
    found = memory.view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


@pytest.mark.parametrize(
    "made",
    [np.asfortranarray, unaligned, lambda a: a[::-1][::-1].byteswap().view(a.dtype.newbyteorder())],
)
@pytest.mark.parametrize("mode", MODES)
def test_arrays_that_a_known_network_does_not_take_are_converted(mode, made):
    spec = RNNSpec(mode=mode, input_size=5, hidden_size=6, num_layers=2, bidirectional=True)
    weights, x, hx = weights_of(spec), random((STEPS, BATCH, 5)), state_of(spec)
    function = getattr(dnnffi, mode)
    expected = flattened(function(x, hx, weights))
    changed = tuple(map(made, hx)) if spec.has_cell else made(hx)
    for states in (hx, changed):
        assert_equal(flattened(function(made(x), states, weights)), expected)
    assert_equal(flattened(function(x, changed, weights)), expected)


@pytest.mark.parametrize(
    ("x", "keywords", "error", "match"),
    [
        (random((STEPS, BATCH, 4)), {}, ValueError, "^x must have 5 as its last dimension"),
        (random((BATCH, 5)), {}, ValueError, "^x must have 3 dimensions"),
        (random((STEPS, BATCH, 5), "float64"), {}, TypeError, "^x must have the dtype"),
        (random((STEPS, BATCH, 5)), {"num_layers": True}, TypeError, "^num_layers must be"),
        (random((STEPS, BATCH, 5)), {"batch_first": 0}, TypeError, "^batch_first must be"),
        (random((STEPS, BATCH, 5)), {"lengths": [9, 1, 1]}, ValueError, "^lengths"),
        (random((STEPS, BATCH + 1, 5)), {"hx": state_of(SPEC)}, ValueError, "^h_0 must have shape"),
    ],
)
def test_wrong_arguments_of_a_known_network_are_refused(x, keywords, error, match):
    weights = weights_of()
    dnnffi.lstm(random((STEPS, BATCH, 5)), None, weights)
    keywords = dict(keywords)
    hx = keywords.pop("hx", None)
    for _ in range(2):
        with pytest.raises(error, match=match):
            dnnffi.lstm(x, hx, weights, **keywords)


def test_an_empty_batch_is_no_known_call():
    weights = weights_of()
    dnnffi.lstm(random((STEPS, BATCH, 5)), None, weights)
    for _ in range(3):
        y, (h_n, _) = dnnffi.lstm(np.ones((STEPS, 0, 5), np.float32), None, weights)
        assert y.shape == (STEPS, 0, 12)
        assert h_n.shape == (4, 0, 6)


def test_weights_that_are_copied_in_each_call_are_not_known():
    spec = RNNSpec(mode="lstm", input_size=5, hidden_size=6)
    weights = weights_of(spec, "miopen")
    x = random((STEPS, BATCH, 5))
    dnnffi.lstm(x, None, weights)
    assert not weights._networks
    weights.flat *= 2
    expected = dnnffi.lstm(x, None, weights.to("cudnn"))[0]
    np.testing.assert_array_equal(dnnffi.lstm(x, None, weights)[0], expected)


def test_a_call_with_an_allocator_is_not_known():
    weights, x = weights_of(), random((STEPS, BATCH, 5))
    options = {"allocator": np.empty}
    for _ in range(2):
        dnnffi.lstm(x, None, weights, options=options)
    assert not weights._networks


def test_nothing_is_known_after_plans_are_forgotten(monkeypatch):
    weights, x = weights_of(), random((STEPS, BATCH, 5))
    dnnffi.lstm(x, None, weights)
    dnnffi.clear_plans()
    forget(monkeypatch)
    with pytest.raises(TypeError):
        dnnffi.lstm(x, None, weights)


def test_known_calls_draw_dropout_one_after_the_other(monkeypatch):
    x = random((STEPS, BATCH, 5))

    def run(weights, state):
        found = dnnffi.lstm_forward(x, None, weights, dropout=0.5, dropout_state=state)
        return found[0]

    state = dnnffi.DropoutState(3)
    expected = [run(weights_of(), state) for _ in range(3)]
    state, weights = dnnffi.DropoutState(3), weights_of()
    found = [run(weights, state)]
    forget(monkeypatch)
    found += [run(weights, state) for _ in range(2)]
    assert_equal(found, expected)
    assert not np.array_equal(found[1], found[2])


X, W, BIAS = random((2, 4, 9, 8)), random((6, 2, 3, 2), seed=1), random((6,), seed=2)
GEOMETRY = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}


def test_a_known_convolution_gives_what_the_first_gave(monkeypatch):
    y = dnnffi.conv(X, W, BIAS, **GEOMETRY)
    calls = (
        lambda: dnnffi.conv(X, W, BIAS, **GEOMETRY),
        lambda: dnnffi.conv_backward_data(y, W, X.shape, **GEOMETRY),
        lambda: dnnffi.conv_backward_weights(y, X, W.shape, **GEOMETRY),
    )
    expected = [call() for call in calls]
    monkeypatch.setattr(conv_functions, "_checked", None)
    assert_equal([call() for call in calls], expected)


@pytest.mark.parametrize(
    ("arrays", "keywords", "error", "match"),
    [
        ((X, W), {"groups": True}, TypeError, "^groups must be an integer"),
        ((X, W), {"stride": 1.0}, TypeError, "^stride must be"),
        ((X, W.astype("float64")), {}, TypeError, "^w must have the dtype of x"),
        ((X, W[:, :1]), {}, ValueError, "^w|channels|must"),
        ((X, W.tolist()), {}, TypeError, "^w must be a NumPy"),
    ],
)
def test_wrong_arguments_of_a_known_convolution_are_refused(arrays, keywords, error, match):
    keywords = {"stride": 1, "groups": 2} | keywords
    if keywords["groups"] is True:
        dnnffi.conv(X, random((6, 4, 3, 2)), groups=1)
        arrays = X, random((6, 4, 3, 2))
    dnnffi.conv(X, W, stride=1, groups=2)
    for _ in range(2):
        with pytest.raises(error, match=match):
            dnnffi.conv(*arrays, **keywords)


def test_a_convolution_is_known_by_the_strides_of_its_arrays():
    last = np.moveaxis(np.ascontiguousarray(np.moveaxis(X, 1, -1)), -1, 1)
    for _ in range(2):
        first, second = (dnnffi.conv(array, W, groups=2) for array in (X, last))
        np.testing.assert_array_equal(first, second)
        assert first.flags.c_contiguous
        assert np.moveaxis(second, 1, -1).flags.c_contiguous


def test_a_known_convolution_is_compared_where_that_is_asked(monkeypatch):
    checked = []
    monkeypatch.setattr(conv_functions, "check_conv", lambda *args: checked.append(args))
    for _ in range(2):
        dnnffi.conv(X, W, groups=2, options={"validate": True})
    assert len(checked) == 2


@pytest.mark.parametrize("sizes", [{"lengths": [3, 1]}, {"batch_sizes": [2, 1, 1]}])
def test_what_is_kept_for_rows_of_unequal_length_has_no_arrays(sizes):
    shape = (3, 2, 3) if "lengths" in sizes else (4, 3)
    network = reference.prepare(SPEC, np, shape, np.dtype("float32"), **sizes)
    assert network.layout is None
    assert not any(isinstance(value, np.ndarray) for value in network.layout_arguments)
