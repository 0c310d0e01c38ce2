"""Dropout of dnnffi's own kernels on the host: the masks, and training steps with them."""

from __future__ import annotations

import ctypes
from functools import partial

import conformance
import numpy as np
import pytest
from backends.own.recurrent.emulated_network import Network, address, kernel_config, kind_of
from conformance import Case, problem_of

from dnnffi.backends.cublas.product import RowsProduct
from dnnffi.backends.own.recurrent.dropout import DropoutKernels, Generator
from dnnffi.backends.own.recurrent.rows import NO_TABLES, row_layout
from dnnffi.backends.rnn_interface import ForwardAddresses
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import Launch
from dnnffi.dropout import DropoutState
from dnnffi.reference.dropout import own_masks, philox4x32
from dnnffi.spec.problem import BATCH_MAJOR, PACKED, RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.weights import RNNWeights
from simulators.cuda.emulator import EmulatedKernel, EmulatedMemory, functions

ALLOWED = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-3}
LARGE_SEED = 2**64 - 2**31 - 5
PLACE = "cudnn device 0, algorithm 'own'"


def test_the_kernel_draws_what_numpy_draws():
    library = functions(
        {"DTYPE": "FLOAT32", "FACTORS": "FLOAT32", "STRICT": False},
        ("dropout.cu",),
        """
extern "C" void draw(long count, const u64 *given, u32 *drawn)
{
    for (long i = 0; i < count; i++) {
        const Random random = philox(given[2 * i], given[2 * i + 1], given[2 * count]);
        memcpy(drawn + 4 * i, random.words, sizeof random.words);
    }
}
""",
    )
    count, rng = 500, np.random.default_rng(0)
    given = rng.integers(0, 2**64, 2 * count + 1, np.uint64)
    found = np.empty((count, 4), np.uint32)
    library.draw(ctypes.c_long(count), *(ctypes.c_void_p(a.ctypes.data) for a in (given, found)))
    key = int(given[-1])
    counters = given[:-1].view(np.uint32).reshape(count, 4)
    np.testing.assert_array_equal(found, philox4x32(counters, (key & 0xFFFFFFFF, key >> 32)))


def spec_of(mode="lstm", hidden=6, layers=3, bidirectional=False, dtype="float32"):
    return RNNSpec(
        mode=mode,
        input_size=3,
        hidden_size=hidden,
        num_layers=layers,
        bidirectional=bidirectional,
        dtype=dtype,
    )


def in_the_order_of(problem, mask):
    """Convert a mask [T, B, units] to the layout of the kernels' arrays of y (`row_layout`)."""
    if row_layout(problem).is_row_after_row:
        order = sorted(range(problem.batch), key=lambda row: -problem.lengths[row])
        return np.concatenate([mask[: problem.lengths[row], row] for row in order])
    if problem.layout == BATCH_MAJOR:
        return mask.swapaxes(0, 1)
    if problem.layout == PACKED:
        rows = [mask[t, np.array(problem.lengths) > t] for t in range(problem.steps)]
        return np.concatenate(rows)
    return mask


def dropped(problem, values, seed=LARGE_SEED, drawn=0, layer=0):
    """Return ``values``, which have the shape of y, after dropout by the kernels."""
    memory = EmulatedMemory()
    launch = Launch(memory.current_stream(), 0)
    generator = Generator(memory, 0, seed)
    generator.restore(np.array([seed, drawn], np.uint64).view(np.uint8))
    layout = row_layout(problem)
    at = NO_TABLES
    if layout.tables is not None:
        entries = memory.constant(layout.tables.entries())
        at = layout.tables.addresses(entries.data.ptr)
    made = DropoutKernels(problem.spec.dtype, memory).bind(problem, layout, generator)
    taken = memory.zeros((16,), np.uint8)
    made.take(launch, taken.data.ptr)
    array = memory.array(values)
    made.drop(launch, array.data.ptr, array.data.ptr, taken.data.ptr, at, layer)
    memory.check_margins()
    assert generator.save().view(np.uint64).tolist() == [
        seed,
        (drawn + problem.spec.num_layers - 1) % 2**64,
    ]
    return np.asarray(array, np.float64)


