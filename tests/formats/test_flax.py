"""Flax's cells, linen's and nnx's: their equations, names in any order, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from equations import (
    check,
    flax_fused_gru,
    flax_fused_lstm,
    flax_simple,
    flax_split_gru,
    flax_split_lstm,
    run,
    x_of,
)

from dnnffi import RNNWeights

H = 4


def dense_of(rng, inputs, outputs, bias):
    layer = {"kernel": rng.uniform(-0.5, 0.5, (inputs, outputs))}
    return layer | ({"bias": rng.uniform(-0.5, 0.5, outputs)} if bias else {})


def params_of(of_x, of_h, columns, inputs=3, seed=0):
    """Dense layers by name; those whose name ends in + have a bias."""
    rng = np.random.default_rng(seed)
    return {
        name.removesuffix("+"): dense_of(rng, size, columns, name.endswith("+"))
        for names, size in ((of_x, inputs), (of_h, H))
        for name in names.split()
    }


CELLS = {
    "linen LSTMCell": ("lstm", flax_split_lstm, ("ii if ig io", "hi+ hf+ hg+ ho+", H)),
    "nnx LSTMCell": ("lstm", flax_split_lstm, ("ii if_ ig io", "hi+ hf+ hg+ ho+", H)),
    "nnx OptimizedLSTMCell": ("lstm", flax_fused_lstm, ("dense_i", "dense_h+", 4 * H)),
    "linen GRUCell": ("gru", flax_split_gru, ("ir+ iz+ in+", "hr hz hn+", H)),
    "nnx GRUCell": ("gru", flax_fused_gru, ("dense_i+", "dense_h", 3 * H)),
    "linen SimpleCell": ("rnn_tanh", flax_simple("i", "h"), ("i+", "h", H)),
    "nnx SimpleCell": ("rnn_tanh", flax_simple("dense_i", "dense_h"), ("dense_i+", "dense_h", H)),
    "no bias": ("gru", flax_split_gru, ("ir iz in", "hr hz hn", H)),
}
each = pytest.mark.parametrize(("mode", "equations", "names"), CELLS.values(), ids=list(CELLS))


def expected(equations, layers, weights):
    cells = [[equations(cell) for cell in layer] for layer in layers]
    return run(cells, x_of(weights.spec), H)


@each
def test_a_cell(mode, equations, names):
    params = params_of(*names)
    weights = RNNWeights.from_flax(params)
    assert weights.spec.mode == mode
    check(weights, expected(equations, [[params]], weights))


@each
def test_layers_of_two_directions_by_names_in_any_order(mode, equations, names):
    layers = [
        [params_of(*names, inputs=inputs, seed=seed + d) for d in (0, 1)]
        for seed, inputs in ((0, 3), (5, 2 * H))
    ]
    shuffled = [[dict(sorted(cell.items(), reverse=True)) for cell in layer] for layer in layers]
    weights = RNNWeights.from_flax(shuffled, mode)
    assert (weights.spec.num_layers, weights.spec.num_directions) == (2, 2)
    check(weights, expected(equations, layers, weights))


def made_of(class_name, attributes):
    """An object of a class with this name; Flax's are given with their package, "flax"."""
    module, _, name = class_name.rpartition(".")
    made = type(name, (), {"__module__": module})()
    vars(made).update(attributes)
    return made


def as_object(
    params,
    class_name="flax.nnx.nn.recurrent.GRUCell",
    dense_class="flax.nnx.nn.linear.Linear",
    dense=None,
    **more,
):
    """A cell of nnx: attributes, and variables that hold the arrays."""
    layers = {
        name: made_of(
            dense_class,
            {"bias": None}
            | {k: made_of("flax.nnx.Param", {"raw_value": v}) for k, v in one.items()},
        )
        for name, one in params.items()
    }
    for one in layers.values():
        vars(one).update(dense or {})
    return made_of(class_name, layers | more)


def function_of(module, name):
    """A function of a module; only its name and its module are looked at."""

    def function():
        raise AssertionError("it is not called")

    function.__module__, function.__name__ = module, name
    return function


