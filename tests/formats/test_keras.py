"""Keras's arrays: its equations, there and back, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from equations import check, keras, run, x_of
from hypothesis import given
from hypothesis import strategies as st

import dnnffi
from dnnffi import RNNSpec, RNNWeights, testing

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
MODES = tuple(GATES)
H = 4


def arrays_of(mode, inputs=3, biased=True, seed=0, dtype="float64"):
    """Random arrays as ``get_weights()`` of a layer lists them."""
    rng = np.random.default_rng(seed)
    columns = GATES[mode] * H
    bias = (2, columns) if mode == "gru" else (columns,)
    shapes = [(inputs, columns), (H, columns), bias][: 2 + biased]
    return [rng.uniform(-0.5, 0.5, shape).astype(dtype) for shape in shapes]


def expected(mode, layers, weights):
    cells = [[keras(mode)(*one) for one in layer] for layer in layers]
    return run(cells, x_of(weights.spec), H)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_layer(mode, biased):
    arrays = arrays_of(mode, biased=biased)
    weights = RNNWeights.from_keras(arrays, mode)
    assert weights.spec == RNNSpec(
        mode=mode, input_size=3, hidden_size=H, bias=biased, dtype="float64"
    )
    check(weights, expected(mode, [[arrays]], weights))


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_layers_of_two_directions(mode, biased, pairs):
    layers = [
        [arrays_of(mode, inputs, biased, seed + d) for d in (0, 1)]
        for seed, inputs in ((0, 3), (5, 2 * H), (9, 2 * H))
    ]
    given = layers if pairs else [[*one, *other] for one, other in layers]
    weights = RNNWeights.from_keras(given, mode)
    assert (weights.spec.num_layers, weights.spec.num_directions) == (3, 2)
    check(weights, expected(mode, layers, weights))


def test_a_bidirectional_layer_as_keras_lists_it():
    pair = [arrays_of("gru"), arrays_of("gru", seed=1)]
    weights = RNNWeights.from_keras([*pair[0], *pair[1]], "gru")
    check(weights, expected("gru", [pair], weights))


def test_layers_of_one_direction():
    layers = [arrays_of("lstm"), arrays_of("lstm", H, seed=1)]
    weights = RNNWeights.from_keras(layers, "lstm")
    assert (weights.spec.num_layers, weights.spec.num_directions) == (2, 1)
    check(weights, expected("lstm", [[one] for one in layers], weights))


@given(testing.specs(dtypes=["float32", "float64"], projection=False), st.integers(0, 99))
def test_there_and_back_is_the_same_function(spec, seed):
    weights = RNNWeights.pack(testing.weights(spec, seed), spec)
    back = RNNWeights.from_keras(weights.to_keras(), spec.mode, bidirectional=spec.bidirectional)
    assert back.spec == spec
    x = x_of(spec).astype(spec.dtype)
    function = getattr(dnnffi, spec.mode)
    np.testing.assert_allclose(
        function(x, None, back)[0], function(x, None, weights)[0], rtol=1e-4, atol=1e-6
    )


@given(st.sampled_from(MODES), st.booleans(), st.sampled_from(["cudnn", "miopen", "torch"]))
def test_back_and_there_are_kerass_arrays(mode, biased, backend):
    arrays = arrays_of(mode, biased=biased)
    found = RNNWeights.from_keras(arrays, mode, backend=backend).to_keras()
    for one, other in zip(found, arrays, strict=True):
        np.testing.assert_array_equal(one, other)


def test_reset_after_false_is_refused_for_a_gru_alone():
    with pytest.raises(
        ValueError, match=r"^reset_after must be True: a GRU with reset_after=False"
    ):
        RNNWeights.from_keras(arrays_of("gru"), "gru", reset_after=False)
    assert RNNWeights.from_keras(arrays_of("lstm"), "lstm", reset_after=False).spec.mode == "lstm"


def test_the_bias_of_reset_after_false_is_recognised():
    kernel, recurrent, bias = arrays_of("gru")
    message = r"^weights: bias must have shape \(2, 12\); got \(12,\): a GRU with reset_after=False"
    with pytest.raises(ValueError, match=message):
        RNNWeights.from_keras([kernel, recurrent, bias[0]], "gru")


def test_a_projection_has_no_place_in_keras():
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=4, proj_size=2)
    weights = RNNWeights.pack(testing.weights(spec, 0), spec)
    with pytest.raises(ValueError, match=r"^Keras has no LSTM with a projection; proj_size is 2$"):
        weights.to_keras()


def changed(index, change, mode="lstm"):
    arrays = arrays_of(mode)
    arrays[index] = change(arrays[index])
    return arrays


@pytest.mark.parametrize(
    ("weights", "mode", "message"),
    [
        (
            changed(0, np.transpose),
            "lstm",
            r"weights: kernel .*\(3, 16\); got .*; it is transposed",
        ),
        (changed(1, np.transpose), "lstm", r"weights: recurrent_kernel .*; it is transposed$"),
        (changed(0, lambda a: a[:, :8]), "lstm", r"weights: kernel must have shape \(3, 16\); got"),
        (changed(1, lambda a: a[0]), "lstm", r"weights: recurrent_kernel must have shape \[H, G"),
        (changed(2, lambda a: a[:5]), "lstm", r"weights: bias must have shape \(16,\); got \(5,\)"),
        (arrays_of("gru"), "lstm", r"weights: recurrent_kernel .*; it is that of mode 'gru'$"),
        (arrays_of("lstm"), "gru", r"weights: recurrent_kernel .*; it is that of mode 'lstm'$"),
        (arrays_of("lstm")[:1], "lstm", r"weights must have kernel, .*; got 1 arrays$"),
        ([arrays_of("lstm"), arrays_of("lstm") * 3], "lstm", r"weights\[1\] must have .*; got 9"),
        ([arrays_of("lstm"), arrays_of("lstm", 9)], "lstm", r"layer 1, direction 0: w_ih must ha"),
        (
            [arrays_of("lstm") * 2, arrays_of("lstm", 8)],
            "lstm",
            "every layer must have one direction, or each two; got 2, 1$",
        ),
        (
            [arrays_of("lstm"), arrays_of("lstm", H, biased=False)],
            "lstm",
            "layer 1, direction 0: either all have biases or none$",
        ),
        (arrays_of("lstm"), "rnn", "mode must be one of"),
        (arrays_of("lstm"), None, "the arrays do not show the mode; pass mode="),
    ],
)
def test_what_is_refused(weights, mode, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        RNNWeights.from_keras(weights, mode)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            np.zeros((3, 16)),
            "weights must be a layer, the list of a layer's arrays.*; got ndarray$",
        ),
        ([], "weights must be a layer, .*; got an empty list$"),
        ({"kernel": 1}, "weights must be a layer, .*; got dict$"),
        ("m.h5", r"weights .*; got a path: RNNWeights\.load\(path\) reads files$"),
        (Path("m.h5"), r"weights .*; got a path: RNNWeights\.load\(path\) reads files$"),
        ([arrays_of("lstm"), 3], r"weights\[1\] must be a list of arrays; got int$"),
        ([3, 4], "weights: kernel must be a NumPy or CuPy array"),
        (changed(2, lambda a: a.astype("float32")), "layer 0, direction 0: b_ih must have the dty"),
    ],
)
def test_what_is_no_list_of_arrays(weights, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        RNNWeights.from_keras(weights, "lstm")


def test_reset_after_is_a_flag():
    with pytest.raises(TypeError, match=r"^reset_after must be True or False; got None$"):
        RNNWeights.from_keras(arrays_of("gru"), "gru", reset_after=None)


def cells_in_a_row(mode, count=2, inputs=H, biased=True):
    """The arrays that get_weights() of RNN([cell, cell]) lists, cell by cell."""
    return [arrays_of(mode, inputs if at == 0 else H, biased, seed=at) for at in range(count)]


def flat(cells):
    return [array for cell in cells for array in cell]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_arrays_of_two_directions_or_two_cells_are_refused(mode, biased):
    arrays = flat(cells_in_a_row(mode, biased=biased))
    message = (
        r"^weights: these arrays fit different networks, 1 layer\(s\) of 2 direction\(s\) .* or "
        r"2 layer\(s\) of 1 direction\(s\) .*\. Pass bidirectional=True for a Bidirectional layer"
    )
    for weights in (arrays, [arrays]):
        with pytest.raises(ValueError, match=message):
            RNNWeights.from_keras(weights, mode)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_the_caller_says_whether_they_are_two_directions_or_two_cells(mode, biased):
    cells = cells_in_a_row(mode, biased=biased)
    for bidirectional, layers in ((True, [cells]), (False, [[cell] for cell in cells])):
        weights = RNNWeights.from_keras(flat(cells), mode, bidirectional=bidirectional)
        assert weights.spec.bidirectional is bidirectional
        check(weights, expected(mode, layers, weights))


def test_the_results_of_two_cells_are_keras():
    # RNN([LSTMCell(1), LSTMCell(1)], return_sequences=True) of Keras 3.15.1: all weights 0.5, x 1.
    arrays = [np.full((1, 4), 0.5), np.full((1, 4), 0.5), np.zeros(4)] * 2
    y, _ = dnnffi.lstm(
        np.ones((2, 1, 1)), None, RNNWeights.from_keras(arrays, "lstm", bidirectional=False)
    )
    np.testing.assert_allclose(y.ravel(), [0.02364587, 0.06136427], rtol=0, atol=1e-7)


def test_shapes_that_fit_one_network_need_no_word():
    cells = cells_in_a_row("lstm", inputs=3)
    weights = RNNWeights.from_keras(flat(cells), "lstm")
    assert (weights.spec.num_layers, weights.spec.num_directions) == (2, 1)
    check(weights, expected("lstm", [[cell] for cell in cells], weights))
    pair = [arrays_of("lstm", 3), arrays_of("lstm", 3, seed=1)]
    assert RNNWeights.from_keras(flat(pair), "lstm").spec.bidirectional


def test_the_second_of_two_bidirectional_layers_tells_what_the_first_is():
    layers = [[arrays_of("gru", size, seed=d) for d in (0, 1)] for size in (H, 2 * H)]
    weights = RNNWeights.from_keras([flat(one) for one in layers], "gru")
    assert (weights.spec.num_layers, weights.spec.num_directions) == (2, 2)
    check(weights, expected("gru", layers, weights))


def test_three_cells_without_biases_are_no_two_cells_with_biases():
    cells = cells_in_a_row("lstm", 3, biased=False)
    weights = RNNWeights.from_keras(flat(cells), "lstm")
    assert (weights.spec.num_layers, weights.spec.bias) == (3, False)
    check(weights, expected("lstm", [[cell] for cell in cells], weights))


def test_a_gru_of_two_units_has_kernels_that_look_like_biases():
    arrays = [np.full((2, 6), value / 10) for value in range(6)]
    for bidirectional in (None, False):
        with pytest.raises(ValueError, match=r"^weights: these arrays fit different networks, .*"):
            RNNWeights.from_keras(arrays, "gru", bidirectional=bidirectional)
    pairs = RNNWeights.from_keras([arrays[:2], arrays[2:4], arrays[4:]], "gru")
    assert (pairs.spec.num_layers, pairs.spec.bias) == (3, False)
    triples = RNNWeights.from_keras([arrays[:3], arrays[3:]], "gru")
    assert (triples.spec.num_layers, triples.spec.bias) == (2, True)


@pytest.mark.parametrize(
    ("weights", "bidirectional", "message"),
    [
        (arrays_of("lstm"), True, "bidirectional is True; weights are those of one direction$"),
        (
            [[arrays_of("lstm"), arrays_of("lstm")]],
            False,
            "bidirectional is False; weights are those of two directions$",
        ),
        (flat([arrays_of("lstm")] * 2), False, r"layer 1, direction 0: w_ih must have shape"),
        (flat([arrays_of("lstm")] * 3), False, "weights: these 9 arrays look like model.get_w"),
    ],
)
def test_directions_that_the_arrays_do_not_have_are_refused(weights, bidirectional, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        RNNWeights.from_keras(weights, "lstm", bidirectional=bidirectional)


def test_bidirectional_is_a_flag():
    with pytest.raises(TypeError, match=r"^bidirectional must be True or False; got 1$"):
        RNNWeights.from_keras(arrays_of("lstm"), "lstm", bidirectional=1)


def cudnn_arrays_of(mode, inputs=3, hidden=5):
    """Arrays of CuDNNLSTM or CuDNNGRU, and the same weights as its other layers have them.

    As tf_keras converts them, written down without its code.
    """
    rng = np.random.default_rng(0)
    gates = {"lstm": 4, "gru": 3}[mode]
    matrices = (
        rng.uniform(-1, 1, (gates, hidden, inputs)),
        rng.uniform(-1, 1, (gates, hidden, hidden)),
    )
    biases = rng.uniform(-1, 1, (2, gates * hidden))
    # The memory of a gate's block is the matrix that cuDNN reads, row by row.
    cudnn = [
        np.hstack([one.reshape(inputs, hidden) for one in matrices[0]]),
        np.hstack(list(matrices[1])),
        biases.ravel(),
    ]
    usual = [np.hstack([one.T for one in some]) for some in matrices]
    return cudnn, [*usual, biases if mode == "gru" else biases.sum(axis=0)]


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_arrays_of_cudnn_layers_are_converted(mode):
    cudnn, usual = cudnn_arrays_of(mode)
    found, expected = RNNWeights.from_keras(cudnn, mode), RNNWeights.from_keras(usual, mode)
    x = np.random.default_rng(1).standard_normal((4, 2, 3))
    call = getattr(dnnffi, mode)
    np.testing.assert_allclose(call(x, None, found)[0], call(x, None, expected)[0], atol=1e-14)
    np.testing.assert_array_equal(
        found.to_torch()["weight_hh_l0"], expected.to_torch()["weight_hh_l0"]
    )


def test_both_biases_of_a_cudnn_layer_are_kept():
    cudnn, _ = cudnn_arrays_of("lstm")
    state = RNNWeights.from_keras(cudnn, "lstm").to_torch()
    found = np.concatenate([state["bias_ih_l0"], state["bias_hh_l0"]])
    np.testing.assert_array_equal(found, cudnn[2])


def test_a_bidirectional_cudnn_layer_is_one_of_two_directions():
    cudnn, _ = cudnn_arrays_of("gru")
    assert RNNWeights.from_keras([*cudnn, *cudnn], "gru").spec.bidirectional


def test_a_simple_rnn_has_no_bias_of_two_rows():
    arrays = [np.zeros((3, 5)), np.zeros((5, 5)), np.zeros(10)]
    with pytest.raises(ValueError, match=r"^weights: bias must have shape \(5,\); got \(10,\)$"):
        RNNWeights.from_keras(arrays, "rnn_tanh")


@pytest.mark.parametrize(
    ("extra", "layers"),
    [
        ([np.zeros((9, 3))], r"weights\[1:4\]"),
        ([np.zeros((9, 3)), np.zeros((7, 3)), np.zeros(3)], r"weights\[3:6\]"),
    ],
)
def test_the_arrays_of_a_whole_model_are_recognised(extra, layers):
    weights = [*extra, *arrays_of("lstm"), np.zeros((5, 2)), np.zeros(2)]
    message = (
        rf"^weights: these {len(weights)} arrays look like model.get_weights\(\), .*, {layers}"
    )
    with pytest.raises(ValueError, match=message):
        RNNWeights.from_keras(weights, "lstm")
