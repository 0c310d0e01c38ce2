"""dnnffi's recurrent kernels on a GPU: numbers, sizes, streams, threads, graphs, refusals."""

from __future__ import annotations

import threading
from functools import partial

import conformance
import numpy as np
import pytest
from conformance import Backend, Case, Sizes, problem_of

import dnnffi
from dnnffi.backends.own.recurrent import candidates
from dnnffi.backends.own.recurrent.candidates import OwnCandidates
from dnnffi.backends.own.recurrent.config import Kind, Layer, of_whole_rows
from dnnffi.backends.own.recurrent.cost_model import step_us
from dnnffi.backends.own.recurrent.search import (
    find_clusters,
    find_gathers,
    find_scatters,
    select_configs,
)
from dnnffi.device.cupy import cupy_memory
from dnnffi.errors import UnsupportedError
from dnnffi.reference.dropout import own_masks
from dnnffi.rnn.executor import RNNExecutor
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

cupy = pytest.importorskip("cupy")

OWN = Backend(
    "cudnn",
    dtypes=("float32", "float16", "bfloat16"),
    projections=(False,),
    algorithms=("own",),
    maths=("default", "fast", "strict"),
    sizes=Sizes(hidden=range(39, 41)),  # each is a kernel to compile
)
OPTIONS = RNNOptions(algorithm="own", tune="off")
SIZES = (1, 2, 3, 5, 8, 9, 16, 31, 64, 65, 100, 127, 200, 264, 331, 512, 650, 1025, 1536, 2050)
by_own = {"algorithm": "own", "tune": "off"}


@pytest.fixture(autouse=True)
def _able():
    problem = RNNProblem.dense(RNNSpec(mode="lstm", input_size=1, hidden_size=1), steps=1, batch=1)
    if not OwnCandidates(cupy_memory()).offers(problem):
        pytest.skip("this device has none of our kernels")


def case_of(spec, steps, batch, *, layout="dense", options=OPTIONS, seed=0):
    rng = np.random.default_rng(seed)
    problem = problem_of(spec, layout, steps, batch, rng, training=True, options=options)
    return Case(problem, states=True, seed=seed)


check = partial(conformance.check, asarray=cupy.asarray, backend=OWN)


@pytest.fixture(params=["not at all", "in clusters", "through memory"])
def exchange(request, monkeypatch):
    """The method by which the blocks of small layers exchange states."""
    if request.param != "not at all":
        monkeypatch.setattr(candidates, "select_whole_rows", lambda *_: ())
    if request.param == "in clusters":
        monkeypatch.setattr(candidates, "select_configs", clusters_first)
    if request.param == "through memory":
        monkeypatch.setattr(candidates, "select_configs", without_clusters)
        monkeypatch.setattr(candidates, "select_layer_clusters", lambda *_: ())
    return request.param


def first(found, layer, most=1):
    """The most promising configurations of some."""
    return tuple(sorted(found, key=lambda one: step_us(one, layer))[:most])


def clusters_first(kind, layer):
    return (*first(find_clusters(kind, layer), layer), *select_configs(kind, layer))


def without_clusters(kind, layer):
    return first(find_gathers(kind, layer), layer)


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("case", conformance.matrix(OWN), ids=str)
def test_matrix(case):
    check(case, options={"tune": "off"})


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("hidden_size", SIZES)
@pytest.mark.parametrize(
    ("mode", "dtype"), [("lstm", "float16"), ("gru", "float32"), ("rnn_tanh", "bfloat16")]
)
def test_any_hidden_size(mode, dtype, hidden_size):
    spec = RNNSpec(mode=mode, input_size=24, hidden_size=hidden_size, dtype=dtype)
    check(case_of(spec, 5, 11))


@pytest.mark.parametrize("batch", [1, 2, 7, 8, 9, 16, 63, 65, 130, 700])
@pytest.mark.parametrize("layout", ["dense", "lengths"])
def test_any_batch(batch, layout):
    spec = RNNSpec(mode="lstm", input_size=16, hidden_size=264, bidirectional=True, dtype="float16")
    check(case_of(spec, 4, batch, layout=layout))


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 50])
@pytest.mark.parametrize("mode", conformance.MODES)
def test_any_number_of_steps(mode, steps):
    check(case_of(RNNSpec(mode=mode, input_size=8, hidden_size=72), steps, 5))


