"""Several devices: shard_map, and sharded arrays under jit."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import P
from xla.jax_programs import assert_close, network

import dnnffi
from dnnffi import jax as djax

SPEC = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, bidirectional=True)
PROBLEM = dnnffi.RNNProblem.dense(SPEC, steps=5, batch=4)
BATCH = (P(None, "d"), (P(None, "d"), P(None, "d")), P())
TYPES = (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit)


@pytest.fixture(params=TYPES, ids=str)
def mesh(request):
    if jax.device_count() < 2:
        pytest.skip("JAX was imported before it was told to have two devices")
    return jax.make_mesh((2,), ("d",), axis_types=(request.param,))


def placed(mesh, arrays):
    return jax.device_put(arrays, jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), BATCH))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("implementation", ["scan", "reference"])
def test_gradients_of_weights_are_summed_over_the_mesh(mesh, implementation, check_vma):
    one = network(PROBLEM, implementation)
    arrays = placed(mesh, one.arrays)

    def squares(*arrays):
        return (one.function(*arrays)[0] ** 2).sum()

    expected = jax.grad(squares, (0, 1, 2))(*one.arrays)
    whole = jax.shard_map(
        lambda *arrays: jax.lax.psum(squares(*arrays), "d"),
        mesh=mesh,
        in_specs=BATCH,
        out_specs=P(),
        check_vma=check_vma,
    )
    assert_close(jax.jit(jax.grad(whole, (0, 1, 2)))(*arrays), expected)

    def local(*arrays):
        x, hx, weights = jax.grad(squares, (0, 1, 2))(*arrays)
        return x, hx, weights if check_vma else jax.lax.psum(weights, "d")

    inside = jax.shard_map(local, mesh=mesh, in_specs=BATCH, out_specs=BATCH, check_vma=check_vma)
    assert_close(jax.jit(inside)(*arrays), expected)


@pytest.mark.parametrize("implementation", ["scan", "reference"])
def test_without_states_inside_a_mesh(mesh, implementation):
    one = network(PROBLEM, implementation)
    x, _, weights = placed(mesh, one.arrays)
    inside = jax.shard_map(
        lambda x, w: one.function(x, None, w)[0],
        mesh=mesh,
        in_specs=(P(None, "d"), P()),
        out_specs=P(None, "d"),
    )
    expected = one.function(one.x, None, one.arrays[2])[0]
    assert_close(jax.jit(inside)(x, weights), expected)


@pytest.mark.parametrize("mapped", [False, True], ids=["batch", "map"])
def test_a_sharded_batch_stays_sharded(mesh, mapped):
    one = network(PROBLEM, "reference")

    def program(x, hx, weights):
        if mapped:
            loss = jax.vmap(one.loss, (1, 1, None))
            each = (array[:, :, None] for array in (x, *hx))
            x, *hx = each
            return jax.grad(lambda *a: loss(*a).sum(), (0, 1, 2))(x, tuple(hx), weights)
        return one.function(x, hx, weights), jax.grad(one.loss, (0, 1, 2))(x, hx, weights)

    compiled = jax.jit(program)
    arrays = placed(mesh, one.arrays)
    found = compiled(*arrays)
    assert_close(found, compiled(*one.arrays))
    *batched, weights = jax.tree.leaves(found)
    assert all(not array.is_fully_replicated for array in batched)
    assert weights.is_fully_replicated
    assert "all-gather" not in compiled.lower(*arrays).compile().as_text()


@pytest.fixture
def explicit():
    """A mesh of explicit axes; the second one has one device."""
    if jax.device_count() < 2:
        pytest.skip("JAX was imported before it was told to have two devices")
    types = (jax.sharding.AxisType.Explicit,) * 2
    return jax.make_mesh((2, 1), ("d", "e"), axis_types=types)


def stacked(arrays, times=(1, 2, 3, 4)):
    """Arrays with an axis more in front."""
    return jax.tree.map(lambda array: jax.numpy.stack([n * array for n in times]), arrays)


DIVIDED = {
    "map": P("d", None, None, None),
    "batch": P(None, None, "d", None),
    "both": P("e", None, "d", None),
    "both, the map by two": P("d", None, "e", None),
}


@pytest.mark.parametrize("lengths", [None, (1, 5, 3, 2)])
@pytest.mark.parametrize("place", DIVIDED.values(), ids=list(DIVIDED))
def test_what_is_mapped_lies_as_before_in_a_mesh_of_explicit_axes(explicit, place, lengths):
    one = network(PROBLEM._replace(lengths=lengths), "reference")
    mapped = jax.vmap(one.function, (0, 0, None))

    def squares(*arrays):
        y, states = mapped(*arrays)
        return sum((array**2).sum() for array in (y, *states))

    def program(*arrays):
        return mapped(*arrays), jax.grad(squares, (0, 1, 2))(*arrays)

    x, hx, weights = one.arrays
    batched = stacked((x, hx))
    given = jax.device_put(batched, jax.NamedSharding(explicit, place))
    everywhere = jax.device_put(weights, jax.NamedSharding(explicit, P(None)))
    compiled = jax.jit(program)
    found = compiled(*given, everywhere)
    assert_close(found, compiled(*batched, weights))
    *results, of_weights = jax.tree.leaves(found)
    assert all(array.sharding.spec == place for array in results)
    assert of_weights.is_fully_replicated
    if lengths is None and place != DIVIDED["both"]:  # there each device has rows of all maps
        text = compiled.lower(*given, everywhere).compile().as_text()
        assert "all-to-all" not in text
        assert "all-gather" not in text


@pytest.mark.parametrize(
    ("mode", "bias", "resets"),
    [("lstm", True, False), ("gru", False, False), ("lstm", True, True)],
    ids=["lstm", "gru without biases", "resets to zero"],
)
def test_gradients_of_the_scan_over_an_explicit_batch(explicit, mode, bias, resets):
    spec = dnnffi.RNNSpec(mode=mode, input_size=3, hidden_size=4, bias=bias)
    one = network(dnnffi.RNNProblem.dense(spec, steps=5, batch=4), "scan", with_states=False)
    x, _, weights = one.arrays
    options = {"spec": spec, "implementation": "scan"}
    if resets:
        options["resets"] = jax.numpy.zeros((5, 4), bool).at[2].set(True)
    gradient = jax.jit(jax.grad(lambda w, x: getattr(djax, mode)(x, None, w, **options)[0].sum()))
    divided = jax.device_put(x, jax.NamedSharding(explicit, P(None, "d", None)))
    everywhere = jax.device_put(weights, jax.NamedSharding(explicit, P(None)))
    assert_close(gradient(everywhere, divided), gradient(weights, x))


@pytest.mark.parametrize("divided", ["x", "states"])
def test_operands_that_are_not_mapped_take_part(explicit, divided):
    one = network(PROBLEM, "reference")
    x, hx, weights = one.arrays
    hx = stacked(hx)
    mapped = jax.vmap(lambda x, hx: one.function(x, hx, weights), (None, 0))
    places = {"x": (P(None, "d"), P(None)), "states": (P(None), P("d"))}[divided]
    given = (
        jax.device_put(array, jax.NamedSharding(explicit, place))
        for array, place in zip((x, hx), places, strict=True)
    )
    found = jax.jit(mapped)(*given)
    assert_close(found, mapped(x, hx))
    expected = DIVIDED["batch" if divided == "x" else "map"]
    assert all(array.sharding.spec == expected for array in jax.tree.leaves(found))


@pytest.mark.parametrize("shares_x", [True, False])
@pytest.mark.parametrize("gradient", [False, True])
def test_networks_lie_as_their_weights(explicit, gradient, shares_x):
    one = network(PROBLEM, "reference")
    function = jax.grad(one.loss, (0, 1, 2)) if gradient else one.function
    x, hx, weights = one.arrays
    shared = (x, hx) if shares_x else stacked((x, hx))
    mapped = jax.jit(jax.vmap(function, (*(None if shares_x else 0,) * 2, 0)))
    of_map = jax.NamedSharding(explicit, P("d"))
    everywhere = jax.NamedSharding(explicit, P(None))
    given = jax.device_put(shared, everywhere if shares_x else of_map)
    found = mapped(*given, jax.device_put(stacked(weights), of_map))
    assert_close(found, mapped(*shared, stacked(weights)))
    assert {array.sharding.spec[0] for array in jax.tree.leaves(found)} == {"d"}


@pytest.mark.parametrize("place", [("d", None), (None, "d"), ("e", "d")], ids=str)
def test_nested_maps_lie_as_before(explicit, place):
    one = network(PROBLEM, "reference")
    x, hx, weights = one.arrays
    of_each = jax.vmap(jax.grad(one.loss, (0, 1, 2)), (0, 0, None))
    program = jax.jit(jax.vmap(of_each, (0, 0, None)))
    mapped = stacked(stacked((x, hx)), (1, 2))
    given = jax.device_put(mapped, jax.NamedSharding(explicit, P(*place)))
    found = program(*given, jax.device_put(weights, jax.NamedSharding(explicit, P(None))))
    assert_close(found, program(*mapped, weights))
    assert {array.sharding.spec[:2] for array in jax.tree.leaves(found)} == {place}


@pytest.mark.parametrize("axis", [0, 1], ids=["map", "batch"])
def test_a_mapped_convolution_lies_as_before(explicit, axis):
    rng = np.random.default_rng(0)
    x = jax.numpy.asarray(rng.standard_normal((4, 2, 3, 6, 5), "float32"))
    w = jax.numpy.asarray(rng.standard_normal((4, 3, 3, 2), "float32"))
    mapped = jax.vmap(lambda x: djax.conv(x, w, implementation="reference"))
    place = P(*("d" if one == axis else None for one in range(5)))
    found = jax.jit(mapped)(jax.device_put(x, jax.NamedSharding(explicit, place)))
    assert_close(found, mapped(x))
    assert found.sharding.spec == place


def test_lengths_of_a_sharded_batch_are_right(mesh):
    problem = PROBLEM._replace(lengths=(1, 5, 3, 2))
    one = network(problem, "reference")
    gradient = jax.jit(jax.grad(one.loss, (0, 1, 2)))
    assert_close(gradient(*placed(mesh, one.arrays)), gradient(*one.arrays))


def test_the_reserve_space_fits_the_share_of_a_device_of_any_host(monkeypatch):
    if jax.device_count() < 2:
        pytest.skip("JAX was imported before it was told to have two devices")
    # Simulates one of two processes with a device each. 504 bytes of x and 16 of a mark are 256 and
    # more for a row of two, and 256 for one of four.
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = dnnffi.RNNSpec(mode="gru", input_size=7, hidden_size=4)
    one = network(dnnffi.RNNProblem.dense(spec, steps=9, batch=4), "reference", with_states=False)
    x, _, weights = one.arrays
    x = jax.device_put(x, jax.NamedSharding(mesh, P(None, "d")))
    gradient = jax.jit(jax.grad(lambda w, x: one.loss(x, None, w)))
    assert_close(gradient(weights, x), gradient(weights, one.x))


@pytest.mark.parametrize(
    ("divided", "batch_first"),
    [
        ((P("d"), P(None, "d"), P()), True),
        ((P("d"), P(), P()), False),
        ((P(None, None, "d"), P(), P()), False),
        ((P(None, "d"), P(), P()), False),
        ((P(), P(None, "d"), P()), False),
    ],
    ids=["batch first", "steps", "features", "x alone", "states alone"],
)
def test_gradients_lie_as_what_they_are_of(mesh, divided, batch_first):
    spec = dnnffi.RNNSpec(mode="gru", input_size=4, hidden_size=3)
    problem = dnnffi.RNNProblem.dense(spec, steps=6, batch=4, batch_first=batch_first)
    one = network(problem, "reference")
    places = [jax.NamedSharding(mesh, where) for where in divided]
    arrays = tuple(map(jax.device_put, one.arrays, places))

    def squares(*arrays):
        y, h_n = one.function(*arrays)
        return (y**2).sum() + (h_n**2).sum()

    gradient = jax.jit(jax.grad(squares, (0, 1, 2)))
    found = gradient(*arrays)
    assert_close(found, gradient(*one.arrays))
    if "Explicit" in str(mesh.axis_types):
        for array, place in zip(found, places, strict=True):
            assert array.sharding.is_equivalent_to(place, array.ndim)


def test_rows_that_the_devices_cannot_share_are_right():
    if jax.device_count() < 2:
        pytest.skip("JAX was imported before it was told to have two devices")
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    one = network(PROBLEM, "reference")

    @jax.jit
    def of_three(x, hx, weights):
        gradient = jax.grad(lambda *a: (one.function(*a)[0] ** 2).sum(), (0, 1, 2))
        return gradient(x[:, :3], tuple(state[:, :3] for state in hx), weights)

    assert_close(of_three(*placed(mesh, one.arrays)), of_three(*one.arrays))


def test_networks_that_share_x_stay_on_their_devices(mesh):
    one = network(PROBLEM, "reference", with_states=False)
    x, _, weights = one.arrays
    several = jax.numpy.stack([weights * n for n in (1, 2, 3, 4)])
    ensemble = jax.jit(jax.vmap(lambda weights: one.function(x, None, weights)[0]))
    divided = jax.device_put(several, jax.NamedSharding(mesh, P("d")))
    assert_close(ensemble(divided), ensemble(several))
    assert "all-gather" not in ensemble.lower(divided).compile().as_text()


def test_rows_and_networks_over_the_same_devices_are_right():
    if jax.device_count() < 2:
        pytest.skip("JAX was imported before it was told to have two devices")
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    one = network(PROBLEM, "reference", with_states=False)
    x, _, weights = one.arrays
    several = jax.numpy.stack([weights * n for n in (1, 2, 3, 4)])
    ensemble = jax.jit(jax.vmap(lambda x, w: one.function(x, None, w)[0], (None, 0)))
    places = (jax.NamedSharding(mesh, where) for where in (P(None, "d"), P("d")))
    divided = map(jax.device_put, (x, several), places)
    assert_close(ensemble(*divided), ensemble(x, several))
