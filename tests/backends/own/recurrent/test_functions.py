"""Tests of dnnffi's own kernels through the public functions, emulated on the host."""

from __future__ import annotations

import conformance
import numpy as np
import pytest

import dnnffi
from dnnffi.errors import UnsupportedError
from dnnffi.reference.dropout import own_masks
from dnnffi.rnn.backend import DeviceRNNBackend
from dnnffi.rnn.network import CALLS_BEFORE_TUNING
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.rnn import RNNSpec
from simulators.cuda.emulator import emulating
from simulators.cudnn import build
from simulators.cudnn.library import open_simulator


@pytest.fixture
def simulator():
    with open_simulator(build.build()) as simulator:
        yield simulator


@pytest.fixture
def emulated(simulator, cublas):
    """The stand-in of cuDNN, with memory on which dnnffi's own kernels run."""
    with emulating(simulator, cublas):
        yield simulator


def test_training_steps_are_the_references_by_the_masks_of_the_state(emulated):
    options = RNNOptions(algorithm="own", tune="off")
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=10, num_layers=3, bidirectional=True)
    problem = conformance.problem_of(
        *(spec, "batch_first_lengths", 4, 5, np.random.default_rng(0)),
        training=True,
        dropout=0.4,
        options=options,
    )
    case = conformance.Case(problem, states=True, seed=0)
    arrays, state = conformance.arrays_of(case), dnnffi.DropoutState(7)
    for number in range(2):
        keywords = {"dropout": 0.4, "dropout_state": state}
        _, found = conformance.run(case, arrays, emulated.asarray, "cudnn", **keywords)
        masks = own_masks(spec, problem.steps, problem.batch, 0.4, 7, 2 * number)
        conformance.assert_close(case, found, conformance.expected(case, arrays, masks))
    assert np.frombuffer(state.save()["states"], np.uint64).tolist() == [7, 4]
    assert repr(state) == "DropoutState(seed=7, cudnn device 0, algorithm 'own')"
    assert emulated.calls("cudnnRNNForward") == 0


def test_padded_and_packed_rows_of_a_network_have_kernels_of_their_own(emulated, caplog):
    """A choice that was measured for one of them names kernels that cannot run the other."""
    rng = np.random.default_rng(0)
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10)
    host_weights = dnnffi.RNNWeights.random(spec, rng)
    weights = dnnffi.RNNWeights(
        emulated.asarray(host_weights.to("cudnn").flat), spec, backend="cudnn"
    )
    padded = rng.standard_normal((4, 3, 3), "f4")
    lengths, sizes = (4, 3, 1), (3, 2, 2, 1)
    packed = np.concatenate([padded[step, :size] for step, size in enumerate(sizes)])
    options = RNNOptions(algorithm="own")
    caplog.set_level("INFO", logger="dnnffi")
    kinds = ((padded, {"lengths": lengths}), (packed, {"batch_sizes": sizes}))
    for x, rows in (*kinds, *kinds):
        expected, _ = dnnffi.gru(x, None, host_weights, **rows)
        for _ in range(CALLS_BEFORE_TUNING + 1):
            more = {"options": options, "backend": "cudnn", **rows}
            y, _ = dnnffi.gru(emulated.asarray(x), None, weights, **more)
            np.testing.assert_allclose(np.asarray(y), expected, atol=2e-3)
    assert not [one for one in caplog.messages if "cannot run" in one]


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("on_host", [True, False])
def test_resets_run_by_the_kernels_without_being_named(emulated, rows, on_host):
    """cuDNN has no resets: its kernels are neither called nor measured."""
    rng = np.random.default_rng(0)
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=10, num_layers=2, bidirectional=True)
    host_weights = dnnffi.RNNWeights.random(spec, rng)
    weights = dnnffi.RNNWeights(
        emulated.asarray(host_weights.to("cudnn").flat), spec, backend="cudnn"
    )
    x, dy = (rng.standard_normal(shape, "f4") for shape in (spec.x_shape(4, 5), spec.y_shape(4, 5)))
    reset_to = [rng.standard_normal(spec.h_shape(rows), "f4") for _ in range(2)]
    flags = rng.random((4, 5)) < 0.4
    more = {"lengths": (4, 0, 3, 4, 2)}
    y, _, context = dnnffi.lstm_forward(
        *(emulated.asarray(x), None, weights),
        resets=flags if on_host else emulated.asarray(flags),
        reset_to=tuple(map(emulated.asarray, reset_to)),
        backend="cudnn",
        **more,
    )
    found = context.backward(emulated.asarray(dy))
    expected_y, _, context = dnnffi.lstm_forward(
        x, None, host_weights, resets=flags, reset_to=tuple(reset_to), **more
    )
    expected = context.backward(dy)
    pairs = [(y, expected_y), (found.x, expected.x)]
    pairs += zip(found.reset_to, expected.reset_to, strict=True)
    pairs.append((found.weights.flat, expected.weights.to("cudnn").flat))
    for one, other in pairs:
        assert conformance.deviation(np.asarray(one), other.astype("f8")) < 2e-3
    assert emulated.calls("cudnnRNNForward") == 0


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_known_call_with_resets_is_not_looked_at_closely(emulated, monkeypatch, rows):
    rng = np.random.default_rng(0)
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=10)
    flat = dnnffi.RNNWeights.random(spec, rng).to("cudnn").flat
    weights = dnnffi.RNNWeights(emulated.asarray(flat), spec, backend="cudnn")
    dy = emulated.asarray(rng.standard_normal(spec.y_shape(4, 5), "f4"))
    reset_to = None
    if rows:
        state = rng.standard_normal(spec.h_shape(rows), "f4")
        reset_to = tuple(map(emulated.asarray, (state, -state)))

    def call(seed):
        drawn = np.random.default_rng(seed)
        x = emulated.asarray(drawn.standard_normal(spec.x_shape(4, 5), "f4"))
        flags = emulated.asarray(drawn.random((4, 5)) < 0.5)
        more = {"resets": flags, "reset_to": reset_to, "backend": "cudnn"}
        y, _, context = dnnffi.lstm_forward(x, None, weights, **more)
        grads = context.backward(dy)
        return [y, grads.x, grads.weights.flat, *(grads.reset_to or ())]

    expected = [call(seed) for seed in (1, 2)][1]
    monkeypatch.setattr("dnnffi.rnn.call_path._run_checked", None)
    for one, other in zip(call(2), expected, strict=True):
        np.testing.assert_array_equal(one, other)