@pytest.mark.parametrize(
    ("mode", "dtype", "hidden_size", "batch", "math"),
    [
        ("lstm", "float32", 512, 64, "default"),
        ("lstm", "float32", 299, 9, "default"),
        ("lstm", "float32", 400, 20, "strict"),
        ("lstm", "bfloat16", 1024, 64, "default"),
        ("lstm", "float16", 900, 50, "default"),
        ("gru", "float32", 1000, 30, "default"),
        ("gru", "float16", 1413, 33, "default"),
        ("rnn_tanh", "bfloat16", 1760, 16, "default"),
        ("lstm", "float32", 777, 130, "default"),
        ("lstm", "float16", 1536, 1, "default"),
    ],
)
@pytest.mark.parametrize("layout", ["dense", "lengths"])
def test_backwards_that_exchange_shares(mode, dtype, hidden_size, batch, math, layout, monkeypatch):
    kind = Kind(mode, hidden_size, dtype, True, True, strict=math == "strict")
    layer = Layer(batch, 1, OwnCandidates(cupy_memory()).chip())
    shares = first(find_scatters(kind, layer), layer, 2)
    if not shares:
        pytest.skip("this device has no room for one")

    monkeypatch.setattr(candidates, "select_whole_rows", lambda *_: ())
    spec = RNNSpec(mode=mode, input_size=24, hidden_size=hidden_size, dtype=dtype)
    case = case_of(spec, 7, batch, layout=layout, options=OPTIONS._replace(math=math))
    check_each(shares, case, monkeypatch)


def test_more_steps_than_the_library_takes():
    spec = RNNSpec(mode="gru", input_size=2, hidden_size=8)
    problem = RNNProblem.dense(spec, steps=65_536, batch=2, training=True)
    conformance.check(Case(problem, states=True, seed=1), cupy.asarray, "cudnn")


def check_each(found, case, monkeypatch):
    """Check a case with each of these configurations, in place of those that it is offered."""
    for one in found:

        def only(kind, layer, one=one):
            if kind.backward != one.kind.backward:
                return without_clusters(kind, layer)
            return (one._replace(kind=kind._replace(narrow=one.kind.narrow)),)

        monkeypatch.setattr(candidates, "select_configs", only)
        check(case)


@pytest.mark.parametrize(
    ("mode", "dtype", "hidden_size", "batch"),
    [
        ("lstm", "float16", 1000, 40),
        ("lstm", "float16", 1536, 64),
        ("lstm", "float32", 1000, 40),
        ("gru", "bfloat16", 1413, 33),
        ("rnn_tanh", "float32", 1760, 20),
        ("rnn_relu", "float32", 900, 30),
    ],
)
@pytest.mark.parametrize("layout", ["dense", "packed"])
def test_forwards_of_large_layers(mode, dtype, hidden_size, batch, layout, monkeypatch):
    """Test the kernels offered if L2 keeps no weights from one step to the next."""
    chip = OwnCandidates(cupy_memory()).chip()
    layer = Layer(batch, 1, chip._replace(l2_bytes=0))
    kind = Kind(mode, hidden_size, dtype, training=True)
    kind = kind._replace(narrow=kind.can_be_narrow)
    wide = [one for one in find_gathers(kind, layer) if one.rows > 16 or one.chunks > 1]
    found = first(wide, layer, 2) + first([one for one in wide if one.stream_ring], layer)
    if not found:
        pytest.skip("this device has no room for one")
    assert all(one.far for one in found)
    spec = RNNSpec(mode=mode, input_size=24, hidden_size=hidden_size, dtype=dtype)
    check_each(found, case_of(spec, 5, batch, layout=layout), monkeypatch)


@pytest.mark.parametrize("layout", ["dense", "batch_first_lengths", "packed"])
@pytest.mark.parametrize("dtype", OWN.dtypes)
@pytest.mark.parametrize("mode", conformance.MODES)
@pytest.mark.parametrize("exchange", ["in clusters", "through memory"], indirect=True)
def test_layers_at_once(mode, dtype, layout, exchange):
    spec = RNNSpec(mode=mode, input_size=24, hidden_size=53, num_layers=3, dtype=dtype)
    case = case_of(spec, 9, 19, layout=layout)
    (forward, backward), *_ = OwnCandidates(cupy_memory())._pairs(case.problem)
    assert (forward.kind.layers, backward.kind.layers) == (3, 3)
    assert forward.cluster == backward.cluster == (exchange == "in clusters")
    check(case)


