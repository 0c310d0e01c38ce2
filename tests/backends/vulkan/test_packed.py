"""Tests of a network that is packed once: commands of a call, kept buffers, and results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

import dnnffi
from dnnffi import testing
from dnnffi.dropout import DropoutState

pytestmark = pytest.mark.usefixtures("device")


def inputs(spec, steps=5, batch=3):
    problem = dnnffi.RNNProblem.dense(spec, steps=steps, batch=batch)
    given = testing.inputs(problem, 1)
    return given.x, given.hx


def same(one, other):
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def flat(results):
    y, state = results
    return [y, *(state if isinstance(state, tuple) else (state,))]


def test_what_is_unpacked_is_bit_by_bit_what_was_packed(spec):
    weights = testing.weights(spec, 0)
    weights[0][0, 0], weights[1][0, 0] = np.nan, -0.0
    with dnnffi.pack_rnn(weights, spec) as context:
        found = context.unpack()
    assert len(found) == len(weights)
    assert all(same(one, other) for one, other in zip(found, weights, strict=True))


@pytest.mark.parametrize("layout", ["cudnn", "miopen", "torch"])
def test_weights_are_packed_from_every_layout(layout):
    spec = dnnffi.RNNSpec(mode="gru", input_size=4, hidden_size=3, num_layers=2)
    weights = testing.weights(spec, 0)
    packed = dnnffi.RNNWeights.pack(weights, spec, backend=layout)
    with dnnffi.pack_rnn(packed) as context:
        assert all(same(a, b) for a, b in zip(context.unpack(), weights, strict=True))


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_saved_context_is_loaded_as_it_was(spec, tmp_path, suffix):
    x, hx = inputs(spec)
    path = tmp_path / f"network.{suffix}"
    with dnnffi.pack_rnn(testing.weights(spec, 0), spec) as context:
        context.save(path)
        before = context.run(x, hx)
    with dnnffi.load_rnn(path) as loaded:
        assert loaded.spec == spec
        assert all(map(same, flat(loaded.run(x, hx)), flat(before)))


def test_the_saved_file_is_that_of_the_weights(gru, tmp_path):
    gru.save(tmp_path / "network.npz")
    found = dnnffi.RNNWeights.load(tmp_path / "network.npz")
    assert found.spec == gru.spec
    assert all(map(same, found.arrays(), gru.unpack()))


@pytest.mark.parametrize("damage", [lambda data: data[:-40], lambda data: b"no" + data[2:]])
def test_a_damaged_file_is_named(gru, tmp_path, damage):
    path = tmp_path / "network.npz"
    gru.save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"network\.npz is not a readable npz file"):
        dnnffi.load_rnn(path)


@pytest.mark.parametrize("algorithm", ["stepwise", "persistent"])
def test_a_call_is_one_submission_and_uploads_no_weights(gru, x, submissions, writes, algorithm):
    options = {"algorithm": algorithm}
    gru.run(x, options=options)
    submissions.clear()
    writes.clear()
    gru.run(x, options=options)
    assert len(submissions) == 1
    assert len(submissions[0]) == 1
    assert not writes  # x goes through memory that is mapped


def test_all_layers_and_directions_are_one_submission(spec, submissions):
    x, hx = inputs(spec)
    with dnnffi.pack_rnn(testing.weights(spec, 0), spec) as context:
        submissions.clear()
        context.run(x, hx, lengths=[5, 2, 3])
    assert len(submissions) == 1


def test_the_functions_upload_the_weights_once(device, x, writes):
    spec = dnnffi.RNNSpec(mode="gru", input_size=5, hidden_size=7)
    weights = dnnffi.RNNWeights.pack(testing.weights(spec, 0), spec)
    dnnffi.gru(x, None, weights, backend="vulkan")
    writes.clear()
    y, _ = dnnffi.gru(x, None, weights, backend="vulkan")
    assert not writes
    right, _ = dnnffi.gru(x, None, weights, backend="reference")
    np.testing.assert_allclose(y, right, atol=1e-6)


def test_weights_that_were_written_to_are_uploaded_again(device, x):
    spec = dnnffi.RNNSpec(mode="gru", input_size=5, hidden_size=7)
    weights = dnnffi.RNNWeights.pack(testing.weights(spec, 0), spec)
    dnnffi.gru(x, None, weights, backend="vulkan")
    weights.flat *= 2
    y, _ = dnnffi.gru(x, None, weights, backend="vulkan")
    right, _ = dnnffi.gru(x, None, weights, backend="reference")
    np.testing.assert_allclose(y, right, atol=1e-6)


def test_weights_in_the_other_order_of_bytes_are_the_same_weights(device, x):
    spec = dnnffi.RNNSpec(mode="gru", input_size=5, hidden_size=7)
    weights = dnnffi.RNNWeights.pack(testing.weights(spec, 0), spec)
    swapped = dnnffi.RNNWeights(weights.flat.astype(">f4"), spec, backend=weights.backend)
    expected, _ = dnnffi.gru(x, None, weights, backend="vulkan")
    y, _ = dnnffi.gru(x, None, swapped, backend="vulkan")
    np.testing.assert_array_equal(y, expected)


def test_a_stream_of_steps_is_the_whole_sequence(causal_spec):
    spec = causal_spec
    x, hx = inputs(spec)
    with dnnffi.pack_rnn(testing.weights(spec, 0), spec) as context:
        whole = flat(context.run(x, hx))
        first = context.run(x[:1], hx, keep_state=True)
        steps = [first, *(context.run(x[t : t + 1], keep_state=True) for t in range(1, 5))]
    np.testing.assert_allclose(np.concatenate([y for y, _ in steps]), whole[0], atol=2e-3)
    for found, right in zip(flat(steps[-1])[1:], whole[1:], strict=True):
        np.testing.assert_allclose(found, right, atol=2e-3)


def test_parts_of_different_length_continue_each_other(gru, x):
    whole, _ = gru.run(x)
    parts = [gru.run(part, keep_state=True)[0] for part in (x[:2], x[2:3], x[3:])]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-6)


def test_a_call_that_keeps_no_state_leaves_the_kept_one(gru, x):
    gru.run(x[:2], keep_state=True)
    gru.run(x * 3)
    whole, _ = gru.run(x)
    rest, _ = gru.run(x[2:], keep_state=True)
    np.testing.assert_allclose(rest, whole[2:], atol=1e-6)


def test_after_reset_the_states_are_zero(gru, x):
    first, _ = gru.run(x, keep_state=True)
    gru.reset()
    again, _ = gru.run(x, keep_state=True)
    assert same(first, again)


def test_given_states_begin_a_new_stream(gru, x):
    h_0 = np.full((1, 3, 7), 0.5, "float32")
    right, _ = gru.run(x, h_0)
    gru.run(x, keep_state=True)
    found, _ = gru.run(x, h_0, keep_state=True)
    assert same(found, right)


def test_the_kept_state_is_of_as_many_rows(gru, x):
    gru.run(x, keep_state=True)
    with pytest.raises(ValueError, match=r"x has 2 rows, and the kept state 3"):
        gru.run(x[:, :2], keep_state=True)
    gru.run(x[:, :2], np.zeros((1, 2, 7), "float32"), keep_state=True)


def test_a_batch_without_rows_has_empty_results_and_leaves_the_kept_state(gru, x):
    whole, _ = gru.run(x)
    gru.run(x[:2], keep_state=True)
    y, h_n = gru.run(x[:, :0], keep_state=True)
    assert (y.shape, h_n.shape) == ((4, 0, 7), (1, 0, 7))
    rest, _ = gru.run(x[2:], keep_state=True)
    np.testing.assert_allclose(rest, whole[2:], atol=1e-6)


def test_batch_first_and_packed_are_the_same_sequences(gru, x):
    y, h_n = gru.run(x, lengths=[4, 3, 1])
    turned, h_turned = gru.run(
        np.ascontiguousarray(x.swapaxes(0, 1)), batch_first=True, lengths=[4, 3, 1]
    )
    assert same(turned, np.ascontiguousarray(y.swapaxes(0, 1)))
    assert same(h_turned, h_n)
    packed = np.concatenate([x[t, :rows] for t, rows in enumerate((3, 2, 2, 1))])
    found, h_packed = gru.run(packed, batch_sizes=[3, 2, 2, 1])
    assert same(found, np.concatenate([y[t, :rows] for t, rows in enumerate((3, 2, 2, 1))]))
    assert same(h_packed, h_n)


def test_a_call_like_the_last_one_is_checked_where_it_differs(gru, x, submissions):
    gru.run(x)
    submissions.clear()
    with pytest.raises(TypeError, match=r"^x must have the dtype of the weights"):
        gru.run(x.astype("float64"))
    with pytest.raises(ValueError, match=r"^x must have 5 as its last dimension"):
        gru.run(x[..., :4])
    with pytest.raises(ValueError, match=r"^x must have 3 dimensions"):
        gru.run(x[0])
    with pytest.raises(ValueError, match=r"^lengths\[0\] must be from 0 to 4"):
        gru.run(x, lengths=[5, 1, 1])
    with pytest.raises(dnnffi.UnsupportedError, match="one of backend 'cudnn'"):
        gru.run(x, options={"algorithm": "own"})
    with pytest.raises(ValueError, match=r"^h_0 must have shape"):
        gru.run(x, np.zeros((1, 3, 6), "f4"))
    assert not submissions
    y, h_n = gru.run(x, batch_first=True)
    assert (y.shape, h_n.shape) == ((4, 3, 7), (1, 4, 7))


def test_lengths_of_one_call_are_not_those_of_the_next(gru, x):
    right, _ = gru.run(x)
    short, _ = gru.run(x, lengths=[4, 1, 1])
    assert not short[1:, 1:].any()
    assert same(gru.run(x)[0], right)


def test_arrays_with_strides_and_in_another_order_of_bytes_are_the_same_numbers(gru, x):
    h_0 = np.random.default_rng(1).standard_normal((1, 3, 7)).astype("float32")
    right = flat(gru.run(x, h_0))
    wide, wide_h = np.zeros((8, 3, 10), "f4"), np.zeros((1, 6, 7), "f4")
    wide[6::-2, :, ::2], wide_h[:, ::2] = x, h_0
    swapped = x.astype(x.dtype.newbyteorder()), h_0.astype(h_0.dtype.newbyteorder())
    for given in ((wide[6::-2, :, ::2], wide_h[:, ::2]), swapped):
        assert all(map(same, flat(gru.run(*given)), right))


def test_what_is_past_a_rows_length_is_not_read(gru, x):
    right, _ = gru.run(x, lengths=[4, 2, 1])
    x = x.copy()
    x[2:, 1] = x[1:, 2] = np.nan
    found, _ = gru.run(x, lengths=[4, 2, 1])
    assert same(found, right)


@pytest.mark.parametrize("algorithm", ["stepwise", "persistent"])
def test_sequences_beyond_what_is_bound_are_split(device, monkeypatch, algorithm, submissions):
    spec = dnnffi.RNNSpec(
        mode="gru", input_size=16, hidden_size=64, num_layers=2, bidirectional=True
    )
    given = testing.inputs(dnnffi.RNNProblem.dense(spec, steps=70, batch=3), 0)
    lengths = [70, 41, 16]
    options = {"algorithm": algorithm}
    with dnnffi.pack_rnn(given.weights, spec) as context:
        whole = flat(context.run(given.x, given.hx, lengths=lengths, options=options))
    with dnnffi.pack_rnn(given.weights, spec) as context:
        # Of 70 steps the gates take 161280 bytes.
        monkeypatch.setattr(device, "max_binding_bytes", 50_000)
        submissions.clear()
        split = flat(context.run(given.x, given.hx, lengths=lengths, options=options))
        assert len(submissions) == 1
        (sequence,) = context._network._idle
        assert len(sequence.starts) > 2
    assert all(map(same, split, whole))


def test_threads_share_a_context(gru, x):
    inputs = [x * factor for factor in range(8)]
    right = [gru.run(one)[0] for one in inputs]
    barrier = Barrier(8)

    def run(one):
        barrier.wait(30)
        return [gru.run(one)[0] for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(run, inputs))
    assert all(same(y, wanted) for ys, wanted in zip(found, right, strict=True) for y in ys)


def test_no_more_buffers_are_kept_than_of_four_sizes(gru, x):
    for rows in (1, 2, 3):
        for steps in (1, 2, 3):
            gru.run(x[:steps, :rows])
    assert len(gru._network._idle) == 4


def test_dropout_does_nothing_in_inference_that_others_train(gru, x):
    with pytest.raises(dnnffi.UnsupportedError, match="cudnn, miopen and reference train"):
        dnnffi.gru_forward(x, None, gru.unpack(), backend="vulkan", dropout_state=DropoutState(1))


def test_memory_of_workgroups_is_not_taken_for_zeros(device):
    # A state of 66 elements is padded by two to a multiple of four.
    wide, spec = (dnnffi.RNNSpec(mode="gru", input_size=8, hidden_size=h) for h in (68, 66))
    problem = dnnffi.RNNProblem.dense(spec, steps=3, batch=3)
    x, options = testing.inputs(problem, 0).x, {"algorithm": "persistent"}
    with (
        dnnffi.pack_rnn(testing.weights(wide, 0), wide) as before,
        dnnffi.pack_rnn(testing.weights(spec, 0), spec) as context,
    ):
        for _ in range(10):
            before.run(x * np.float32(np.nan), options=options)
            assert np.isfinite(context.run(x, options=options)[0]).all()


def test_a_call_in_which_no_row_has_a_step_leaves_the_kept_state():
    spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
    x, h_0 = inputs(spec)
    with dnnffi.pack_rnn(testing.weights(spec, 0), spec) as gru:
        _, expected = gru.run(x, h_0, keep_state=True)
        _, h_n = gru.run(x, keep_state=True, lengths=[0] * 3)
        np.testing.assert_array_equal(h_n, expected)
        gru.run(x, h_0, keep_state=True, lengths=[0] * 3)
        after, _ = gru.run(x, keep_state=True)
        expected, _ = gru.run(x, h_0)
    np.testing.assert_array_equal(after, expected)


def test_results_that_float16_does_not_hold_are_infinite_without_a_warning():
    spec = dnnffi.RNNSpec(mode="rnn_relu", input_size=1, hidden_size=1, dtype="float16")
    w_ih, *others = (np.zeros(one.shape, "f2") for one in spec.parameter_shapes())
    weights = [w_ih + 40, *others]
    with dnnffi.pack_rnn(weights, spec) as context, np.errstate(all="raise"):
        y, h_n = context.run(np.full((2, 3, 1), 30_000, "f2"))
    assert np.isposinf(y).all()
    assert np.isposinf(h_n).all()