LENGTHS = (4, 0, 3, 4, 2)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_lengths_on_the_device_are_read_there(emulated, dtype):
    rng = np.random.default_rng(0)
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=10, num_layers=2, bidirectional=True)
    host_weights = dnnffi.RNNWeights.random(spec, rng)
    flat = emulated.asarray(host_weights.to("cudnn").flat)
    weights = dnnffi.RNNWeights(flat, spec, backend="cudnn")
    x, dy = (rng.standard_normal(shape, "f4") for shape in (spec.x_shape(4, 5), spec.y_shape(4, 5)))
    for lengths in (LENGTHS, LENGTHS[::-1], (0,) * 5, (4,) * 5):
        on_device = emulated.asarray(np.array(lengths, dtype))
        y, (h_n, _), context = dnnffi.lstm_forward(
            emulated.asarray(x), None, weights, lengths=on_device, backend="cudnn"
        )
        grads = context.backward(emulated.asarray(dy))
        expected_y, (expected_h, _), context = dnnffi.lstm_forward(
            x, None, host_weights, lengths=lengths
        )
        expected = context.backward(dy)
        pairs = [(y, expected_y), (h_n, expected_h), (grads.x, expected.x)]
        pairs.append((grads.weights.flat, expected.weights.to("cudnn").flat))
        for one, other in pairs:
            assert conformance.deviation(np.asarray(one), other.astype("f8")) < 2e-3
    assert emulated.calls("cudnnRNNForward") == 0


def device_lengths_call(emulated, lengths, dtype="float32", **options):
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10, dtype=dtype)
    flat = dnnffi.RNNWeights.random(spec, np.random.default_rng(0)).to("cudnn").flat
    weights = dnnffi.RNNWeights(emulated.asarray(flat), spec, backend="cudnn")
    x = emulated.asarray(np.ones((4, 5, 3), dtype))
    return dnnffi.gru(x, None, weights, lengths=lengths, backend="cudnn", options=options)[0]


