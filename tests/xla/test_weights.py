"""Weights in JAX: RNNWeights as a pytree, and flat arrays with the name of their layout."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import dnnffi
from dnnffi import RNNWeights
from dnnffi import jax as djax
from dnnffi.jax.rnn import weights as weights_module
from dnnffi.testing import rnn as strategies

SPEC = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2, bidirectional=True)
LAYOUTS = ("cudnn", "torch", "miopen")


@settings(max_examples=30)
@given(strategies.specs(dtypes=("float16", "bfloat16", "float32")))
def test_packed_as_rnn_weights_are_and_unpacked_again(spec):
    arrays = strategies.weights(spec, 0)
    weights = djax.pack(arrays, spec)
    np.testing.assert_array_equal(weights.flat, RNNWeights.pack(arrays, spec).flat)
    assert isinstance(weights.flat, jax.Array)
    assert (weights.spec, weights.backend) == (spec, "cudnn")
    assert weights.flat.dtype.name == spec.dtype
    for unpacked in (djax.unpack(weights), djax.unpack(weights.flat, spec, layout="cudnn")):
        for found, expected in zip(unpacked, arrays, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_initial_weights_are_uniform(dtype):
    spec = dnnffi.RNNSpec(mode="gru", input_size=50, hidden_size=64, dtype=dtype)
    weights = djax.init(jax.random.key(0), spec)
    assert weights.flat.dtype.name == dtype
    values = np.asarray(weights.flat).astype("float64")
    assert abs(values).max() <= 1 / 8
    assert abs(values.mean()) < 1e-3
    assert values.std() == pytest.approx(1 / 8 / 3**0.5, rel=0.02)
    assert (weights.flat != djax.init(jax.random.key(1), spec).flat).any()
    assert len(np.unique(values)) > 2**10  # more than were drawn of bfloat16 alone


def drawn(mode="lstm", *, like, dtype="float32", **more):
    """Initial weights by PyTorch's names, as arrays of NumPy."""
    spec = dnnffi.RNNSpec(mode=mode, input_size=50, hidden_size=64, num_layers=2, dtype=dtype)
    weights = djax.init(jax.random.key(0), spec, like=like, **more)
    assert weights.flat.dtype.name == dtype
    named = djax.unpack(weights, names=True)
    return {name: np.asarray(array.astype("float32")) for name, array in named.items()}