@pytest.mark.parametrize("layout", ["dense", "batch_first_lengths", "packed"])
@pytest.mark.parametrize("dtype", OWN.dtypes)
@pytest.mark.parametrize("mode", conformance.MODES)
@pytest.mark.parametrize(
    ("hidden_size", "division"), [(53, (4, 4, 1)), (45, (8, 2, 2)), (100, (8, 1, 8))]
)
def test_whole_rows(mode, dtype, layout, hidden_size, division, monkeypatch):
    parts, rows, blocks = division

    def chosen(kind, *_):
        return (of_whole_rows(kind, rows, parts, blocks),)

    monkeypatch.setattr(candidates, "select_whole_rows", chosen)
    spec = RNNSpec(mode=mode, input_size=24, hidden_size=hidden_size, num_layers=2, dtype=dtype)
    case = case_of(spec, 9, 19, layout=layout)
    (forward, backward), *_ = OwnCandidates(cupy_memory())._pairs(case.problem)
    assert forward.parts == backward.parts == parts
    check(case)


@pytest.fixture
def narrow(monkeypatch):
    """Offer forward kernels in float32 with recurrent products in float16, for any size."""
    for other in ("select_whole_rows", "select_layer_clusters", "select_layers_at_once"):
        monkeypatch.setattr(candidates, other, lambda *_: ())

    def narrow_alone(kind, layer):
        return without_clusters(kind._replace(narrow=kind.can_be_narrow), layer)

    monkeypatch.setattr(candidates, "select_configs", narrow_alone)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("layout", ["dense", "batch_first_lengths", "packed"])
@pytest.mark.parametrize("hidden_size", [53, 331, 1025])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_products_of_float16(mode, hidden_size, layout):
    spec = RNNSpec(
        mode=mode, input_size=24, hidden_size=hidden_size, num_layers=2, bidirectional=True
    )
    case = case_of(spec, 9, 19, layout=layout)
    (forward, _), *_ = OwnCandidates(cupy_memory())._pairs(case.problem)
    assert forward.kind.narrow
    check(case)


@pytest.mark.parametrize("batch", [65, 256])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_one_step_of_many_rows(mode, batch):
    spec = RNNSpec(mode=mode, input_size=24, hidden_size=264, num_layers=2, dtype="float16")
    case = case_of(spec, 1, batch)
    assert OwnCandidates(cupy_memory()).offers(case.problem) == ("step",)
    check(case)


@pytest.mark.parametrize("layout", ["dense", "batch_first", "packed"])
@pytest.mark.parametrize("hidden_size", [53, 264, 1025])
@pytest.mark.parametrize("dtype", OWN.dtypes)
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_one_step(mode, dtype, hidden_size, layout):
    sizes = {"input_size": 24, "hidden_size": hidden_size, "num_layers": 2, "bidirectional": True}
    case = case_of(RNNSpec(mode=mode, dtype=dtype, **sizes), 1, 19, layout=layout)
    assert OwnCandidates(cupy_memory()).offers(case.problem) == ("step",)
    check(case)


@pytest.mark.parametrize("layout", ["dense", "batch_first_lengths", "packed"])
@pytest.mark.parametrize("hidden_size", [53, 256])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_products_of_float16_in_clusters(mode, hidden_size, layout, monkeypatch):
    def narrow_alone(kind, layer):
        return clusters_first(kind._replace(narrow=kind.can_be_narrow), layer)

    monkeypatch.setattr(candidates, "select_whole_rows", lambda *_: ())
    monkeypatch.setattr(candidates, "select_configs", narrow_alone)
    spec = RNNSpec(mode=mode, input_size=24, hidden_size=hidden_size, bidirectional=True)
    case = case_of(spec, 9, 19, layout=layout)
    (forward, _), *_ = OwnCandidates(cupy_memory())._pairs(case.problem)
    assert forward.kind.narrow
    assert forward.cluster
    check(case)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("factor", [1e-20, 1e4, 1e12])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_products_of_float16_with_states_of_any_size(mode, factor):
    spec = RNNSpec(mode=mode, input_size=24, hidden_size=200)
    rng = np.random.default_rng(0)

    def normal(scale, shape):
        return cupy.asarray(rng.normal(0, scale, shape), "float32")

    x, h_0 = normal(1, (9, 19, 24)), normal(1, (1, 19, 200))
    h_0[:, ::2] *= factor
    arrays = [normal(0.05, one.shape) for one in spec.parameter_shapes()]
    arrays[1] /= max(1, factor)  # else a gate could be anything: TF32 rounds what is added to it
    weights = dnnffi.RNNWeights.pack(arrays, spec)
    hx = (h_0, cupy.zeros_like(h_0)) if mode == "lstm" else h_0
    strict = {"algorithm": "standard", "math": "strict"}
    found, expected = (
        cupy.asnumpy(getattr(dnnffi, mode)(x, hx, weights, options=options)[0])
        for options in (by_own, strict)
    )
    for row in range(19):  # large rows hide nothing of others
        assert conformance.deviation(found[:, row], expected[:, row]) < 5e-3, row