def test_lengths_on_the_device_are_copied_where_they_cannot_be_read(simulator, monkeypatch):
    monkeypatch.setattr("dnnffi.rnn.row_arrays._warned", False)
    lengths = simulator.asarray(np.array(LENGTHS, "i4"))
    with pytest.warns(dnnffi.PerformanceWarning, match="copied to the host in every call.*cuDNN"):
        found = device_lengths_call(simulator, lengths, "float64")
    np.testing.assert_array_equal(found, device_lengths_call(simulator, LENGTHS, "float64"))
    lengths[...] = LENGTHS[::-1]  # of a network that is known now
    again = device_lengths_call(simulator, lengths, "float64")
    np.testing.assert_array_equal(again, device_lengths_call(simulator, LENGTHS[::-1], "float64"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lengths_on_the_device_that_are_out_of_range_count_as_the_nearest(
    request, monkeypatch, dtype
):
    """float32 runs on dnnffi's kernels, float64, which they do not have, in the library."""
    monkeypatch.setattr("dnnffi.rnn.row_arrays._warned", True)
    simulator = request.getfixturevalue("emulated" if dtype == "float32" else "simulator")
    lengths = simulator.asarray(np.array((9, -3, 3, 4, 2), "i4"))
    found = device_lengths_call(simulator, lengths, dtype)
    clamped = simulator.asarray(np.array(LENGTHS, "i4"))
    np.testing.assert_array_equal(found, device_lengths_call(simulator, clamped, dtype))


def test_validation_says_which_length_on_the_device_is_out_of_range(emulated):
    lengths = emulated.asarray(np.array((4, 0, 3, 5, 2), "i4"))
    with pytest.raises(ValueError, match=r"^lengths\[3\] must be from 0 to 4 \(T\); got 5, which"):
        device_lengths_call(emulated, lengths, validate=True)


def test_validation_says_which_length_is_out_of_range_where_they_are_copied(simulator, monkeypatch):
    monkeypatch.setattr("dnnffi.rnn.row_arrays._warned", True)
    lengths = simulator.asarray(np.array((4, 0, 3, 5, 2), "i4"))
    with pytest.raises(ValueError, match=r"^lengths\[3\] must be from 0 to 4 \(T\); got 5, which"):
        device_lengths_call(simulator, lengths, "float64", validate=True)


@pytest.mark.parametrize(
    ("lengths", "error", "match"),
    [
        (np.ones(4, "i4"), ValueError, r"^lengths must have one entry .* 5 rows .* shape \(4,\)$"),
        (np.ones((5, 1), "i4"), ValueError, r"^lengths must have one entry .* shape \(5, 1\)$"),
        (np.ones(5, "f4"), TypeError, r"^lengths must be integers; got float32$"),
        (np.ones(5, bool), TypeError, r"^lengths must be integers; got bool$"),
    ],
)
def test_wrong_lengths_on_the_device(emulated, lengths, error, match):
    with pytest.raises(error, match=match):
        device_lengths_call(emulated, emulated.asarray(lengths))


def test_a_known_call_with_lengths_on_the_device_is_not_looked_at_closely(emulated, monkeypatch):
    lengths = emulated.asarray(np.array(LENGTHS, "i4"))
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10)
    flat = dnnffi.RNNWeights.random(spec, np.random.default_rng(0)).to("cudnn").flat
    weights = dnnffi.RNNWeights(emulated.asarray(flat), spec, backend="cudnn")
    x = emulated.asarray(np.ones((4, 5, 3), "f4"))
    more = {"lengths": lengths, "backend": "cudnn"}
    dnnffi.gru(x, None, weights, **more)
    monkeypatch.setattr("dnnffi.rnn.call_path._run_checked", None)
    lengths[...] = LENGTHS[::-1]
    y = np.asarray(dnnffi.gru(x, None, weights, **more)[0])
    for row, length in enumerate(LENGTHS[::-1]):
        assert y[:length, row].all()
        assert not y[length:, row].any()


def test_a_known_network_refuses_lengths_on_the_device_with_batch_sizes(emulated):
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10)
    flat = dnnffi.RNNWeights.random(spec, np.random.default_rng(0)).to("cudnn").flat
    weights = dnnffi.RNNWeights(emulated.asarray(flat), spec, backend="cudnn")
    more = {"lengths": emulated.asarray(np.array(LENGTHS, "i4")), "backend": "cudnn"}
    dnnffi.gru(emulated.asarray(np.ones((4, 5, 3), "f4")), None, weights, **more)
    x = emulated.asarray(np.ones((3, 3), "f4"))
    with pytest.raises(ValueError, match=r"^lengths and batch_sizes exclude each other"):
        dnnffi.gru(x, None, weights, batch_sizes=[2, 1], **more)