@pytest.mark.parametrize(("mode", "gates"), [("lstm", 4), ("gru", 3), ("rnn_tanh", 1)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_initial_weights_like_keras(mode, gates, dtype):
    arrays = drawn(mode, like="keras", dtype=dtype)
    for layer, inputs in enumerate((50, 64)):
        w_ih, w_hh = (arrays[f"weight_{kind}_l{layer}"] for kind in ("ih", "hh"))
        bound = (6 / (inputs + 64 * gates)) ** 0.5
        assert abs(w_ih).max() == pytest.approx(bound, rel=0.01)
        assert w_ih.std() == pytest.approx(bound / 3**0.5, rel=0.03)
        np.testing.assert_allclose(
            w_hh.T @ w_hh, np.eye(64), atol=1e-5 if dtype == "float32" else 0.02
        )
        b_ih = np.zeros((gates, 64))
        if mode == "lstm":
            b_ih[1] = 1
        np.testing.assert_array_equal(arrays[f"bias_ih_l{layer}"], b_ih.reshape(-1))
        np.testing.assert_array_equal(arrays[f"bias_hh_l{layer}"], 0)


@pytest.mark.parametrize(("mode", "gates"), [("lstm", 4), ("gru", 3), ("rnn_tanh", 1)])
def test_initial_weights_like_flax(mode, gates):
    arrays = drawn(mode, like="flax")
    for layer, inputs in enumerate((50, 64)):
        w_ih, w_hh = (arrays[f"weight_{kind}_l{layer}"] for kind in ("ih", "hh"))
        assert w_ih.std() == pytest.approx(inputs**-0.5, rel=0.03)
        # Truncated at two standard deviations, of 0.8796 after truncation.
        assert abs(w_ih).max() <= 2 / 0.8796 * inputs**-0.5
        for gate in w_hh.reshape(gates, 64, 64):
            np.testing.assert_allclose(gate @ gate.T, np.eye(64), atol=1e-5)
        for kind in ("ih", "hh"):
            np.testing.assert_array_equal(arrays[f"bias_{kind}_l{layer}"], 0)


@pytest.mark.parametrize("like", ["torch", "keras", "flax"])
def test_the_bias_of_the_forget_gate_is_set(like):
    arrays, others = drawn(like=like, forget_bias=2), drawn(like=like)
    for layer in (0, 1):
        for kind, value in (("ih", 2), ("hh", 0)):
            name = f"bias_{kind}_l{layer}"
            gates, before = (some[name].reshape(4, 64) for some in (arrays, others))
            np.testing.assert_array_equal(gates[1], value)
            np.testing.assert_array_equal(gates[[0, 2, 3]], before[[0, 2, 3]])
        for kind in ("ih", "hh"):
            name = f"weight_{kind}_l{layer}"
            np.testing.assert_array_equal(arrays[name], others[name])


@pytest.mark.parametrize("like", ["keras", "flax"])
def test_initial_weights_without_biases_are_those_with_them(like):
    spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, bias=False)
    assert len(djax.unpack(djax.init(jax.random.key(0), spec, like=like))) == 2


def bad_init(fields=None, **keywords):
    spec = dnnffi.RNNSpec(**{"mode": "lstm", "input_size": 3, "hidden_size": 4} | (fields or {}))
    return djax.init(jax.random.key(0), spec, **keywords)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bad_init(like="jax"), ValueError, "like must be one of torch, keras, flax; got"),
        (
            lambda: bad_init({"proj_size": 2}, like="keras"),
            ValueError,
            "Keras has no LSTM with a projection",
        ),
        (
            lambda: bad_init({"proj_size": 2}, like="flax"),
            ValueError,
            "Flax has no LSTM with a projection",
        ),
        (lambda: bad_init(forget_bias="1"), TypeError, "forget_bias must be a number or None; got"),
        (lambda: bad_init(forget_bias=True), TypeError, "forget_bias must be a number or None; "),
        (lambda: bad_init(forget_bias=float("nan")), ValueError, "forget_bias must be finite; got"),
        (
            lambda: bad_init({"mode": "gru"}, forget_bias=1),
            ValueError,
            "forget_bias is of an LSTM with biases; got RNNSpec",
        ),
        (
            lambda: bad_init({"bias": False}, forget_bias=1),
            ValueError,
            "forget_bias is of an LSTM with biases; got RNNSpec",
        ),
    ],
)
def test_bad_arguments_of_init(call, error, message):
    with pytest.raises(error, match=f"^{message}"):
        call()


# PyTorch's names


@settings(max_examples=30)
@given(strategies.specs(dtypes=("float32",)))
def test_arrays_by_name_are_those_of_pytorch(spec):
    weights = djax.pack(strategies.weights(spec, 0), spec)
    named = djax.unpack(weights, names=True)
    assert list(named) == list(RNNWeights.pack(strategies.weights(spec, 0), spec).to_torch())
    for one, other in zip(named.values(), djax.unpack(weights), strict=True):
        np.testing.assert_array_equal(one, other)
    again = djax.pack(dict(sorted(named.items(), reverse=True)), spec)
    np.testing.assert_array_equal(again.flat, weights.flat)


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "lstm", "num_layers": 2, "bidirectional": True},
        {"mode": "lstm", "proj_size": 2},
        {"mode": "gru", "bias": False, "num_layers": 2},
    ],
    ids=str,
)
def test_weights_by_name_say_what_the_network_is(fields):
    spec = dnnffi.RNNSpec(input_size=3, hidden_size=4, **fields)
    weights, x = djax.init(jax.random.key(0), spec), jnp.ones((5, 2, 3))
    named = djax.unpack(weights, names=True)
    function = getattr(djax, spec.mode)
    expected = function(x, None, weights)[0]
    shuffled = dict(sorted(named.items(), reverse=True))
    np.testing.assert_array_equal(function(x, None, shuffled)[0], expected)
    np.testing.assert_array_equal(function(x, None, shuffled, spec=spec)[0], expected)


def test_a_gradient_has_the_names_of_the_weights():
    named = djax.unpack(djax.init(jax.random.key(0), SPEC), names=True)
    x = jnp.ones((5, 2, 3))
    gradient = jax.jit(jax.grad(lambda named: (djax.lstm(x, None, named)[0] ** 2).sum()))(named)
    assert set(gradient) == set(named)
    of_list = jax.grad(lambda arrays: (djax.lstm(x, None, arrays, spec=SPEC)[0] ** 2).sum())(
        list(named.values())
    )
    for name, expected in zip(named, of_list, strict=True):
        np.testing.assert_allclose(gradient[name], expected, rtol=1e-5, atol=1e-6)