@pytest.mark.parametrize("bounds", [(-0.25, 0.125), (0.0, 0.0)])
@pytest.mark.parametrize("clip_nan", ["propagate", "clip"])
def test_clipping(bounds, clip_nan):
    options = OPTIONS._replace(clip=bounds, clip_nan=clip_nan)
    spec = RNNSpec(mode="lstm", input_size=8, hidden_size=40, num_layers=2)
    check(case_of(spec, 9, 5, options=options))


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_strict_keeps_the_digits_of_small_numbers(mode):
    """The error is relative to each number: no x, weight or dy is negative, so no sum cancels."""
    rng = np.random.default_rng(0)
    spec = RNNSpec(mode=mode, input_size=8, hidden_size=72, bias=False)
    exact = RNNSpec(mode=mode, input_size=8, hidden_size=72, bias=False, dtype="float64")
    x = rng.uniform(0.5e-4, 1e-4, spec.x_shape(4, 5)).astype("float32")
    size = dnnffi.weight_layout(spec, "cudnn").size
    flat = rng.uniform(0.1, 1, size).astype("float32") / spec.hidden_size
    function = getattr(dnnffi, f"{mode}_forward")

    def run(spec, asarray, options):
        y, _, ctx = function(
            asarray(x), None, dnnffi.RNNWeights(asarray(flat), spec), options=options
        )
        gradients = ctx.backward(asarray(np.ones(y.shape)))
        return y, gradients.x, *gradients.weights.arrays()

    found = run(spec, partial(cupy.asarray, dtype="float32"), by_own | {"math": "strict"})
    expected = run(exact, partial(np.asarray, dtype="float64"), {})
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(cupy.asnumpy(one), other, rtol=1e-6)


@pytest.mark.parametrize("mode", ["lstm", "gru"])
@pytest.mark.parametrize(("hidden_size", "batch"), [(512, 64), (512, 200), (72, 11), (1536, 64)])
def test_every_candidate_agrees(mode, hidden_size, batch):
    spec = RNNSpec(mode=mode, input_size=32, hidden_size=hidden_size, dtype="float16")
    options = {"algorithm": "own", "tune": "now"}
    plan = dnnffi.RNNPlan(
        spec, batch=batch, steps=6, training=True, options=options, backend="cudnn"
    )
    own = {line.split(":")[0].strip() for line in plan.report().splitlines() if "  own " in line}
    assert len(own) >= 2
    assert "differ" not in plan.report()


def arrays(spec, steps, batch, seed=0):
    rng = np.random.default_rng(seed)
    size = dnnffi.weight_layout(spec, "cudnn").size
    bound = spec.hidden_size**-0.5
    flat = cupy.asarray(rng.uniform(-bound, bound, size).astype(spec.dtype))
    x = cupy.asarray(rng.standard_normal(spec.x_shape(steps, batch)).astype(spec.dtype))
    return x, dnnffi.RNNWeights(flat, spec)


SPEC = RNNSpec(mode="lstm", input_size=64, hidden_size=256, num_layers=2, dtype="float16")


def step(x, weights):
    y, _, ctx = dnnffi.lstm_forward(x, None, weights, options=by_own)
    grads = ctx.backward(y)
    return y, grads.x, grads.weights.flat


def same(found, expected):
    return all(bool((a == b).all()) for a, b in zip(found, expected, strict=True))


def test_the_same_bits_in_every_run():
    x, weights = arrays(SPEC, 20, 40)
    first = step(x, weights)
    for _ in range(200):
        assert same(step(x, weights), first)


