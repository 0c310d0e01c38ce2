"""Wrong arguments of networks on JAX arrays: an error while tracing that names the argument."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla.jax_programs import network

import dnnffi
from dnnffi import jax as djax
from dnnffi.errors import LibraryNotFoundError, PerformanceWarning, UnsupportedError
from dnnffi.jax.arrays import warn_once
from dnnffi.jax.rnn import implementations

SPEC = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2)
ONE = network(dnnffi.RNNProblem.dense(SPEC, steps=5, batch=4), None)
X, HX, FLAT = ONE.arrays
ARRAYS = djax.unpack(FLAT, SPEC, layout="cudnn")
PACKED = djax.pack(ARRAYS, SPEC)
NAMED = djax.unpack(PACKED, names=True)
GRU = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2)


def lstm(x=X, hx=HX, weights=FLAT, **keywords):
    if hasattr(weights, "dtype"):
        keywords = {"spec": SPEC, "layout": "cudnn"} | keywords
    return djax.lstm(x, hx, weights, **keywords)


CASES = {
    "x of a list": (TypeError, "x must be an array", lambda: lstm([[1.0]])),
    "x of two dimensions": (
        ValueError,
        "x must have three dimensions, [T, B, I]",
        lambda: lstm(X[0]),
    ),
    "x of another width": (ValueError, "[T, B, I] with I = 3", lambda: lstm(X[..., :2])),
    "x of another dtype": (
        TypeError,
        "x must have the dtype of the weights, float32 (or float16 or bfloat16); got int32",
        lambda: lstm(X.astype("int32")),
    ),
    "x wider than the weights": (
        TypeError,
        "x must have the dtype of the weights, float16; got float32",
        lambda: lstm(weights=[a.astype("float16") for a in ARRAYS], num_layers=2),
    ),
    "no steps": (ValueError, "at least one time step; got T = 0", lambda: lstm(X[:0])),
    "hx of one": (TypeError, "hx must be (h_0, c_0) or None", lambda: lstm(hx=HX[0])),
    "h_0 of another shape": (
        ValueError,
        "h_0 must have shape (2, 4, 4); got (1, 4, 4)",
        lambda: lstm(hx=(HX[0][:1], HX[1])),
    ),
    "c_0 of another dtype": (
        TypeError,
        "c_0 must have the dtype of x, float32; got float16",
        lambda: lstm(hx=(HX[0], HX[1].astype("float16"))),
    ),
    "h_0 of the dtype of wider weights": (
        TypeError,
        "h_0 must have the dtype of x, bfloat16; got float32",
        lambda: lstm(X.astype("bfloat16")),
    ),
    "flat without spec": (TypeError, "spec must be given", lambda: lstm(spec=None)),
    "flat without layout": (
        ValueError,
        "weights: got a flat array without its layout",
        lambda: lstm(layout=None),
    ),
    "flat of an unknown layout": (
        ValueError,
        "layout must be one of cudnn, miopen, torch; got 'reference'",
        lambda: lstm(layout="reference"),
    ),
    "a layout of arrays": (
        ValueError,
        "layout is for a flat array of weights; got a list of arrays",
        lambda: lstm(weights=ARRAYS, num_layers=2, layout="torch"),
    ),
    "packed with another spec": (
        ValueError,
        "spec is RNNSpec(",
        lambda: lstm(weights=PACKED, spec=dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)),
    ),
    "packed with another layout": (
        ValueError,
        "layout is 'torch'; the weights are in that of 'cudnn'",
        lambda: lstm(weights=PACKED, layout="torch"),
    ),
    "packed of another mode": (
        ValueError,
        "spec is that of 'lstm'; this is 'gru'",
        lambda: djax.gru(X, None, PACKED),
    ),
    "flat of another size": (ValueError, "weights must have shape", lambda: lstm(weights=FLAT[1:])),
    "spec of another mode": (
        ValueError,
        "spec is that of 'gru'; this is 'lstm'",
        lambda: lstm(spec=GRU),
    ),
    "spec of no kind": (TypeError, "spec must be an RNNSpec; got str", lambda: lstm(spec="lstm")),
    "another num_layers": (
        ValueError,
        "num_layers is 3; spec has 2",
        lambda: lstm(num_layers=3),
    ),
    "another bidirectional": (
        ValueError,
        "bidirectional is True; spec is for one direction",
        lambda: lstm(bidirectional=True),
    ),
    "too few arrays": (
        ValueError,
        "weights: 7 arrays",
        lambda: lstm(weights=ARRAYS[:-1], num_layers=2),
    ),
    "no arrays": (ValueError, "weights: got no arrays", lambda: lstm(weights=[])),
    "mixed dtypes": (
        TypeError,
        "weights[3] must have dtype float32; got float16",
        lambda: lstm(weights=[*ARRAYS[:3], ARRAYS[3].astype("float16"), *ARRAYS[4:]], num_layers=2),
    ),
    "integers": (
        TypeError,
        "weights[0] must have one of the dtypes",
        lambda: lstm(weights=[a.astype("int32") for a in ARRAYS], num_layers=2),
    ),
    "neither weights nor arrays": (
        TypeError,
        "weights must be an RNNWeights, a flat array, a list of arrays or a mapping of PyTorch's "
        "names to arrays; got int",
        lambda: lstm(weights=1),
    ),
    "no names": (
        ValueError,
        "weights by name must have PyTorch's names; missing: weight_ih_l0, weight_hh_l0. "
        "RNNWeights has methods",
        lambda: lstm(weights={}),
    ),
    "Flax's names": (
        ValueError,
        "missing: weight_ih_l0, weight_hh_l0; unexpected: cell",
        lambda: lstm(weights={"cell": {}}),
    ),
    "a name missing": (
        ValueError,
        "missing: bias_hh_l1",
        lambda: lstm(weights={k: a for k, a in NAMED.items() if k != "bias_hh_l1"}),
    ),
    "one bias missing in all layers": (
        ValueError,
        "missing: bias_ih_l0, bias_ih_l1",
        lambda: lstm(weights={k: a for k, a in NAMED.items() if "bias_ih" not in k}),
    ),
    "names with another num_layers": (
        ValueError,
        "num_layers is 3; weights have 2 layer(s)",
        lambda: lstm(weights=NAMED, num_layers=3),
    ),
    "names of one direction": (
        ValueError,
        "bidirectional is True; weights are of one direction",
        lambda: lstm(weights=NAMED, bidirectional=True),
    ),
    "names with another spec": (
        ValueError,
        "unexpected: weight_ih_l1, weight_hh_l1, bias_ih_l1, bias_hh_l1",
        lambda: lstm(weights=NAMED, spec=dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)),
    ),
    "an array by name of no kind": (
        TypeError,
        "weights['bias_hh_l1'] must be an array of JAX or NumPy; got list",
        lambda: lstm(weights=NAMED | {"bias_hh_l1": [1.0]}),
    ),
    "lengths of too few": (
        ValueError,
        "lengths must have one entry for each of the 4 rows",
        lambda: lstm(lengths=(1, 2)),
    ),
    "a length below 0": (
        ValueError,
        "lengths[1] must be from 0 to 5",
        lambda: lstm(lengths=(1, -1, 5, 5)),
    ),
    "lengths of a device for the reference": (
        UnsupportedError,
        "implementation 'reference': takes lengths as integers of the host",
        lambda: lstm(lengths=jnp.ones(4, int), implementation="reference"),
    ),
    "lengths of a device of floats": (
        ValueError,
        "lengths on the device must be integers [4]",
        lambda: lstm(lengths=jnp.ones(4)),
    ),
    "lengths of a device of another shape": (
        ValueError,
        "lengths on the device must be integers [4]",
        lambda: lstm(lengths=jnp.ones(3, int)),
    ),
    "an unroll of 0": (
        ValueError,
        "options['unroll'] must be at least 1, the number of steps in one round of the loop; got "
        "0. Leave it out for the default, 1 on a CPU and 10 elsewhere",
        lambda: lstm(options={"unroll": 0}),
    ),
    "an unroll of True": (
        TypeError,
        "options['unroll'] must be an integer; got bool: True. Leave it out",
        lambda: lstm(options={"unroll": True}),
    ),
    "an unroll of half a step": (
        TypeError,
        "options['unroll'] must be an integer; got float: 0.5. Leave it out",
        lambda: lstm(options={"unroll": 0.5}),
    ),
    "an unroll for the reference": (
        ValueError,
        "options['unroll'] is for the loop of implementation 'scan'; got implementation "
        "'reference'. Leave one of them out",
        lambda: lstm(options={"unroll": 2}, implementation="reference"),
    ),
    "dropout of 2": (ValueError, "dropout must be from 0 to 1", lambda: lstm(dropout=2)),
    "dropout without a key": (
        ValueError,
        "key must be one of jax.random",
        lambda: lstm(dropout=0.5),
    ),
    "a number for a key": (
        TypeError,
        "key must be one of jax.random; got int",
        lambda: lstm(dropout=0.5, key=7),
    ),
    "integers for a key": (
        TypeError,
        "key must be one of jax.random; got an array of int32",
        lambda: lstm(dropout=0.5, key=jnp.arange(2)),
    ),
    "several keys": (
        ValueError,
        "key must be one key, not an array of keys; got shape (3,)",
        lambda: lstm(dropout=0.5, key=jax.random.split(jax.random.key(0), 3)),
    ),
    "several legacy keys": (
        ValueError,
        "key must be one key, not an array of keys; got shape (3, 2)",
        lambda: lstm(dropout=0.5, key=jax.random.split(jax.random.PRNGKey(0), 3)),
    ),
    "another implementation": (
        ValueError,
        "implementation must be one of cudnn, miopen, reference, scan or None; got 'fast'",
        lambda: lstm(implementation="fast"),
    ),
    "cudnn without a GPU": (
        UnsupportedError,
        "has no device of cuda, where implementation 'cudnn' runs",
        lambda: lstm(implementation="cudnn"),
    ),
    "batch_first of 1": (
        TypeError,
        "batch_first must be True or False",
        lambda: lstm(batch_first=1),
    ),
    "an unknown option": (
        ValueError,
        "options: unknown key 'fast'",
        lambda: lstm(options={"fast": 1}),
    ),
    "an allocator": (
        ValueError,
        "options['allocator'] is of dnnffi's own functions; in JAX",
        lambda: lstm(options={"allocator": np.empty}),
    ),
    "validate": (ValueError, "options['validate']", lambda: lstm(options={"validate": True})),
    "tune now": (
        ValueError,
        "options['tune'] must be auto or off; dnnffi.jax.tune",
        lambda: lstm(options={"tune": "now"}),
    ),
    "an algorithm of MIOpen": (
        UnsupportedError,
        "has no algorithm 'fundamental'",
        lambda: lstm(options={"algorithm": "fundamental"}),
    ),
    "tune of no spec": (TypeError, "spec must be an RNNSpec", lambda: djax.tune("lstm", 1, 1)),
    "tune without tuning": (
        ValueError,
        "options must leave the choice to the measurement",
        lambda: djax.tune(SPEC, 4, 5, options={"tune": "off"}),
    ),
    "tune of one algorithm": (
        ValueError,
        "got algorithm 'own' and tune 'auto'",
        lambda: djax.tune(SPEC, 4, 5, options={"algorithm": "own"}),
    ),
    "tune of no steps": (ValueError, "at least one time step", lambda: djax.tune(SPEC, 4, 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_named(case):
    error, words, call = CASES[case]
    with pytest.raises(error, match=re.escape(words)):
        call()


def test_a_wrong_shape_is_found_while_tracing():
    with pytest.raises(ValueError, match="x must be"):
        jax.eval_shape(lambda x: lstm(x), jax.ShapeDtypeStruct((5, 4, 9), np.float32))


def test_dropout_of_one_layer_does_nothing():
    spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
    weights = djax.init(jax.random.key(0), spec)
    y, _ = djax.gru(X, None, weights, spec=spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dnnffi.jax.rnn.functions.warn_of_dropout", lambda: None)
        dropped, _ = djax.gru(X, None, weights, spec=spec, dropout=0.5)
    np.testing.assert_array_equal(dropped, y)


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedError("cuDNN", "9.19.0", "cannot"),
        LibraryNotFoundError("cuDNN", ["here"], "pip install it"),
    ],
)
def test_what_cudnn_cannot_do_goes_to_the_scan_with_a_warning(monkeypatch, error):
    def decide(problem):
        raise error

    way = implementations.IMPLEMENTATIONS["cudnn"]
    monkeypatch.setattr(implementations, "platform_of", lambda operands: "cuda")
    monkeypatch.setattr(way.handlers, "decide", decide)
    monkeypatch.setattr(implementations.Implementation, "check_there", lambda way: None)
    warn_once.cache_clear()
    with pytest.warns(PerformanceWarning, match=r"lax.scan runs what cuDNN would be faster at"):
        y, _ = lstm()
    np.testing.assert_array_equal(y, lstm(implementation="scan")[0])
    with pytest.raises(type(error)):
        lstm(implementation="cudnn")


def test_on_cuda_an_unnamed_implementation_is_cudnn(monkeypatch):
    way = implementations.IMPLEMENTATIONS["cudnn"]
    monkeypatch.setattr(implementations, "platform_of", lambda operands: "cuda")
    monkeypatch.setattr(way.handlers, "decide", lambda problem: "")
    find = implementations.implementation_of
    assert find(None, ONE.problem, ()) is way
    assert find("scan", ONE.problem, ()) is None
    assert find(None, None, ()) is None  # an empty batch, or lengths on a device