def test_names_is_a_flag():
    with pytest.raises(TypeError, match=r"^names must be True or False"):
        djax.unpack(djax.init(jax.random.key(0), SPEC), names="torch")


# Weights of float32 for x of 16 bits


@pytest.mark.parametrize("implementation", ["scan", "reference"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", ["packed", "list", "flat", "names"])
def test_float32_weights_compute_in_the_dtype_of_x(form, dtype, implementation):
    packed = djax.init(jax.random.key(0), SPEC)
    x = jax.random.normal(jax.random.key(1), (5, 2, 3)).astype(dtype)
    weights, keywords = {
        "packed": (packed, {}),
        "list": (djax.unpack(packed), {"spec": SPEC}),
        "flat": (packed.flat, {"spec": SPEC, "layout": "cudnn"}),
        "names": (djax.unpack(packed, names=True), {}),
    }[form]
    half = replace(SPEC, dtype=dtype)
    cast = djax.pack([array.astype(dtype) for array in djax.unpack(packed)], half)

    def run(weights, **keywords):
        y, states = djax.lstm(x, None, weights, implementation=implementation, **keywords)
        return (y.astype("float32") ** 2).sum(), (y, states)

    gradient, found = jax.jit(jax.grad(partial(run, **keywords), has_aux=True))(weights)
    expected_gradient, expected = jax.jit(jax.grad(run, has_aux=True))(cast)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert one.dtype.name == dtype
        np.testing.assert_array_equal(one, other)
    assert jax.tree.structure(gradient) == jax.tree.structure(weights)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(gradient)} == {"float32"}
    if form == "packed":
        np.testing.assert_allclose(
            gradient.flat, expected_gradient.flat.astype("float32"), rtol=0.02, atol=1e-3
        )


def test_states_have_the_dtype_of_x():
    weights = djax.init(jax.random.key(0), SPEC)
    x = jnp.ones((5, 2, 3), "bfloat16")
    zeros = jnp.zeros(SPEC.h_shape(2), "bfloat16")
    y, (h_n, c_n) = djax.lstm(x, (zeros, zeros), weights)
    assert y.dtype == h_n.dtype == c_n.dtype == x.dtype


def test_dropout_with_float32_weights_for_x_of_16_bits():
    weights, x = djax.init(jax.random.key(0), SPEC), jnp.ones((5, 2, 3), "bfloat16")
    y, _ = djax.lstm(x, None, weights, dropout=0.5, key=jax.random.key(1))
    assert y.dtype == x.dtype


def test_gradients_pass_through_packing():
    arrays = [jnp.asarray(array) for array in strategies.weights(SPEC, 0)]
    gradient = jax.grad(lambda arrays: (djax.pack(arrays, SPEC).flat ** 2).sum())(arrays)
    for found, array in zip(gradient, arrays, strict=True):
        np.testing.assert_array_equal(found, 2 * array)


# Layouts: PyTorch's arrays 0.1, 0.2 and so on, and what the equations make of them


def tanh_network(bidirectional):
    """The spec of two layers of size 1, its arrays, and y for x = 1."""
    spec = dnnffi.RNNSpec(
        mode="rnn_tanh", input_size=1, hidden_size=1, num_layers=2, bidirectional=bidirectional
    )
    shapes = spec.parameter_shapes()
    arrays = [np.full(p.shape, number / 10, "float32") for number, p in enumerate(shapes, 1)]
    x = np.ones(1)
    for layer in range(2):
        of_layer = arrays[layer * len(arrays) // 2 : (layer + 1) * len(arrays) // 2]
        cells = [of_layer[first : first + 4] for first in range(0, len(of_layer), 4)]
        x = np.concatenate([np.tanh(w_ih @ x + b_ih + b_hh) for w_ih, _, b_ih, b_hh in cells])
    return spec, arrays, x


@pytest.mark.parametrize("implementation", ["scan", "reference"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_weights_in_any_layout_compute_what_the_equations_say(
    bidirectional, layout, implementation
):
    spec, arrays, expected = tanh_network(bidirectional)
    weights = RNNWeights.pack(arrays, spec, backend=layout)
    x = jnp.ones((1, 1, 1))
    run = partial(djax.rnn_tanh, implementation=implementation)
    named = partial(run, spec=spec, layout=layout)
    found = (
        run(x, None, weights),
        jax.jit(lambda weights: run(x, None, weights))(weights),
        jax.jit(lambda: run(x, None, weights))(),
        named(x, None, weights.flat),
        jax.jit(lambda flat: named(x, None, flat))(weights.flat),
    )
    for y, _ in found:
        np.testing.assert_allclose(y[0, 0], expected, rtol=1e-5)


def test_two_layers_of_one_unit_give_the_value_of_the_equations():
    spec, arrays, expected = tanh_network(False)
    assert expected == pytest.approx(0.95002, abs=1e-5)
    weights = RNNWeights.pack(arrays, spec)
    y, _ = djax.rnn_tanh(jnp.ones((1, 1, 1)), None, weights.flat, spec=spec, layout="cudnn")
    assert float(y[0, 0, 0]) == pytest.approx(0.95002, abs=1e-5)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_weights_are_those_of_their_arrays_in_every_layout(mode, layout):
    spec = dnnffi.RNNSpec(mode=mode, input_size=3, hidden_size=4, num_layers=2, bidirectional=True)
    weights = RNNWeights.random(spec, np.random.default_rng(0)).to(layout)
    x = np.random.default_rng(1).standard_normal((5, 2, 3)).astype("float32")
    expected = getattr(dnnffi, mode)(x, None, weights)[0]
    found = getattr(djax, mode)(x, None, weights)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "fields",
    [{"num_layers": 2}, {"bidirectional": True}, {"proj_size": 2}],
    ids=str,
)
@pytest.mark.parametrize("call", [djax.lstm, djax.unpack])
def test_a_flat_array_needs_the_name_of_its_layout(fields, call):
    spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, **fields)
    flat = djax.init(jax.random.key(0), spec).flat
    arguments = (flat,) if call is djax.unpack else (jnp.ones((5, 2, 3)), None, flat)
    with pytest.raises(ValueError, match=r"flat array without its layout.*Pass an RNNWeights, or"):
        call(*arguments, spec=spec)
    call(*arguments, spec=spec, layout="torch")


def test_a_flat_array_of_one_layer_and_direction_needs_no_layout():
    spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
    weights, x = djax.init(jax.random.key(0), spec), jnp.ones((5, 2, 3))
    y, _ = djax.gru(x, None, weights.flat, spec=spec)
    np.testing.assert_array_equal(y, djax.gru(x, None, weights)[0])


# RNNWeights as a pytree


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gradient_has_the_structure_of_the_weights(layout):
    weights = RNNWeights.random(SPEC, np.random.default_rng(0), backend=layout)
    x = jnp.ones((5, 2, 3))

    def loss(weights):
        return (djax.lstm(x, None, weights)[0] ** 2).sum()

    value, gradient = jax.jit(jax.value_and_grad(loss))(weights)
    assert isinstance(gradient, RNNWeights)
    assert (gradient.spec, gradient.backend) == (SPEC, layout)
    stepped = jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradient)
    assert loss(stepped) < value
    separate = weights.arrays()
    expected = jax.grad(
        lambda arrays: (djax.lstm(x, None, arrays, num_layers=2, bidirectional=True)[0] ** 2).sum()
    )(separate)
    for one, other in zip(djax.unpack(gradient), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_mapped_weights_are_one_network_each():
    keys = jax.random.split(jax.random.key(0), 3)
    many = jax.vmap(lambda key: djax.init(key, SPEC))(keys)
    x = jnp.ones((5, 2, 3))
    found = jax.vmap(lambda weights: djax.lstm(x, None, weights)[0])(many)
    for row, key in zip(found, keys, strict=True):
        expected = djax.lstm(x, None, djax.init(key, SPEC))[0]
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-6)


def test_the_leaf_of_weights_is_named_flat():
    ((path, leaf),), _ = jax.tree.flatten_with_path(djax.init(jax.random.key(0), SPEC))
    assert jax.tree_util.keystr(path) == ".flat"
    assert leaf.shape == (dnnffi.weight_layout(SPEC, "cudnn").size,)


def test_weights_of_jax_compute_on_arrays_of_numpy():
    weights = djax.init(jax.random.key(0), SPEC)
    x = np.ones((5, 2, 3), "float32")
    y, _ = dnnffi.lstm(x, None, weights)
    np.testing.assert_allclose(y, djax.lstm(x, None, weights)[0], rtol=1e-5, atol=1e-6)
    y, _, ctx = dnnffi.lstm_forward(x, None, weights)
    assert ctx.backward(y).weights.flat.shape == weights.flat.shape
    with dnnffi.RNNPlan(SPEC, batch=2, steps=5, backend="reference") as plan:
        np.testing.assert_array_equal(plan.forward(x, None, weights)[0], y)


def test_weights_of_jax_are_unpacked_into_arrays_of_numpy():
    weights = djax.init(jax.random.key(0), SPEC)
    arrays = [np.zeros(parameter.shape, "float32") for parameter in SPEC.parameter_shapes()]
    weights.unpack(arrays)
    np.testing.assert_array_equal(RNNWeights.pack(arrays, SPEC).flat, weights.flat)


def test_arrays_of_jax_are_no_views_of_one_buffer():
    arrays = djax.unpack(djax.init(jax.random.key(0), SPEC))
    assert RNNWeights.view_of(arrays, SPEC, backend="cudnn") is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_program_that_takes_weights_is_exported(layout):
    pytest.importorskip("flatbuffers")  # JAX asks for it only here
    weights = RNNWeights.random(SPEC, np.random.default_rng(0)).to(layout)
    x = jnp.ones((5, 2, 3))
    program = jax.jit(lambda weights, x: djax.lstm(x, None, weights, implementation="scan")[0])
    exported = jax.export.export(program)(weights, x)
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_allclose(again.call(weights, x), program(weights, x), rtol=1e-6)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b"{", b"", "Extra data|Expecting value"),
        (b'"layout"', b'"other"', "must have the entries spec and layout$"),
        (b'"num_layers"', b'"other"', "spec must have the entries bias, "),
        (b'"num_layers": 2', b'"num_layers": "2"', "num_layers must be an integer"),
        (b'"cudnn"', b'"x"', "backend must be one of"),
        (b'"proj_size": 0', b'"proj_size": 2', None),
    ],
)
def test_the_structure_in_a_changed_program_is_checked(before, after, message):
    layout = "cudnn" if message else "miopen"  # which has no projection
    text = weights_module._to_json((SPEC, layout)).replace(before, after)
    with pytest.raises(ValueError, match=f"^dnnffi.RNNWeights of the exported.*({message or ''})"):
        weights_module._from_json(text)


