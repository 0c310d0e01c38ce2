"""Dropout of cuDNN: seeds, saved states, gradients, streams and capture."""

from __future__ import annotations

import numpy as np
import pytest

import dnnffi
from dnnffi.dropout import DropoutState
from dnnffi.reference import rnn as reference
from dnnffi.spec.rnn import RNNSpec

cupy = pytest.importorskip("cupy")

T, B = 6, 32
SPEC = RNNSpec(mode="lstm", input_size=8, hidden_size=16, num_layers=3, dtype="float64")


def weights_of(spec, seed=0):
    rng = np.random.default_rng(seed)
    arrays = [cupy.asarray(rng.uniform(-0.3, 0.3, p.shape)) for p in spec.parameter_shapes()]
    return dnnffi.RNNWeights.pack(arrays, spec)


def input_of(spec, seed=1):
    return cupy.asarray(np.random.default_rng(seed).standard_normal(spec.x_shape(T, B)))


def forward(state, dropout=0.5):
    return dnnffi.lstm_forward(
        input_of(SPEC), None, weights_of(SPEC), dropout=dropout, dropout_state=state
    )


def test_same_seed_same_result_and_the_states_move_on():
    first, second = DropoutState(7), DropoutState(7)
    one, two = forward(first)[0], forward(first)[0]
    assert cupy.array_equal(forward(second)[0], one)
    assert cupy.array_equal(forward(second)[0], two)
    assert not cupy.array_equal(one, two)
    assert not cupy.array_equal(forward(DropoutState(8))[0], one)


def test_saved_states_go_on_where_they_were():
    state = DropoutState(3)
    forward(state)
    saved = state.save()
    expected = forward(state)[0]
    assert cupy.array_equal(forward(DropoutState.restore(saved))[0], expected)


def masks(seed, dropout, spec):
    """Return the factors of dropout, read through a network of identities."""
    probe = RNNSpec(
        mode="rnn_relu",
        input_size=1,
        hidden_size=spec.hidden_size,
        num_layers=2,
        dtype="float64",
    )
    arrays = [cupy.zeros(p.shape) for p in probe.parameter_shapes()]
    arrays[2][...] = 1  # the first layer gives ones
    arrays[4][...] = cupy.eye(spec.hidden_size)  # the second what it reads
    w = dnnffi.RNNWeights.pack(arrays, probe)
    return dnnffi.rnn_relu_forward(
        cupy.zeros((T, B, 1)), None, w, dropout=dropout, dropout_state=DropoutState(seed)
    )[0]


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_values_are_dropped_with_the_probability_and_the_rest_scaled(dropout):
    mask = masks(5, dropout, SPEC).get()
    kept = mask != 0
    np.testing.assert_allclose(mask[kept], 1 / (1 - dropout), rtol=1e-6)
    # Five standard deviations of a binomial.
    slack = 5 * (dropout * (1 - dropout) / mask.size) ** 0.5
    assert abs(kept.mean() - (1 - dropout)) < slack


def test_all_or_nothing_is_dropped():
    assert not masks(5, 1.0, SPEC).any()
    none = forward(DropoutState(1), dropout=0.0)[0]
    assert cupy.array_equal(none, dnnffi.lstm(input_of(SPEC), None, weights_of(SPEC))[0])


def test_results_are_the_reference_with_the_same_masks():
    spec = RNNSpec(mode="lstm", input_size=8, hidden_size=16, num_layers=2, dtype="float64")
    x, w = input_of(spec), weights_of(spec)
    mask = masks(11, 0.5, spec).get()
    y, _, ctx = dnnffi.lstm_forward(x, None, w, dropout=0.5, dropout_state=DropoutState(11))
    dy = cupy.asarray(np.random.default_rng(2).standard_normal(y.shape))
    grads = ctx.backward(dy)
    arrays = [a.get() for a in w.arrays()]
    done = reference.forward(spec, x.get(), None, None, arrays, dropout=0.5, masks=[mask])
    expected = reference.backward(done.tape, dy.get())
    np.testing.assert_allclose(y.get(), done.y, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(grads.x.get(), expected.x, rtol=1e-5, atol=1e-8)
    for found, wanted in zip(grads.weights.arrays(), expected.weights, strict=True):
        np.testing.assert_allclose(found.get(), wanted, rtol=1e-5, atol=1e-7)


def test_inference_drops_nothing_and_leaves_the_states():
    state = DropoutState(4)
    forward(state)
    saved = state.save()["states"]
    dnnffi.lstm(input_of(SPEC), None, weights_of(SPEC))
    assert state.save()["states"] == saved


def test_use_on_two_streams_is_ordered():
    expected_state = DropoutState(6)
    expected = [forward(expected_state)[0].get() for _ in range(6)]
    state = DropoutState(6)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    x, w = input_of(SPEC), weights_of(SPEC)
    cupy.cuda.Device().synchronize()
    found = []
    for step in range(6):
        with streams[step % 2]:
            found.append(dnnffi.lstm_forward(x, None, w, dropout=0.5, dropout_state=state)[0])
    cupy.cuda.Device().synchronize()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.get(), other)


def test_eager_captured_and_eager_again():
    state = DropoutState(9)
    x, w = input_of(SPEC), weights_of(SPEC)
    eager, captured = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()

    def run():
        return dnnffi.lstm_forward(x, None, w, dropout=0.5, dropout_state=state)

    # A graph goes on using the memory of its capture, so that gets a pool of its own.
    pool = cupy.cuda.MemoryPool()
    with captured, cupy.cuda.using_allocator(pool.malloc):
        run()
    with eager:
        run()
    cupy.cuda.Device().synchronize()
    with captured, cupy.cuda.using_allocator(pool.malloc):
        captured.begin_capture()
        y, _, _ = run()
        graph = captured.end_capture()
    replays = []
    for _ in range(2):
        graph.launch(captured)
        replays.append(y.get(stream=captured))
    captured.synchronize()
    with eager:
        after = run()[0].get(stream=eager)
    expected = DropoutState(9)
    results = [
        dnnffi.lstm_forward(x, None, w, dropout=0.5, dropout_state=expected)[0].get()
        for _ in range(5)
    ]
    for found, wanted in zip([*replays, after], results[2:], strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_state_stays_on_its_device():
    state = DropoutState(2)
    forward(state)
    with pytest.raises(ValueError, match="belongs to cudnn device 0"):
        state.generator("reference device 0", lambda seed: None)
