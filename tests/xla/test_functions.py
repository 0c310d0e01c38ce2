"""Networks on JAX arrays compared with the NumPy reference: results, gradients, dropout."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.test_util import check_grads
from xla.jax_programs import TOLERANCES, assert_close, network

import dnnffi
from dnnffi import jax as djax
from dnnffi.jax.rnn import functions, scan
from dnnffi.spec.options import rnn_options
from dnnffi.testing import rnn as strategies

SPEC = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2, bidirectional=True)
PROBLEM = dnnffi.RNNProblem.dense(SPEC, steps=5, batch=4)
PADDED = dnnffi.RNNProblem.dense(SPEC, steps=5, batch=4, lengths=(2, 5, 0, 3))
IMPLEMENTATIONS = ("scan", "reference")

some_problems = strategies.problems(
    strategies.specs(max_size=5, max_layers=2),
    layouts=("sequence_major", "batch_major"),
    training=False,
    with_options=True,
)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def expected(problem, seed=0):
    """(y, states), and the gradients of x, states and weights, of NumPy's reference."""
    found = strategies.inputs(problem, seed)
    forward = getattr(dnnffi, f"{problem.spec.mode}_forward")
    keywords = strategies.keywords(problem)
    y, states, ctx = forward(found.x, found.hx, found.weights, **keywords)
    grads = ctx.backward(found.dy, found.dhx)
    return (y, states), (grads.x, grads.hx, grads.weights)


@settings(max_examples=15)
@given(some_problems)
def test_the_scan_is_the_reference(problem):
    one = network(problem, "scan", flat=False)
    results, pull = jax.vjp(one.function, *one.arrays)
    found = strategies.inputs(problem, 0)
    gradients = pull(jax.tree.map(jnp.asarray, (found.dy, found.dhx)))
    tolerance = TOLERANCES[problem.spec.dtype]
    assert_close((results, gradients), expected(problem), tolerance, terms=2)