def test_weights_of_jax_are_copied_pickled_saved_and_converted(tmp_path):
    weights = djax.init(jax.random.key(0), SPEC)
    for made in (copy.deepcopy(weights), pickle.loads(pickle.dumps(weights))):
        assert isinstance(made.flat, jax.Array)
        np.testing.assert_array_equal(made.flat, weights.flat)
    weights.save(tmp_path / "net.npz")
    loaded = RNNWeights.load(tmp_path / "net.npz")
    assert loaded.backend == weights.backend
    np.testing.assert_array_equal(loaded.flat, weights.flat)
    for layout in LAYOUTS:
        np.testing.assert_array_equal(weights.to(layout).flat, loaded.to(layout).flat)
    for one, other in zip(weights.to_keras(), loaded.to_keras(), strict=True):
        for array, expected in zip(one, other, strict=True):
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (
            TypeError,
            "arrays must be a sequence of arrays or",
            lambda arrays, flat: djax.pack(1, SPEC),
        ),
        (
            ValueError,
            "weights by name must have PyTorch's names; missing: weight_ih_l0, .* 8 more",
            lambda arrays, flat: djax.pack({}, SPEC),
        ),
        (ValueError, "expected 16 arrays; got 15", lambda a, flat: djax.pack(a[:-1], SPEC)),
        (
            TypeError,
            r"weights\[0\] must have dtype float32; got float16",
            lambda a, flat: djax.pack([a[0].astype("float16"), *a[1:]], SPEC),
        ),
        (TypeError, r"weights\[1\] must be an array", lambda a, _: djax.pack([a[0], "w"], SPEC)),
        (
            ValueError,
            r"weights must have shape \(\d+,\)",
            lambda a, w: djax.unpack(w[1:], SPEC, layout="cudnn"),
        ),
        (
            TypeError,
            "must have dtype float32",
            lambda a, w: djax.unpack(w.astype("int32"), SPEC, layout="cudnn"),
        ),
        (TypeError, "spec must be given with a flat array", lambda a, w: djax.unpack(w)),
        (TypeError, "spec must be an RNNSpec", lambda a, w: djax.unpack(w, "lstm")),
        (
            TypeError,
            "float64 needs .*jax_enable_x64",
            lambda a, w: djax.init(
                jax.random.key(0),
                dnnffi.RNNSpec(mode="gru", input_size=1, hidden_size=1, dtype="float64"),
            ),
        ),
    ],
)
def test_what_does_not_fit_is_named(error, words, call):
    arrays = strategies.weights(SPEC, 0)
    with pytest.raises(error, match=words):
        call(arrays, djax.pack(arrays, SPEC).flat)