def test_two_streams_at_once():
    problems = [arrays(SPEC, 30, 8, seed) for seed in range(2)]
    expected = [step(*problem) for problem in problems]
    cupy.cuda.Device().synchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in problems]
    for _ in range(100):
        found = []
        for stream, problem in zip(streams, problems, strict=True):
            with stream:
                found.append(step(*problem))
        cupy.cuda.Device().synchronize()
        for one, other in zip(found, expected, strict=True):
            assert same(one, other)


@pytest.mark.alone  # its threads have a minute
def test_eight_threads():
    wrong = []

    def work(number):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            problem = arrays(SPEC, 5 + number, 3 + number, number)
            first = step(*problem)
            for _ in range(50):
                found = step(*problem)
                stream.synchronize()
                if not same(found, first):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_graphs_side_by_side_with_other_work():
    x, weights = arrays(SPEC, 25, 40)
    expected = step(x, weights)
    graphs = []
    for _ in range(2):
        plan = dnnffi.RNNPlan(
            SPEC, batch=40, steps=25, training=True, options=by_own, backend="cudnn"
        )

        def train(plan=plan):
            y, _ = plan.forward(x, None, weights)
            (dx, _), gradient = plan.backward(y)
            return y, dx, gradient.flat

        graphs.append((plan, plan.capture(train)))
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    a = cupy.ones((2048, 2048), "float32")
    for _ in range(50):
        with streams[2]:
            a @ a
        found = []
        for (_, graph), stream in zip(graphs, streams, strict=False):
            with stream:
                found.append(graph.launch())
        cupy.cuda.Device().synchronize()
        for one in found:
            assert same(one, expected)


def test_launches_of_many_problems_in_turns():
    problems = [
        (mode, *arrays(RNNSpec(mode=mode, input_size=8, hidden_size=h, dtype=dtype), t, b))
        for mode, h, dtype in (
            ("lstm", 40, "float16"),
            ("gru", 72, "float32"),
            ("rnn_tanh", 33, "float16"),
        )
        for t, b in ((1, 1), (2, 9), (7, 17), (33, 5))
    ]

    def run(mode, x, weights):
        return getattr(dnnffi, mode)(x, None, weights, options=by_own)[0]

    first = [run(*problem) for problem in problems]
    order = np.random.default_rng(0).integers(0, len(problems), 5000)
    for number in order:
        assert same([run(*problems[number])], [first[number]])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row(value):
    x, weights = arrays(SPEC, 6, 5)
    expected = dnnffi.lstm(x, None, weights, options=by_own)[0]
    x[2, 3, 0] = value
    found = dnnffi.lstm(x, None, weights, options=by_own)[0]
    by_cudnn = dnnffi.lstm(x, None, weights, options={"algorithm": "standard"})[0]
    others = [0, 1, 2, 4]
    assert same([found[:, others]], [expected[:, others]])
    assert same([found[:2]], [expected[:2]])
    assert bool((cupy.isnan(found) == cupy.isnan(by_cudnn)).all())


@pytest.mark.parametrize("offset", [1, 3])
def test_arrays_that_begin_anywhere(offset):
    x, weights = arrays(SPEC, 6, 5)
    expected = step(x, weights)

    def moved(array):
        room = cupy.empty(array.size + offset, array.dtype)
        room[offset:] = array.reshape(-1)
        return room[offset:].reshape(array.shape)

    found = step(moved(x), dnnffi.RNNWeights(moved(weights.flat), SPEC))
    for one, other in zip(found, expected, strict=True):
        deviation = conformance.deviation(one, cupy.asnumpy(other).astype(np.float64))
        assert deviation <= 1e-3  # cuBLAS takes other algorithms there


def test_gradients_are_added():
    x, weights = arrays(SPEC, 6, 5)
    with dnnffi.RNNPlan(
        SPEC, batch=5, steps=6, training=True, options=by_own, backend="cudnn"
    ) as plan:
        y, _ = plan.forward(x, None, weights)
        plan.backward_data(y)
        once = cupy.asnumpy(plan.backward_weights().flat).astype(np.float64)
        total = dnnffi.RNNWeights(cupy.zeros_like(weights.flat), SPEC)
        for _ in range(3):
            y, _ = plan.forward(x, None, weights)
            plan.backward_data(y)
            plan.backward_weights(total, accumulate=True)
    assert conformance.deviation(total.flat, 3 * once) <= 2e-3