@settings(max_examples=15)
@given(some_problems)
def test_the_reference_in_a_handler_is_the_reference(problem):
    one = network(problem, "reference", flat=False)
    results, pull = jax.vjp(one.function, *one.arrays)
    found = strategies.inputs(problem, 0)
    gradients = pull(jax.tree.map(jnp.asarray, (found.dy, found.dhx)))
    assert_close((results, gradients), expected(problem), 0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_flat_array_is_the_list_of_its_arrays(implementation):
    apart = network(PADDED, implementation, flat=False)
    flat = network(PADDED, implementation)
    assert_close(flat.function(*flat.arrays), apart.function(*apart.arrays), 1e-5)
    gradient = jax.grad(flat.loss, 2)(*flat.arrays)
    assert_close(
        djax.unpack(gradient, SPEC, layout="cudnn"), jax.grad(apart.loss, 2)(*apart.arrays), 1e-5
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_no_states_are_zeros(implementation):
    one = network(PADDED, implementation)
    x, hx, weights = one.arrays
    zeros = jax.tree.map(jnp.zeros_like, hx)
    assert_close(one.function(x, None, weights), one.function(x, zeros, weights), 1e-5)
    gradients = jax.grad(one.loss, (0, 2))
    assert_close(gradients(x, None, weights), gradients(x, zeros, weights), 1e-5)


@pytest.mark.parametrize("implementation", [None, "scan"])
def test_lengths_on_the_device_are_those_of_the_host(implementation):
    one = network(PADDED, "scan")
    on_device = network(PADDED, implementation, lengths=jnp.asarray(PADDED.lengths))
    gradients = [jax.jit(jax.grad(n.loss, (0, 1, 2)))(*n.arrays) for n in (on_device, one)]
    assert_close(*gradients, 1e-5)
    traced = jax.jit(lambda x, hx, w, lengths: one.function(x, hx, w, lengths=lengths))
    assert_close(traced(*one.arrays, jnp.asarray(PADDED.lengths)), one.function(*one.arrays), 1e-5)


def test_the_scan_is_compiled_once_for_all_lengths(monkeypatch):
    traced = []
    compute = scan.network
    monkeypatch.setattr(scan, "network", lambda *a, **k: traced.append(a) or compute(*a, **k))
    x, hx, weights = network(PROBLEM, "scan").arrays
    jax.clear_caches()
    for length in (1, 2, 3):
        keywords = {"spec": SPEC, "layout": "cudnn", "lengths": (length, 5, 1, 3)}
        djax.lstm(x, hx, weights, implementation="scan", **keywords)
    assert len(traced) == 1


def test_what_is_behind_a_row_gets_nowhere():
    one = network(PADDED, "scan")
    x, hx, weights = one.arrays
    is_padding = jnp.arange(5)[:, None] >= jnp.asarray(PADDED.lengths)
    spoiled = jnp.where(is_padding[..., None], jnp.nan, x)
    gradients = jax.grad(one.loss, (0, 1, 2))
    assert_close(gradients(spoiled, hx, weights), gradients(x, hx, weights), 0)


def test_an_unnamed_implementation_on_a_cpu_is_the_scan():
    one = network(PROBLEM, None)
    assert "scan" in str(jax.make_jaxpr(one.function)(*one.arrays))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_empty_batch_is_empty(implementation):
    one = network(PROBLEM, implementation)
    hx = tuple(state[:, :0] for state in one.arrays[1])
    y, (h_n, c_n) = one.function(one.x[:, :0], hx, one.arrays[2])
    assert (y.shape, h_n.shape, c_n.shape) == ((5, 0, 8), (4, 0, 4), (4, 0, 4))
    gradient = jax.grad(one.loss, 2)(one.x[:, :0], hx, one.arrays[2])
    assert not gradient.any()


@pytest.mark.parametrize("math", ["default", "strict"])
def test_strict_products_of_the_scan_are_of_the_highest_precision(math):
    problem = PROBLEM._replace(options=rnn_options({"math": math}, "lstm"))
    one = network(problem, "scan")
    text = str(jax.make_jaxpr(one.function)(*one.arrays))
    assert ("HIGHEST" in text) == (math == "strict")


# Dropout


@pytest.mark.parametrize("lengths", [None, (2, 5, 1, 3)])
def test_a_key_drops_the_same_whatever_computes(lengths):
    problem = dnnffi.RNNProblem.dense(SPEC, steps=5, batch=4, lengths=lengths)
    keywords = {"dropout": 0.5, "key": jax.random.key(3)}
    scan, reference = (network(problem, name, **keywords) for name in IMPLEMENTATIONS)
    gradients = [jax.value_and_grad(n.loss, (0, 1, 2))(*n.arrays) for n in (scan, reference)]
    assert_close(*gradients)
    other = network(problem, "reference", dropout=0.5, key=jax.random.key(4))
    assert float(other.loss(*other.arrays)) != float(gradients[1][0])
    none = network(problem, "reference")
    assert float(none.loss(*none.arrays)) != float(gradients[1][0])


def test_of_a_layer_between_others_a_share_is_dropped_and_the_rest_is_scaled():
    # The second layer hands on what it reads: one unit, weights 1, no states.
    one, zero = jnp.ones((1, 1)), jnp.zeros((1, 1))
    weights = [one, zero, one, zero]
    x = jnp.ones((100, 50, 1), "float32")
    weights = [array.astype("float32") for array in weights]
    y, _ = djax.rnn_relu(x, None, weights, num_layers=2, dropout=0.25, key=jax.random.key(0))
    assert set(np.unique(y)) == {0, np.float32(1 / 0.75)}
    assert 0.23 < float((y == 0).mean()) < 0.27
    y, _ = djax.rnn_relu(x, None, weights, num_layers=2, dropout=1.0, key=jax.random.key(0))
    assert not y.any()


def test_every_layer_has_a_mask_of_its_own():
    # Layers that hand on what they read: of two masks a quarter is left.
    one, zero = jnp.ones((1, 1), "float32"), jnp.zeros((1, 1), "float32")
    x = jnp.ones((100, 50, 1), "float32")
    keywords = {"num_layers": 3, "dropout": 0.5, "key": jax.random.key(0)}
    y, _ = djax.rnn_relu(x, None, [one, zero] * 3, **keywords)
    assert 0.23 < float((y != 0).mean()) < 0.27


def test_layers_one_by_one_are_the_network():
    # The dropout is so small that nothing is dropped; no field has its default value.
    spec = replace(SPEC, bias=False, proj_size=2, dtype="float64")
    problem = dnnffi.RNNProblem.dense(spec, steps=5, batch=4, lengths=(2, 5, 1, 3))
    apart = network(problem, "reference", dropout=1e-12, key=jax.random.key(0))
    at_once = network(problem, "scan")
    assert_close(apart.function(*apart.arrays), at_once.function(*at_once.arrays))


def test_a_mapped_key_drops_for_each_row_of_the_map():
    one = network(PROBLEM, "reference", dropout=0.5)
    keys = jax.random.split(jax.random.key(0), 3)
    mapped = jax.vmap(lambda key: one.function(*one.arrays, key=key)[0])(keys)
    each = [one.function(*one.arrays, key=key)[0] for key in keys]
    assert_close(mapped, jnp.stack(each), 1e-5)
    assert float(abs(mapped[0] - mapped[1]).max()) > 0


# Derivatives of the scan


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_the_scan_has_derivatives_of_both_modes_and_of_second_order(mode):
    spec = dnnffi.RNNSpec(
        mode=mode,
        input_size=2,
        hidden_size=3,
        bidirectional=True,
        proj_size=2 if mode == "lstm" else 0,
        dtype="float64",
    )
    problem = dnnffi.RNNProblem.dense(spec, steps=3, batch=2, lengths=(3, 1))
    one = network(problem, "scan")

    def loss(*arrays):
        return one.function(*arrays)[0]

    check_grads(loss, one.arrays, order=2, modes=("fwd", "rev"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize(("mode", "proj_size"), [("lstm", 0), ("lstm", 2), ("gru", 0)])
def test_no_loop_adds_up_gradients_of_weights(mode, proj_size, platform, monkeypatch):
    monkeypatch.setattr(functions, "platform_of", lambda operands: platform)
    spec = dnnffi.RNNSpec(mode=mode, input_size=3, hidden_size=4, proj_size=proj_size)
    one = network(dnnffi.RNNProblem.dense(spec, steps=5, batch=4), "scan")
    jaxpr = jax.make_jaxpr(jax.grad(one.loss, 2))(*one.arrays)
    forward, backward = [str(e.params["jaxpr"]) for e in equations(jaxpr.jaxpr) if is_scan(e)]
    # On a CPU each step also multiplies its x.
    assert forward.count("dot_general") == 1 + bool(proj_size) + (platform == "cpu")
    assert backward.count("dot_general") == 1 + bool(proj_size)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_the_scan_of_a_device_is_that_of_a_cpu(mode, monkeypatch):
    spec = dnnffi.RNNSpec(mode=mode, input_size=3, hidden_size=4, num_layers=2, bidirectional=True)
    one = network(dnnffi.RNNProblem.dense(spec, steps=13, batch=4, lengths=(13, 1, 9, 10)), "scan")
    results = []
    for platform in ("cpu", "cuda"):
        monkeypatch.setattr(functions, "platform_of", lambda operands, name=platform: name)
        results.append((one.function(*one.arrays), jax.grad(one.loss, (0, 1, 2))(*one.arrays)))
    found, expected = (jax.tree.leaves(result) for result in results)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 4])
def test_inference_on_a_cpu_copies_a_flat_array_once(batch):
    spec = dnnffi.RNNSpec(mode="lstm", input_size=96, hidden_size=96)
    weights = djax.init(jax.random.key(0), spec)
    x = jnp.ones((2, batch, 96), "float32")
    call = partial(djax.lstm, implementation="scan")
    compiled = jax.jit(lambda x, weights: call(x, None, weights)[0]).lower(x, weights).compile()
    copied = compiled.memory_analysis().temp_size_in_bytes / weights.flat.nbytes
    assert copied < 1.2


@pytest.mark.parametrize("axes", [(1, None), (None, 0), (1, 0)])
def test_a_single_row_may_be_vectorized(axes):
    spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, proj_size=2)
    count = 3
    x = jax.random.normal(jax.random.key(0), (5, count, 3), "float32")
    flats = [djax.init(jax.random.key(number), spec).flat for number in range(count)]
    if axes[0] is None:
        x = x[:, 0]
    flat = flats[0] if axes[1] is None else jnp.stack(flats)

    def call(x, flat):
        return djax.lstm(x[:, None], None, flat, spec=spec, layout="cudnn")[0][:, 0]

    expected = [
        call(x if axes[0] is None else x[:, n], flat if axes[1] is None else flat[n])
        for n in range(count)
    ]
    for run in (jax.vmap(call, axes), jax.jit(jax.vmap(call, axes)), jax.vmap(jax.jit(call), axes)):
        np.testing.assert_allclose(run(x, flat), jnp.stack(expected), rtol=1e-5, atol=1e-6)


def test_a_program_of_the_scan_on_a_cpu_can_be_exported():
    spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
    weights = djax.init(jax.random.key(0), spec)
    for batch in (1, 2):
        x = jnp.ones((5, batch, 3), "float32")

        def call(x, flat):
            return djax.gru(x, None, flat, spec=spec, layout="cudnn", implementation="scan")[0]

        exported = jax.export.export(jax.jit(call))(x, weights.flat).serialize()
        found = jax.export.deserialize(exported).call(x, weights.flat)
        np.testing.assert_allclose(found, call(x, weights.flat), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "platform", "expected"),
    [
        (None, "cpu", 1),
        (None, "cuda", 10),
        ({"unroll": 3}, "cpu", 3),
        ({"unroll": np.int64(2), "math": "strict"}, "cuda", 2),
        ({"unroll": 99}, "cpu", 99),
    ],
)
def test_a_round_of_the_loop_has_as_many_steps_as_asked_for(
    options, platform, expected, monkeypatch
):
    monkeypatch.setattr(functions, "platform_of", lambda operands: platform)
    x, hx, weights = network(PROBLEM, "scan").arrays
    call = partial(djax.lstm, spec=SPEC, layout="cudnn", implementation="scan")
    jaxpr = jax.make_jaxpr(partial(call, options=options))(x, hx, weights)
    assert {e.params["unroll"] for e in equations(jaxpr.jaxpr) if is_scan(e)} == {expected}
    found = call(x, hx, weights, options=options)[0]
    np.testing.assert_allclose(found, call(x, hx, weights)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["lstm", "rnn_relu"])