sigmoid = function_of("jax.nn", "sigmoid")
tanh = function_of("jax.numpy", "tanh")
relu = function_of("jax.nn", "relu")


@each
def test_an_object_with_its_functions(mode, equations, names):
    params = params_of(*names)
    gates = {} if mode.startswith("rnn") else {"gate_fn": sigmoid}
    weights = RNNWeights.from_flax(
        as_object(params, activation_fn=tanh, residual=False, carry_init=None, **gates)
    )
    check(weights, expected(equations, [[params]], weights))


def rnn_of(params, as_state=True):
    """The parameters of an RNN, or the unfiltered state of nnx's."""
    return {"cell": params} | ({"rngs": {"key": 0}} if as_state else {})


@each
@pytest.mark.parametrize("as_state", [True, False])
def test_an_rnn_and_layers_of_it(mode, equations, names, as_state):
    layers = [params_of(*names), params_of(*names, inputs=H, seed=1)]
    for count, given in ((1, rnn_of(layers[0], as_state)), (2, [rnn_of(one) for one in layers])):
        weights = RNNWeights.from_flax(given, mode)
        assert weights.spec.num_layers == count
        check(weights, expected(equations, [[one] for one in layers[:count]], weights))


@each
def test_a_bidirectional(mode, equations, names):
    pair = [params_of(*names), params_of(*names, seed=1)]
    inner = dict(zip(("forward_rnn", "backward_rnn"), map(rnn_of, pair), strict=True))
    for given in (
        {"params": inner},
        dict(reversed(inner.items())),
        [inner | {"rngs": {}}],
        [list(inner.values())],
    ):
        weights = RNNWeights.from_flax(given)
        assert weights.spec.bidirectional
        check(weights, expected(equations, [pair], weights))


def rnn_object(params, **settings):
    """An RNN of nnx."""
    cell = as_object(params, gate_fn=sigmoid, activation_fn=tanh)
    return made_of("flax.nnx.nn.recurrent.RNN", {"cell": cell, "reverse": False} | settings)