def dropping(spec, state, steps=20, batch=12, dropout=0.4, options=by_own):
    """A training step with dropout: y, dx and the gradient of the weights."""
    x, weights = arrays(spec, steps, batch)
    function = getattr(dnnffi, f"{spec.mode}_forward")
    y, _, ctx = function(x, None, weights, dropout=dropout, dropout_state=state, options=options)
    grads = ctx.backward(y)
    return y, grads.x, grads.weights.flat


@pytest.mark.parametrize("layout", conformance.LAYOUTS)
@pytest.mark.parametrize("mode", conformance.MODES)
@pytest.mark.parametrize("dtype", OWN.dtypes)
def test_dropout_is_the_reference_with_the_same_masks(mode, dtype, layout):
    seed = conformance.LAYOUTS.index(layout)
    spec = RNNSpec(
        mode=mode,
        input_size=5,
        hidden_size=40 - seed % 2,
        num_layers=3,
        bidirectional=bool(seed % 3),
        dtype=dtype,
    )
    rng = np.random.default_rng(seed)
    dropout = {"training": True, "dropout": 0.4, "options": OPTIONS}
    problem = problem_of(spec, layout, 7, 6, rng, **dropout)
    case = Case(problem, states=bool(seed % 2), seed=seed)
    given, state = conformance.arrays_of(case), dnnffi.DropoutState(seed)
    for number in range(2):
        keywords = {"dropout": 0.4, "dropout_state": state}
        _, found = conformance.run(case, given, cupy.asarray, "cudnn", {"tune": "off"}, **keywords)
        masks = own_masks(spec, problem.steps, problem.batch, 0.4, seed, 2 * number)
        conformance.assert_close(case, found, conformance.expected(case, given, masks), OWN)
    conformance.passed(problem)


@pytest.mark.parametrize("dropout", [0.0, 1.0])
def test_all_or_nothing_is_dropped(dropout):
    spec = RNNSpec(mode="gru", input_size=5, hidden_size=40, num_layers=2)
    case = case_of(spec, 6, 5)
    given = conformance.arrays_of(case)
    keywords = {"dropout": dropout, "dropout_state": dnnffi.DropoutState(1)}
    _, found = conformance.run(case, given, cupy.asarray, "cudnn", {"tune": "off"}, **keywords)
    masks = own_masks(spec, 6, 5, dropout, 1)
    conformance.assert_close(case, found, conformance.expected(case, given, masks), OWN)


def test_the_same_seed_drops_the_same_in_every_geometry():
    for hidden in (39, 264):
        spec = RNNSpec(mode="lstm", input_size=8, hidden_size=hidden, num_layers=3, dtype="float16")
        first, second = dnnffi.DropoutState(7), dnnffi.DropoutState(7)
        one, two = dropping(spec, first), dropping(spec, first)
        assert same(dropping(spec, second), one)
        assert same(dropping(spec, second), two)
        assert not same(one[:1], two[:1])
        assert not same(dropping(spec, dnnffi.DropoutState(8))[:1], one[:1])
        tuned = dropping(spec, dnnffi.DropoutState(7), options={"algorithm": "own", "tune": "now"})
        for found, expected in zip(tuned, one, strict=True):
            expected = cupy.asnumpy(expected).astype(np.float64)
            assert conformance.deviation(found, expected) <= 1e-2


def test_a_saved_state_goes_on_where_it_was():
    state = dnnffi.DropoutState(2**64 - 3)
    dropping(SPEC, state)
    saved = state.save()
    assert np.frombuffer(saved["states"], np.uint64).tolist() == [2**64 - 3, 1]
    expected = dropping(SPEC, state)
    assert same(dropping(SPEC, dnnffi.DropoutState.restore(saved)), expected)


def test_a_graph_that_is_launched_again_draws_other_masks():
    x, weights = arrays(SPEC, 20, 12)
    state, again = dnnffi.DropoutState(5), dnnffi.DropoutState(5)
    given = {"training": True, "dropout": 0.4, "options": by_own}
    plan = dnnffi.RNNPlan(SPEC, batch=12, steps=20, dropout_state=state, **given, backend="cudnn")

    def train():
        y, _ = plan.forward(x, None, weights)
        (dx, _), gradient = plan.backward(y)
        return y, dx, gradient.flat

    graph = plan.capture(train)  # runs the step once
    expected = [dropping(SPEC, again) for _ in range(6)]
    for one in expected[1:5]:
        found = graph.launch()
        cupy.cuda.Device().synchronize()
        assert same(found, one)
    assert same(dropping(SPEC, state), expected[5])


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_training_of_one_step_in_a_graph(mode):
    sizes = {"input_size": 24, "hidden_size": 264, "num_layers": 3, "bidirectional": True}
    spec = RNNSpec(mode=mode, dtype="float16", **sizes)
    x, weights = arrays(spec, 1, 12)
    plan = dnnffi.RNNPlan(spec, batch=12, steps=1, training=True, options=by_own, backend="cudnn")

    def train():
        y, _ = plan.forward(x, None, weights)
        (dx, _), gradient = plan.backward(y)
        return y, dx, gradient.flat

    expected = [one.copy() for one in train()]
    graph = plan.capture(train)
    found = graph.launch()
    cupy.cuda.Device().synchronize()
    assert same(found, expected)