def test_a_tangent_of_some_arguments_alone_is_right(mode):
    spec = dnnffi.RNNSpec(mode=mode, input_size=2, hidden_size=3, dtype="float64")
    one = network(dnnffi.RNNProblem.dense(spec, steps=4, batch=2), "scan")
    gradients = jax.grad(one.loss, (0, 1, 2))(*one.arrays)
    for number, expected in enumerate(gradients):
        found = jax.grad(one.loss, number)(*one.arrays)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def is_scan(eqn):
    return eqn.primitive.name == "scan"


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", None)
            if inner is not None and not is_scan(eqn):
                yield from equations(getattr(inner, "jaxpr", inner))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("place", [0, 1], ids=["y", "c_n"])
def test_an_infinite_gradient_stops_at_a_bound_of_clipping(implementation, place):
    spec = dnnffi.RNNSpec(mode="lstm", input_size=2, hidden_size=3, dtype="float64")
    weights = list(
        map(jnp.asarray, dnnffi.RNNWeights.random(spec, np.random.default_rng(0)).arrays())
    )
    x, h_0 = jnp.ones((3, 1, 2)), jnp.zeros((1, 1, 3))

    def results(c_0):
        given = {"options": {"clip": (-0.5, 0.5)}, "implementation": implementation}
        y, (_, c_n) = djax.lstm(x, (h_0, c_0), weights, **given)
        return y, c_n

    found, pull = jax.vjp(results, jnp.full((1, 1, 3), 5.0))
    given = [jnp.zeros_like(result) for result in found]
    given[place] = jnp.full_like(given[place], jnp.inf)
    assert not pull(tuple(given))[0].any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_gate_of_nan_lets_the_gradient_of_relu_through(implementation):
    weights = [jnp.ones((1, 1)), jnp.zeros((1, 1))]

    def loss(x):
        return djax.rnn_relu(x, None, weights, implementation=implementation)[0].sum()

    x = jnp.array([jnp.nan, -1.0]).reshape(1, 2, 1)
    assert jax.grad(loss)(x).ravel().tolist() == [1, 0]


def test_a_clipped_cell_lets_no_gradient_through():
    options = rnn_options({"clip": (-1e-3, 1e-3)}, "lstm")
    problem = PROBLEM._replace(options=options)
    scan, reference = (network(problem, name) for name in IMPLEMENTATIONS)
    gradients = [jax.grad(n.loss, (0, 1, 2))(*n.arrays) for n in (scan, reference)]
    assert_close(*gradients)