def both_object(forward, backward, **settings):
    """A Bidirectional of nnx."""
    concatenate = function_of("flax.nnx.nn.recurrent", "_concatenate")
    return made_of(
        "flax.nnx.nn.recurrent.Bidirectional",
        {"forward_rnn": forward, "backward_rnn": backward, "merge_fn": concatenate} | settings,
    )


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_objects_of_nnx(is_reversed):
    params = [params_of(*CELLS["nnx GRUCell"][2], seed=seed) for seed in (0, 1)]
    backward = rnn_object(params[1], reverse=is_reversed)
    for given in (
        both_object(rnn_object(params[0]), backward),
        [[rnn_object(params[0]), backward]],
    ):
        weights = RNNWeights.from_flax(given)
        check(weights, expected(flax_fused_gru, [params], weights))
    weights = RNNWeights.from_flax(rnn_object(params[0]))
    check(weights, expected(flax_fused_gru, [params[:1]], weights))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda rnn: rnn_object(rnn, reverse=True),
            "params.reverse must be False: no network runs backward only. Pass params.cell, and",
        ),
        (
            lambda rnn: [rnn_object(rnn), rnn_object(rnn, reverse=True)],
            r"params\[1\].reverse must be False",
        ),
        (
            lambda rnn: both_object(
                rnn_object(rnn), rnn_object(rnn), merge_fn=function_of("jax.numpy", "add")
            ),
            r"params.merge_fn must be Flax's default, which concatenates .*; got jax.numpy.add",
        ),
        (
            lambda rnn: both_object(
                rnn_object(rnn), rnn_object(rnn), merge_fn=function_of("mine", "_concatenate")
            ),
            r"params.merge_fn must be Flax's default, .*; got mine._concatenate",
        ),
        (
            lambda rnn: made_of("mine.RNN", {"cell": rnn}),
            "params must be nnx.RNN itself; got mine.RNN, which may compute",
        ),
        (
            lambda rnn: made_of("mine.Both", {"forward_rnn": rnn, "backward_rnn": rnn}),
            "params must be nnx.Bidirectional itself; got mine.Both, which may compute",
        ),
        (
            lambda rnn: both_object(rnn_object(rnn), made_of("mine.RNN", {"cell": rnn})),
            "params.backward_rnn must be nnx.RNN itself; got mine.RNN",
        ),
        (
            lambda rnn: rnn_object(rnn, cell=as_object(rnn, activation_fn=relu, gate_fn=sigmoid)),
            "params.cell.activation_fn must be tanh; got relu",
        ),
    ],
)
def test_layers_of_nnx_that_compute_something_else(make, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        RNNWeights.from_flax(make(params_of(*CELLS["nnx GRUCell"][2])))


def test_relu_is_said_or_seen():
    params = params_of("i+", "h", H)
    assert RNNWeights.from_flax(params, "rnn_relu").spec.mode == "rnn_relu"
    assert RNNWeights.from_flax(as_object(params, activation_fn=relu)).spec.mode == "rnn_relu"


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (
            {"activation_fn": relu, "gate_fn": sigmoid},
            "params.activation_fn must be tanh; got relu",
        ),
        ({"activation_fn": tanh, "gate_fn": relu}, "params.gate_fn must be sigmoid; got relu"),
        ({"residual": True}, "params.residual must be False"),
        ({"residual": np.True_}, "params.residual must be False"),
        (
            {"activation_fn": function_of("mine", "tanh")},
            "params.activation_fn must be tanh; got mine.tanh$",
        ),
        (
            {"gate_fn": function_of("mine", "sigmoid")},
            "params.gate_fn must be sigmoid; got mine.sigmoid$",
        ),
        (
            {"carry_init": function_of("jax.nn.initializers", "ones")},
            "params.carry_init must be zeros or None; got ones. Weights have no initial state",
        ),
        (
            {"class_name": "mine.GRUCell"},
            "params must be one of nnx's cells .*; got mine.GRUCell, which may compute",
        ),
        (
            {"class_name": "flax.nnx.OtherCell"},
            "params must be one of nnx's cells .*; got flax.nnx.OtherCell",
        ),
        (
            {"dense_class": "flax.nnx.nn.lora.LoRALinear"},
            "params.dense_i must be an nnx.Linear; got flax.nnx.nn.lora.LoRALinear",
        ),
        (
            {"dense": {"dot_general": function_of("mine", "dot_general")}},
            "params.dense_i.dot_general must be a function of JAX or Flax; got mine.dot_general",
        ),
    ],
)
def test_other_functions_are_refused(functions, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        RNNWeights.from_flax(as_object(params_of(*CELLS["nnx GRUCell"][2]), **functions))


@pytest.mark.parametrize("carry_init", [None, function_of("jax.nn.initializers", "zeros")])
def test_a_cell_that_begins_from_zeros(carry_init):
    functions = {"gate_fn": function_of("jax.lax", "logistic"), "activation_fn": tanh}
    cell = as_object(params_of(*CELLS["nnx GRUCell"][2]), carry_init=carry_init, **functions)
    assert RNNWeights.from_flax(cell).spec.mode == "gru"


@pytest.mark.parametrize(
    "names",
    [
        ("if+ in+", "hf hn+"),  # linen's MGUCell, whose reset and update gate are one
        ("ih+", "hh"),  # linen's ConvLSTMCell
        ("ii if ig io", "hi+ hf+ hg+ ho+ hc"),  # one more
    ],
)
def test_other_cells_of_flax_are_refused_by_their_names(names):
    with pytest.raises(ValueError, match=r"^params (must have the names|has unexpected names)"):
        RNNWeights.from_flax(params_of(*names, H))


def test_the_params_of_linen_are_taken_with_their_collection():
    params = params_of(*CELLS["linen GRUCell"][2])
    found = RNNWeights.from_flax({"params": params})
    np.testing.assert_array_equal(found.flat, RNNWeights.from_flax(params).flat)


def changed(cell, layer, name, change):
    params = params_of(*CELLS[cell][2])
    params[layer][name] = change(params[layer][name])
    return params


GRU, FUSED = "linen GRUCell", "nnx OptimizedLSTMCell"
_OF_H = "hr", "hz", "hn"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (3, "params must have the names of a cell of Flax .*; got int$"),
        ({"cell": {}}, "params.cell must have the names of a cell of Flax .*; got none$"),
        (
            {"GRUCell_0": params_of(*CELLS[GRU][2]), "Dense_0": {}, "rnn": {"cell": {}}},
            r"params must have .*; got GRUCell_0, Dense_0, rnn. It contains cells: pass "
            r"params\['GRUCell_0'\], params\['rnn'\]$",
        ),
        ({"cell": {}, "other": {}}, "params has unexpected names: other$"),
        (
            {"forward_rnn": {}, "backward_rnn": {}, "third": {}},
            "params has unexpected names: third$",
        ),
        ({"forward_rnn": {}}, "params must be a cell or an RNN, .*or a Bidirectional alone"),
        (
            [[{"forward_rnn": {}, "backward_rnn": {}}, {"cell": {}}]],
            r"params\[0\]\[0\] must be a cell or an RNN",
        ),
        ({"dense_i": {"kernel": 1}}, "params must have the names of a cell .*; got dense_i$"),
        (params_of(*CELLS[GRU][2]) | {"dense": {}}, "params has unexpected names: dense$"),
        (
            changed(GRU, "ir", "kernel", lambda a: a[:, :3]),
            r"params.ir.bias must have shape \(3,\)",
        ),
        (changed(GRU, "hz", "kernel", lambda a: a[0]), r"params.hz.kernel must have shape \[in, o"),
        (changed(GRU, "iz", "kernel", np.transpose), r"params.iz.kernel .*; it is transposed$"),
        (
            changed(GRU, "hn", "bias", lambda a: a[:1]),
            r"params.hn.bias must have shape \(4,\); got",
        ),
        (changed(FUSED, "dense_h", "kernel", lambda a: a[:3]), r"params: the kernel of dense_h"),
        (
            {"dense_i": {"kernel": np.ones((3, 2))}, "dense_h": {"kernel": np.ones((4, 2))}},
            r"params: the kernel of dense_h must have shape \[H, G\*H\]; got \(4, 2\)$",
        ),
        (
            dict(params_of(*CELLS[GRU][2])) | {name: {"kernel": np.ones((3, 4))} for name in _OF_H},
            r"params: the kernel of hr hz hn must have shape \(9, 3\); got \(12, 3\)",
        ),
        (
            changed(FUSED, "dense_i", "kernel", lambda a: a[:, :12]),
            r"params: the kernel of dense_i ",
        ),
        (
            [params_of(*CELLS[GRU][2]), params_of(*CELLS[FUSED][2])],
            "params must be of one mode; got gru, lstm$",
        ),
    ],
)
def test_what_is_refused(params, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        RNNWeights.from_flax(params)


def test_a_dense_layer_has_a_kernel_and_a_bias():
    params = params_of(*CELLS[GRU][2])
    params["ir"]["scale"] = 1
    with pytest.raises(ValueError, match=r"^params.ir has unexpected names: scale$"):
        RNNWeights.from_flax(params)
    params["ir"] = {"bias": np.zeros(H)}
    with pytest.raises(ValueError, match=r"^params.ir must have a kernel$"):
        RNNWeights.from_flax(params)


def test_a_mode_that_it_is_not():
    with pytest.raises(ValueError, match=r"^mode is 'lstm'; .* is that of gru$"):
        RNNWeights.from_flax(params_of(*CELLS[GRU][2]), "lstm")


@pytest.mark.parametrize("params", [[], [[{}, {}, {}]], ()])
def test_lists_are_of_layers_or_pairs(params):
    with pytest.raises(TypeError, match=r"^params(\[0\])? must be "):
        RNNWeights.from_flax(params)