def test_an_empty_batch_has_lengths_on_the_device(emulated):
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10)
    flat = dnnffi.RNNWeights.random(spec, np.random.default_rng(0)).to("cudnn").flat
    weights = dnnffi.RNNWeights(emulated.asarray(flat), spec, backend="cudnn")
    x, lengths = emulated.asarray(np.ones((4, 0, 3), "f4")), emulated.asarray(np.ones(0, "i4"))
    y, _ = dnnffi.gru(x, None, weights, lengths=lengths, backend="cudnn")
    assert y.shape == (4, 0, 10)


def test_a_plan_for_the_largest_sizes_reads_the_lengths_of_each_call(emulated):
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10)
    rng = np.random.default_rng(0)
    host_weights = dnnffi.RNNWeights.random(spec, rng)
    flat = emulated.asarray(host_weights.to("cudnn").flat)
    weights = dnnffi.RNNWeights(flat, spec, backend="cudnn")
    more = {"training": True, "backend": "cudnn", "options": {"tune": "off"}}
    lengths = emulated.asarray(np.zeros(5, "i4"))
    with dnnffi.RNNPlan(spec, max_batch=5, max_steps=4, **more) as plan:
        for drawn in (LENGTHS, (0, 0, 1, 0, 0), (4,) * 5):
            x = rng.standard_normal(spec.x_shape(4, 5), "f4")
            dy = rng.standard_normal(spec.y_shape(4, 5), "f4")
            lengths[...] = drawn
            y, _ = plan.forward(emulated.asarray(x), None, weights, lengths=lengths)
            (dx, _), dweights = plan.backward(emulated.asarray(dy))
            expected_y, _, context = dnnffi.gru_forward(x, None, host_weights, lengths=drawn)
            grads = context.backward(dy)
            pairs = [(y, expected_y), (dx, grads.x)]
            pairs.append((dweights.flat, grads.weights.to("cudnn").flat))
            for one, other in pairs:
                assert conformance.deviation(np.asarray(one), other.astype("f8")) < 2e-3
    assert emulated.calls("cudnnRNNForward") == 0


@pytest.mark.parametrize("rows", [1, 5])
def test_a_plan_with_resets_replaces_states(emulated, rows):
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=10)
    rng = np.random.default_rng(0)
    host_weights = dnnffi.RNNWeights.random(spec, rng)
    flat = emulated.asarray(host_weights.to("cudnn").flat)
    weights = dnnffi.RNNWeights(flat, spec, backend="cudnn")
    reset_to = tuple(rng.standard_normal(spec.h_shape(rows), "f4") for _ in range(2))
    on_device = tuple(map(emulated.asarray, reset_to))
    more = {"training": True, "backend": "cudnn", "options": {"tune": "off"}}
    with dnnffi.RNNPlan(spec, batch=5, steps=4, resets=True, **more) as plan:
        for _ in range(2):
            x = rng.standard_normal(spec.x_shape(4, 5), "f4")
            dy = rng.standard_normal(spec.y_shape(4, 5), "f4")
            flags = rng.random((4, 5)) < 0.4
            y, _ = plan.forward(
                *(emulated.asarray(x), None, weights),
                resets=emulated.asarray(flags),
                reset_to=on_device,
            )
            (dx, _, of_resets), dweights = plan.backward(emulated.asarray(dy))
            expected_y, _, context = dnnffi.lstm_forward(
                x, None, host_weights, resets=flags, reset_to=reset_to
            )
            grads = context.backward(dy)
            pairs = [(y, expected_y), (dx, grads.x), *zip(of_resets, grads.reset_to, strict=True)]
            pairs.append((dweights.flat, grads.weights.to("cudnn").flat))
            for one, other in pairs:
                assert conformance.deviation(np.asarray(one), other.astype("f8")) < 2e-3


@pytest.fixture
def resetting(emulated, monkeypatch):
    """A plan with resets and what it is called with: x, None, weights."""
    # The simulator's arrays are NumPy's, which are copied: flags in device memory are not.
    monkeypatch.setattr(DeviceRNNBackend, "placed", lambda backend, flags, device: flags)
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10)
    flat = dnnffi.RNNWeights.random(spec, np.random.default_rng(0)).to("cudnn").flat
    weights = dnnffi.RNNWeights(emulated.asarray(flat), spec, backend="cudnn")
    more = {"resets": True, "training": True, "backend": "cudnn", "options": {"tune": "off"}}
    with dnnffi.RNNPlan(spec, batch=5, steps=4, **more) as plan:
        yield plan, (emulated.asarray(np.ones((4, 5, 3), "f4")), None, weights)