@pytest.mark.parametrize(
    "layout", ["dense", "batch_first", "packed", "lengths", "batch_first_lengths"]
)
@pytest.mark.parametrize(
    ("hidden", "bidirectional"), [(1, False), (6, False), (6, True), (36, True)]
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_masks_are_the_references_in_every_layout(layout, hidden, bidirectional, dtype):
    spec = spec_of(hidden=hidden, bidirectional=bidirectional, dtype=dtype)
    rng = np.random.default_rng(hidden)
    problem = problem_of(spec, layout, 5, 4, rng, training=True, dropout=0.75)
    shape = row_layout(problem).positions, spec.hidden_size * spec.num_directions
    ones = np.ones(
        shape if row_layout(problem).is_row_after_row else problem.y_shape, dtype_object(dtype)
    )
    for layer, drawn in ((0, 0), (1, 0), (1, 2**32 - 1), (1, 2**64 - 3)):
        found = dropped(problem, ones, drawn=drawn, layer=layer)
        mask = own_masks(spec, problem.steps, problem.batch, 0.75, LARGE_SEED, drawn)[layer]
        np.testing.assert_array_equal(found, in_the_order_of(problem, mask))


@pytest.mark.parametrize("dropout", [2.0**-32, 0.1, 0.999, 1.0])
def test_what_is_kept_is_scaled(dropout):
    problem = RNNProblem.dense(spec_of(hidden=9), steps=7, batch=3, training=True, dropout=dropout)
    values = np.random.default_rng(0).standard_normal(problem.y_shape).astype("f4")
    mask = own_masks(problem.spec, 7, 3, dropout, LARGE_SEED)[0]
    np.testing.assert_allclose(dropped(problem, values), values * mask, rtol=1e-6)


def test_what_is_not_finite_and_dropped_is_nan_as_in_the_reference():
    problem = RNNProblem.dense(spec_of(hidden=8), steps=2, batch=1, training=True, dropout=1.0)
    values = np.zeros(problem.y_shape, "f4")
    values[0, 0, :3] = np.inf, -np.inf, np.nan
    found = np.isnan(dropped(problem, values))
    np.testing.assert_array_equal(found, ~np.isfinite(values))


def network(cublas, problem, **how):
    forward, backward = (kernel_config(kind_of(problem, way)) for way in (False, True))
    return Network(cublas, problem, forward, backward, **how)


def case_of(seed, layout, spec, dropout=0.4):
    rng = np.random.default_rng(seed)
    problem = problem_of(spec, layout, 4, 5, rng, training=True, dropout=dropout)
    return Case(problem, bool(seed % 2), seed)


def expected(case, arrays, seed, drawn=0):
    """Return the reference's results in float64 with the masks of a dropout state."""
    problem = case.problem
    sizes = problem.steps, problem.batch, problem.dropout
    return conformance.expected(case, arrays, own_masks(problem.spec, *sizes, seed, drawn))


def check(case, found, wanted):
    allowed = ALLOWED[case.problem.spec.dtype]
    for name, one in found._asdict().items():
        other = getattr(wanted, name)
        if one is None:
            continue
        if name == "dweights":
            one = np.concatenate([np.asarray(a, "f8").ravel() for a in one])
            other = np.concatenate([a.ravel() for a in other])
        error = conformance.deviation(one, other)
        assert error <= allowed, f"{name} of {case}: off by {error:.3g}, allowed {allowed}"


NETWORKS = (
    spec_of("lstm", 6, 3, False, "float32"),
    spec_of("lstm", 9, 2, True, "bfloat16"),
    spec_of("gru", 8, 2, True, "float16"),
    spec_of("rnn_tanh", 7, 3, False, "float32"),
    spec_of("rnn_relu", 8, 3, True, "float32"),
)


@pytest.mark.parametrize("layout", conformance.LAYOUTS)
@pytest.mark.parametrize("spec", NETWORKS, ids=lambda spec: f"{spec.mode}-{spec.dtype}")
def test_a_training_step_is_the_references_by_the_same_masks(cublas, spec, layout):
    seed = conformance.LAYOUTS.index(layout)
    case = case_of(seed, layout, spec)
    arrays = conformance.arrays_of(case)
    with network(cublas, case.problem, seed=seed * 1000, drops_by=seed) as made:
        for number in range(2):
            found = made.results(arrays)
            drawn = number * (spec.num_layers - 1)
            check(case, found, expected(case, arrays, seed, drawn))
            conformance.assert_padding_is_zero(case.problem, found.dx)


@pytest.mark.parametrize("mode", ["gru", "rnn_tanh"])
def test_a_backward_draws_the_masks_of_its_forward(cublas, mode):
    case = case_of(1, "lengths", spec_of(mode))
    arrays = conformance.arrays_of(case)
    with network(cublas, case.problem, drops_by=3) as made:
        state = np.array([11, 22], np.uint64).view(np.uint8)  # as other calls may leave it
        found = made.results(arrays, between=lambda: made.generator.restore(state))
    check(case, found, expected(case, arrays, 3))


def test_with_a_dropout_of_one_the_next_layer_reads_zeros(cublas):
    case = case_of(2, "dense", spec_of(layers=2), dropout=1.0)
    arrays = conformance.arrays_of(case)
    with network(cublas, case.problem) as made:
        found = made.results(arrays)
    check(case, found, expected(case, arrays, 0))
    assert np.asarray(found.y).any()
    assert not np.asarray(found.dweights[4]).any()  # of the second layer's product of x


def test_gradients_are_added_to_those_before(cublas):
    case = case_of(3, "packed", spec_of("lstm", 6, 2))
    arrays = conformance.arrays_of(case)
    with network(cublas, case.problem, drops_by=5) as made:
        found = made.results(arrays, accumulate=arrays.weights)
    wanted = expected(case, arrays, 5).dweights
    both = [one + np.asarray(held, "f8") for one, held in zip(wanted, arrays.weights, strict=True)]
    check(case, found, expected(case, arrays, 5)._replace(dweights=both))


def test_what_does_not_train_or_has_one_layer_drops_nothing(cublas):
    for problem in (
        RNNProblem.dense(spec_of(layers=1), steps=4, batch=3, training=True, dropout=0.5),
        RNNProblem.dense(spec_of(layers=2), steps=4, batch=3, training=True, dropout=0.0),
    ):
        with network(cublas, problem) as made:
            assert made.executor.generator is None
            case = Case(problem, True, 0)
            arrays = conformance.arrays_of(case)
            check(case, made.results(arrays), conformance.expected(case, arrays))


def test_a_replayed_forward_moves_the_state_on(cublas, monkeypatch):
    case = case_of(0, "batch_first_lengths", spec_of("gru", 8, 3))
    problem, arrays = case.problem, conformance.arrays_of(case)
    work = []

    def recorded(call):
        return lambda *arguments, **more: work.append(partial(call, *arguments, **more))

    with network(cublas, problem, drops_by=9) as made:
        x, h_0 = made.array(arrays.x), made.array(arrays.h_0)
        weights = made.array(RNNWeights.pack(arrays.weights, problem.spec, backend="cudnn").flat)
        y, h_n = made.new(problem.y_shape), made.new(problem.h_shape)
        given = (*map(address, (x, y, h_0, h_n, None, None, weights)),)
        at = ForwardAddresses(*given, address(made.workspace), address(made.reserve))
        with monkeypatch.context() as patch:  # records all work of a forward pass
            for owner, name in (
                (EmulatedKernel, "__call__"),
                (RowsProduct, "run"),
                (EmulatedMemory, "clear"),
                (EmulatedMemory, "copy"),
            ):
                call = getattr(owner, name)
                patch.setattr(owner, name, lambda self, *a, c=call, **k: recorded(c)(self, *a, **k))
            made.executor.forward(made.launch, at)
        assert made.generator.save().view(np.uint64).tolist() == [9, 0]
        for replay in range(3):
            for call in work:
                call()
            wanted = expected(case, arrays, 9, 2 * replay)
            assert conformance.deviation(y, wanted.y) <= ALLOWED["float32"]
            assert made.generator.save().view(np.uint64).tolist() == [9, 2 * replay + 2]


@pytest.fixture
def memory():
    return EmulatedMemory()


def test_a_restored_state_goes_on_with_the_saved_numbers(memory):
    state = DropoutState(LARGE_SEED)
    generator = state.generator(PLACE, partial(Generator, memory, 0))
    generator.restore(np.array([LARGE_SEED, 2**40], np.uint64).view(np.uint8))
    saved = state.save()
    assert saved["states"] == np.array([LARGE_SEED, 2**40], np.uint64).tobytes()
    restored = DropoutState.restore(saved).generator(PLACE, partial(Generator, memory, 0))
    np.testing.assert_array_equal(restored.save(), generator.save())
    assert restored.address != generator.address


def test_states_of_another_size_are_refused():
    saved = {"seed": 1, "place": PLACE, "states": b"short"}
    with pytest.raises(ValueError, match=r"must have 16 bytes; got 5$"):
        DropoutState.restore(saved)


def test_uses_on_two_streams_are_ordered(memory):
    generator = Generator(memory, 0, 1)
    first, second = memory.stream, memory.new_stream()
    generator.in_order(Launch(first, 0), lambda: None)
    assert memory.waits == []
    generator.in_order(Launch(second, 0), lambda: None)
    assert memory.waits == [(second.ptr, first.ptr)]


class OfAnother:
    """A generator of a type that the kernels do not accept."""


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        (lambda memory: None, ValueError, "^generator: a problem with dropout needs random"),
        (lambda memory: OfAnother(), TypeError, r"^generator must be .* got a .*\.OfAnother$"),
        (lambda memory: Generator(memory, 1, 0), ValueError, "device, 0; it is on 1$"),
    ],
    ids=["none", "of another kind", "of another device"],
)
def test_random_numbers_that_cannot_be_used_are_refused(cublas, monkeypatch, made, error, words):
    from backends.own.recurrent import emulated_network

    problem = RNNProblem.dense(spec_of(), steps=2, batch=2, training=True, dropout=0.5)
    monkeypatch.setattr(emulated_network, "Generator", lambda memory, device, seed: made(memory))
    with pytest.raises(error, match=words):
        network(cublas, problem)