def test_calls_that_are_replayed_draw_what_direct_calls_draw():
    tuned, state = {"algorithm": "own", "tune": "now"}, dnnffi.DropoutState(5)
    x, weights = arrays(SPEC, 20, 12)
    given = {"training": True, "dropout": 0.4, "options": tuned}
    with dnnffi.RNNPlan(
        SPEC, batch=12, steps=20, dropout_state=state, **given, backend="cudnn"
    ) as plan:
        y = cupy.empty(SPEC.y_shape(20, 12), SPEC.dtype)
        h, c = (cupy.empty(SPEC.h_shape(12), SPEC.dtype) for _ in range(2))
        again = dnnffi.DropoutState(5)
        for _ in range(5):
            plan.forward(x, None, weights, out=(y, (h, c)))
            expected = cupy.asnumpy(dropping(SPEC, again)[0]).astype(np.float64)
            assert conformance.deviation(y, expected) <= 1e-2


def test_uses_of_a_state_on_two_streams_are_ordered():
    once, state = dnnffi.DropoutState(6), dnnffi.DropoutState(6)
    expected = [dropping(SPEC, once)[0] for _ in range(6)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    found = []
    for number in range(6):
        with streams[number % 2]:
            found.append(dropping(SPEC, state)[0])
    cupy.cuda.Device().synchronize()
    assert same(found, expected)


def test_without_a_named_algorithm_our_kernels_drop_and_cudnn_is_only_compared_with():
    state = dnnffi.DropoutState(3)
    given = {"training": True, "dropout": 0.4, "dropout_state": state}
    with dnnffi.RNNPlan(
        SPEC, batch=5, steps=6, options={"tune": "now"}, **given, backend="cudnn"
    ) as plan:
        assert plan._buffers.plan.finder.choice.direct.startswith("own ")
        assert "cudnn standard: draws other random numbers" in plan.report()
    dropping(SPEC, state)
    with dnnffi.RNNPlan(
        SPEC,
        batch=5,
        steps=6,
        options={"algorithm": "standard"},
        training=True,
        dropout=0.4,
        backend="cudnn",
    ):
        pass
    with pytest.raises(
        ValueError, match="dropout_state belongs to cudnn device 0, algorithm 'own'"
    ):
        dnnffi.RNNPlan(
            SPEC, batch=5, steps=6, options={"algorithm": "standard"}, **given, backend="cudnn"
        )


@pytest.mark.parametrize(
    ("fields", "options", "words"),
    [
        ({"dtype": "float64"}, {}, "float64"),
        ({"proj_size": 3}, {}, "projection"),
    ],
)
def test_refusals_name_the_limit(fields, options, words):
    spec = RNNSpec(mode="lstm", input_size=4, hidden_size=8, **fields)
    x, weights = arrays(spec, 3, 2)
    with pytest.raises(UnsupportedError, match=words):
        dnnffi.lstm(x, None, weights, options=by_own | options)


def test_memory_beside_cudnns_standard_algorithm():
    """Workspace and reserve space together; where cuDNN's own need is small, 32 MiB of cuBLAS."""
    for dtype in ("float16", "float32"):
        spec = RNNSpec(mode="lstm", input_size=512, hidden_size=512, dtype=dtype)
        needed = {}
        for algorithm in ("own", "standard"):
            options = RNNOptions(algorithm=algorithm)
            problem = RNNProblem.dense(spec, steps=100, batch=64, training=True, options=options)
            executor = RNNExecutor(problem)
            needed[algorithm] = executor.workspace_bytes + executor.reserve_bytes
        assert needed["own"] <= 1.2 * needed["standard"] + 32 * 2**20, needed