def test_the_state_of_resets_is_apart_from_results(emulated, resetting):
    plan, arguments = resetting
    y, h_n = (emulated.asarray(np.zeros(shape, "f4")) for shape in ((4, 5, 10), (1, 5, 10)))
    flags = emulated.asarray(np.zeros((4, 5), bool))
    with pytest.raises(ValueError, match=r"^(reset_to and h_n|h_n and reset_to) must not share"):
        plan.forward(*arguments, out=(y, h_n), resets=flags, reset_to=h_n)


@pytest.mark.parametrize("backward", ["backward_data", "backward"])
def test_resets_are_apart_from_gradients(emulated, resetting, backward):
    plan, arguments = resetting
    dx, dh_0 = (emulated.asarray(np.zeros(shape, "f4")) for shape in ((4, 5, 3), (1, 5, 10)))
    flags = dx.reshape(-1).view("u1")[:20].reshape(4, 5)
    plan.forward(*arguments, resets=flags)
    with pytest.raises(ValueError, match=r"^(resets and dx|dx and resets) must not share"):
        getattr(plan, backward)(None, None, (dx, dh_0))


def test_resets_are_apart_from_the_gradient_of_the_weights(emulated, resetting):
    plan, arguments = resetting
    gradient = arguments[-1].like(emulated.asarray(np.zeros_like(arguments[-1].flat)))
    plan.forward(*arguments, resets=gradient.flat.view("u1")[:20].reshape(4, 5))
    with pytest.raises(ValueError, match=r"^(resets and out_w|out_w\w+ and resets)"):
        plan.backward(out_weights=gradient)


def test_a_plan_with_lengths_of_each_call_is_refused_without_the_kernels(simulator):
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10, dtype="float64")
    with pytest.raises(UnsupportedError, match=r"^cuDNN 9.*: takes no lengths in device memory"):
        dnnffi.RNNPlan(spec, max_batch=5, max_steps=4, backend="cudnn")


def test_more_steps_than_the_library_takes_run_by_the_kernels(emulated, monkeypatch):
    monkeypatch.setattr("dnnffi.backends.cudnn.limits.MAX_STEPS", 4)
    rng = np.random.default_rng(0)
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10)
    host_weights = dnnffi.RNNWeights.random(spec, rng)
    flat = emulated.asarray(host_weights.to("cudnn").flat)
    weights = dnnffi.RNNWeights(flat, spec, backend="cudnn")
    x, dy = (rng.standard_normal(shape, "f4") for shape in (spec.x_shape(5, 2), spec.y_shape(5, 2)))
    y, _, context = dnnffi.gru_forward(emulated.asarray(x), None, weights, backend="cudnn")
    dx = context.backward(emulated.asarray(dy)).x
    expected_y, _, context = dnnffi.gru_forward(x, None, host_weights)
    for one, other in ((y, expected_y), (dx, context.backward(dy).x)):
        assert conformance.deviation(np.asarray(one), other.astype("f8")) < 2e-3
    assert emulated.calls("cudnnRNNForward") == 0


def test_what_nobody_takes_is_refused_with_the_limit_of_the_library(emulated, monkeypatch):
    monkeypatch.setattr("dnnffi.backends.cudnn.limits.MAX_STEPS", 4)
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10, dtype="float64")
    flat = dnnffi.RNNWeights.random(spec, np.random.default_rng(0)).to("cudnn").flat
    weights = dnnffi.RNNWeights(emulated.asarray(flat), spec, backend="cudnn")
    with pytest.raises(UnsupportedError, match=r"^cuDNN 9\.\d.*: an RNN takes at most 65535 time"):
        dnnffi.gru(emulated.asarray(np.zeros((5, 2, 3))), None, weights, backend="cudnn")


def test_an_algorithm_without_resets_is_refused_by_name(emulated):
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=10)
    flat = dnnffi.RNNWeights.random(spec, np.random.default_rng(0)).to("cudnn").flat
    weights = dnnffi.RNNWeights(emulated.asarray(flat), spec, backend="cudnn")
    x = emulated.asarray(np.zeros((4, 5, 3), "f4"))
    with pytest.raises(UnsupportedError, match=r"^cuDNN 9.*: has no resets; dnnffi's"):
        dnnffi.gru(
            *(x, None, weights),
            resets=np.ones((4, 5), bool),
            backend="cudnn",
            options={"algorithm": "standard"},
        )
