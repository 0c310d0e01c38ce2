"""Wrong arguments of the functional API: the type of the error, and that it names the argument.

Each is tried on the inference and on the training function, and both before and after a right call
of the same problem, whose plan may then be found.
"""

from __future__ import annotations

from math import inf, nan
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import dnnffi
from dnnffi import RNNProblem, RNNSpec, RNNWeights, testing
from dnnffi.backends.cudnn import library as cudnn
from dnnffi.backends.miopen import library as miopen
from dnnffi.rnn.backend import rnn_backends

# T = 4 steps, B = 3 rows, I = 3, H = 5, in float32


class Arguments(NamedTuple):
    """The arguments of a function; the fields from ``dy`` on are those of ``ctx.backward``."""

    x: Any
    hx: Any
    weights: Any
    keywords: dict
    dy: Any = None
    dhx: Any = None
    backward: dict = {}  # noqa: RUF012 - never written to

    def with_(self, **keywords):
        return self._replace(keywords=self.keywords | keywords)


def right(mode, *, packed=False, **fields):
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=5, **fields)
    if packed:
        problem = RNNProblem.packed(spec, (3, 2, 2, 1))
    else:
        problem = RNNProblem.dense(spec, steps=4, batch=3, lengths=(2, 4, 1))
    a = testing.inputs(problem, 0)
    keywords = testing.keywords(problem)
    del keywords["options"]
    return Arguments(a.x, a.hx, a.weights, keywords, a.dy, a.dhx)


def call(mode, arguments, *, training):
    function = getattr(dnnffi, f"{mode}_forward" if training else mode)
    return function(arguments.x, arguments.hx, arguments.weights, **arguments.keywords)


def clear_plans():
    rnn_backends.for_call("reference", np.zeros(1)).plans.clear()


def refused(mode, make, error, message, *, training_only=False, **fields):
    """``make`` turns right arguments into wrong ones."""
    for training in (True,) if training_only else (False, True):
        for warm in (False, True):
            clear_plans()
            if warm:
                call(mode, right(mode, **fields), training=training)
            with pytest.raises(error, match=message) as caught:
                call(mode, make(right(mode, **fields)), training=training)
            # The very class: a subclass of dnnffi's own is another thing.
            assert type(caught.value) is error


def each(cases):
    """Cases by name: (how to make it wrong, error, message)."""
    return pytest.mark.parametrize(
        ("make", "error", "message"), cases.values(), ids=list(cases.keys())
    )


def replaced(sequence, index, value):
    """A list with one entry changed; ``value`` may be a function of the old one."""
    result = list(sequence)
    result[index] = value(result[index]) if callable(value) else value
    return result


def changed_state(index, change):
    """Changes h_0 (0) or c_0 (1) of an LSTM."""
    return lambda a: a._replace(hx=tuple(replaced(a.hx, index, change)))


def changed_weight(index, change):
    return lambda a: a._replace(weights=replaced(a.weights, index, change))


def double(array):
    return array.astype("float64")


def shape(*dims):
    """An array of that shape instead."""
    return lambda array: np.zeros(dims, array.dtype)


NOT_AN_ARRAY = r"must be a NumPy or CuPy array, or an object with DLPack"

X = {
    "a list": (
        lambda a: a._replace(x=a.x.tolist()),
        TypeError,
        rf"^x {NOT_AN_ARRAY}.*got list(; use |$)",
    ),
    "packed rows of PyTorch": (
        lambda a: a._replace(x=SimpleNamespace(data=a.x, batch_sizes=[1])),
        TypeError,
        r"; got SimpleNamespace; give its data, with batch_sizes=x.batch_sizes$",
    ),
    "None": (lambda a: a._replace(x=None), TypeError, f"^x {NOT_AN_ARRAY}.*got NoneType$"),
    "masked": (
        lambda a: a._replace(x=np.ma.masked_array(a.x, mask=a.x > 0)),
        TypeError,
        r"^x must be a plain array; got MaskedArray$",
    ),
    "a number": (
        lambda a: a._replace(x=1.0),
        TypeError,
        f"^x {NOT_AN_ARRAY}.*got float$",
    ),
    "of rank 2": (
        lambda a: a._replace(x=a.x[0]),
        ValueError,
        r"^x must have 3 dimensions, \[T, B, I\]; got shape \(3, 3\)$",
    ),
    "of rank 4": (
        lambda a: a._replace(x=a.x[None]),
        ValueError,
        r"^x must have 3 dimensions, \[T, B, I\]; got shape \(1, 4, 3, 3\)$",
    ),
    "of rank 0": (
        lambda a: a._replace(x=np.zeros((), "f4")),
        ValueError,
        r"^x must have 3 dimensions, \[T, B, I\]; got shape \(\)$",
    ),
    "of rank 2 with batch_first": (
        lambda a: a._replace(x=a.x[0]).with_(batch_first=True),
        ValueError,
        r"^x must have 3 dimensions, \[B, T, I\]; got shape \(3, 3\)$",
    ),
    "too wide": (
        lambda a: a._replace(x=np.zeros((4, 3, 7), "f4")),
        ValueError,
        r"^x must have 3 as its last dimension \(I, from the weights\); got shape \(4, 3, 7\)$",
    ),
    "of no width": (
        lambda a: a._replace(x=np.zeros((4, 3, 0), "f4")),
        ValueError,
        r"^x must have 3 as its last dimension",
    ),
    "of no steps": (
        lambda a: a._replace(x=a.x[:0]),
        ValueError,
        r"^x must have at least one time step; got T = 0$",
    ),
    "of no steps and no rows": (
        lambda a: a._replace(x=a.x[:0, :0]),
        ValueError,
        r"^x must have at least one time step; got T = 0$",
    ),
    "of no rows, with lengths of some": (
        lambda a: a._replace(x=a.x[:, :0]),
        ValueError,
        r"^lengths must have one entry for each of the 0 rows of the batch; got 3$",
    ),
    "of no rows, with states of some": (
        lambda a: a._replace(x=a.x[:, :0]).with_(lengths=[]),
        ValueError,
        r"^h_0 must have shape \(1, 0, 5\); got \(1, 3, 5\)$",
    ),
    "of another dtype": (
        lambda a: a._replace(x=double(a.x)),
        TypeError,
        r"^x must have the dtype of the weights, float32; got float64; (use|convert)",
    ),
    "of integers": (
        lambda a: a._replace(x=a.x.astype(int)),
        TypeError,
        r"^x must have the dtype of the weights, float32; got int64; (use|convert)",
    ),
}


@pytest.mark.parametrize("mode", ["lstm", "gru"])
@each(X)
def test_x(make, error, message, mode):
    refused(mode, make, error, message)


STATE = {
    "one array": (
        lambda a: a._replace(hx=a.hx[0]),
        TypeError,
        r"^hx of an LSTM must be \(h_0, c_0\) or None; got ndarray of shape \(1, 3, 5\)$",
    ),
    "an array of two": (
        lambda a: a._replace(hx=np.stack(a.hx)),
        TypeError,
        r"^hx of an LSTM must be \(h_0, c_0\) or None; got ndarray of shape \(2, 1, 3, 5\)$",
    ),
    "without c_0": (
        lambda a: a._replace(hx=a.hx[:1]),
        TypeError,
        r"^hx of an LSTM must be \(h_0, c_0\) or None; got tuple of 1$",
    ),
    "a mapping": (
        lambda a: a._replace(hx=dict(zip("hc", a.hx, strict=True))),
        TypeError,
        r"^hx of an LSTM must be \(h_0, c_0\) or None; got dict$",
    ),
    "c_0 None": (changed_state(1, None), TypeError, r"^c_0 must be an array; give hx=None for "),
    "h_0 None": (changed_state(0, None), TypeError, r"^h_0 must be an array; give hx=None for "),
    "of three": (
        lambda a: a._replace(hx=(*a.hx, a.hx[0])),
        TypeError,
        r"^hx of an LSTM must be \(h_0, c_0\) or None; got tuple of 3$",
    ),
    "h_0 of no array": (changed_state(0, "zeros"), TypeError, f"^h_0 {NOT_AN_ARRAY}.*got str$"),
    "c_0 of no array": (
        changed_state(1, [0.0]),
        TypeError,
        f"^c_0 {NOT_AN_ARRAY}.*got list(; use |$)",
    ),
    "h_0 of another dtype": (
        changed_state(0, double),
        TypeError,
        r"^h_0 must have the dtype of the weights, float32; got float64; (use|convert)",
    ),
    "c_0 of another dtype": (
        changed_state(1, double),
        TypeError,
        r"^c_0 must have the dtype of the weights, float32; got float64; (use|convert)",
    ),
    "h_0 for another batch": (
        changed_state(0, shape(1, 4, 5)),
        ValueError,
        r"^h_0 must have shape \(1, 3, 5\); got \(1, 4, 5\)$",
    ),
    "h_0 of another size": (
        changed_state(0, shape(1, 3, 4)),
        ValueError,
        r"^h_0 must have shape \(1, 3, 5\); got \(1, 3, 4\)$",
    ),
    "h_0 of two layers": (
        changed_state(0, shape(2, 3, 5)),
        ValueError,
        r"^h_0 must have shape \(1, 3, 5\); got \(2, 3, 5\)$",
    ),
    "h_0 of rank 2": (
        changed_state(0, shape(3, 5)),
        ValueError,
        r"^h_0 must have shape \(1, 3, 5\); got \(3, 5\)$",
    ),
    "h_0 with the batch first": (
        changed_state(0, lambda h: h.swapaxes(0, 1)),
        ValueError,
        r"^h_0 must have shape \(1, 3, 5\); got \(3, 1, 5\)$",
    ),
    "c_0 for another batch": (
        changed_state(1, shape(1, 4, 5)),
        ValueError,
        r"^c_0 must have shape \(1, 3, 5\); got \(1, 4, 5\)$",
    ),
    "c_0 of rank 1": (
        changed_state(1, shape(15)),
        ValueError,
        r"^c_0 must have shape \(1, 3, 5\); got \(15,\)$",
    ),
}


@each(STATE)
def test_states_of_an_lstm(make, error, message):
    refused("lstm", make, error, message)


def test_c_0_of_a_projected_lstm_has_the_hidden_size():
    make = changed_state(1, shape(1, 3, 2))
    message = r"^c_0 must have shape \(1, 3, 5\); got \(1, 3, 2\)$"
    refused("lstm", make, ValueError, message, proj_size=2)


def test_h_0_of_a_projected_lstm_has_the_projected_size():
    make = changed_state(0, shape(1, 3, 5))
    message = r"^h_0 must have shape \(1, 3, 2\); got \(1, 3, 5\)$"
    refused("lstm", make, ValueError, message, proj_size=2)


ONE_STATE = {
    "with c_0": (
        lambda a: a._replace(hx=(a.hx, a.hx)),
        TypeError,
        r"^h_0 must be one array: .* has no cell state; got a tuple of 2$",
    ),
    "in a list": (
        lambda a: a._replace(hx=[a.hx]),
        TypeError,
        r"^h_0 must be one array: .* has no cell state; got a list of 1$",
    ),
    "of no array": (lambda a: a._replace(hx=0), TypeError, f"^h_0 {NOT_AN_ARRAY}.*got int$"),
    "of another size": (
        lambda a: a._replace(hx=np.zeros((1, 3, 4), "f4")),
        ValueError,
        r"^h_0 must have shape \(1, 3, 5\); got \(1, 3, 4\)$",
    ),
    "of another dtype": (
        lambda a: a._replace(hx=double(a.hx)),
        TypeError,
        r"^h_0 must have the dtype of the weights, float32; got float64; (use|convert)",
    ),
}


@pytest.mark.parametrize("mode", ["gru", "rnn_tanh", "rnn_relu"])
@each(ONE_STATE)
def test_the_state_of_a_network_without_cell(make, error, message, mode):
    refused(mode, make, error, message)


WEIGHTS = {
    "none": (lambda a: a._replace(weights=[]), ValueError, r"^weights: got no arrays$"),
    "None": (
        lambda a: a._replace(weights=None),
        TypeError,
        r"^weights must be a sequence of arrays or an RNNWeights; got NoneType$",
    ),
    "a dict": (
        lambda a: a._replace(weights=dict(enumerate(a.weights))),
        TypeError,
        r"^weights must be a sequence of arrays or an RNNWeights; got dict; RNNWeights.from_torch",
    ),
    "one array": (
        lambda a: a._replace(weights=a.weights[0]),
        TypeError,
        r"^weights must be a sequence of arrays or an RNNWeights; got ndarray$",
    ),
    "a flat buffer": (
        lambda a: a._replace(weights=np.concatenate([w.ravel() for w in a.weights])),
        TypeError,
        r"; got ndarray; to use a flat buffer, pass RNNWeights\(flat, spec, backend='cudnn'\)$",
    ),
    "a path": (
        lambda a: a._replace(weights="network.npz"),
        TypeError,
        r"^weights must be a sequence .*; got str; RNNWeights.load reads a file$",
    ),
    "an iterator": (
        lambda a: a._replace(weights=iter(a.weights)),
        TypeError,
        r"^weights must be .*; got list_iterator; list makes a sequence of one$",
    ),
    "a module": (
        lambda a: a._replace(weights=SimpleNamespace(state_dict=dict)),
        TypeError,
        r"; got SimpleNamespace; RNNWeights.from_torch takes its state_dict\(\)$",
    ),
    "a layer of Keras": (
        lambda a: a._replace(weights=SimpleNamespace(get_weights=list)),
        TypeError,
        r"; got SimpleNamespace; RNNWeights.from_keras takes a layer of Keras$",
    ),
    "lists of layers": (
        lambda a: a._replace(weights=[list(a.weights), list(a.weights)]),
        TypeError,
        r"^weights must be one list of arrays; got a list of lists, as of layers: join them as \[",
    ),
    "a flat buffer in a list": (
        lambda a: a._replace(weights=[np.concatenate([w.ravel() for w in a.weights])]),
        ValueError,
        r"^weights: 1 arrays for 1 layer\(s\) and 1 direction\(s\)",
    ),
    "too few": (
        lambda a: a._replace(weights=a.weights[:1]),
        ValueError,
        r"^weights: 1 arrays for 1 layer",
    ),
    "too many": (
        lambda a: a._replace(weights=a.weights * 2),
        ValueError,
        r"^weights: 8 arrays for 1 layer\(s\) and 1 direction\(s\); expected 2 ",
    ),
    "for more layers than said": (
        lambda a: a.with_(num_layers=3),
        ValueError,
        r"^weights: 4 arrays for 3 layer\(s\) and 1 direction\(s\)",
    ),
    "for fewer directions than said": (
        # Four arrays may be two directions without biases: the shapes tell.
        lambda a: a.with_(bidirectional=True),
        ValueError,
        r"^weights\[2\] \(w_ih of layer 0, direction 1\) must have shape ",
    ),
    "one of no array": (
        changed_weight(1, lambda w: w.tolist()),
        TypeError,
        rf"^weights\[1\] {NOT_AN_ARRAY}.*got list(; use |$)",
    ),
    "one None": (changed_weight(2, None), TypeError, rf"^weights\[2\] {NOT_AN_ARRAY}"),
    "of integers": (
        lambda a: a._replace(weights=[w.astype("int32") for w in a.weights]),
        TypeError,
        r"^weights\[0\] must have one of the dtypes float16, .*; got int32; (use|convert)",
    ),
    "one of another dtype": (
        changed_weight(3, double),
        TypeError,
        r"^weights\[3\] must have the dtype of weights\[0\], float32; got float64; (use|convert)",
    ),
    "w_ih transposed": (
        changed_weight(0, lambda w: w.T),
        ValueError,
        r"^weights\[0\]: the first dimension of w_ih must be a multiple of|^weights\[1\] \(w_hh",
    ),
    "w_ih of rank 1": (
        changed_weight(0, np.ravel),
        ValueError,
        r"^weights\[0\] must have two dimensions; got shape",
    ),
    "w_ih of no rows": (
        changed_weight(0, lambda w: w[:0]),
        ValueError,
        r"^weights\[0\]: the first dimension of w_ih must be a multiple",
    ),
    "w_hh too narrow": (
        changed_weight(1, lambda w: w[:, 1:]),
        ValueError,
        r"^weights\[1\] \(w_hh of layer 0, direction 0\) must have shape \(.*, 5\); got \(.*, 4\)$",
    ),
    "w_hh of rank 3": (
        changed_weight(1, lambda w: w[None]),
        ValueError,
        r"^weights\[1\] must have two dimensions; got shape",
    ),
    "b_ih too short": (
        changed_weight(2, lambda w: w[1:]),
        ValueError,
        r"^weights\[2\] \(b_ih of layer 0, direction 0\) must have shape ",
    ),
    "b_hh of rank 2": (
        changed_weight(3, lambda w: w[None]),
        ValueError,
        r"^weights\[3\] \(b_hh of layer 0, direction 0\) must have shape ",
    ),
}


@pytest.mark.parametrize("mode", ["lstm", "gru"])
@each(WEIGHTS)
def test_weights(make, error, message, mode):
    refused(mode, make, error, message)


def test_a_projection_on_a_gru():
    def make(a):
        return a._replace(weights=[*a.weights, np.zeros((2, 5), "f4")])

    refused("gru", make, ValueError, r"^weights: 5 arrays .*expected 2 or 4 ")


def test_a_projection_as_large_as_the_hidden_size():
    def make(a):
        return a._replace(weights=[*a.weights, np.zeros((5, 5), "f4")])

    refused("lstm", make, ValueError, r"^proj_size must be smaller than hidden_size \(5\); got 5$")


def test_a_projection_of_the_wrong_shape():
    make = changed_weight(4, lambda w: w.T)
    message = r"^weights\[4\] \(w_hr .*must have shape \(2, 5\); got \(5, 2\)$"
    refused("lstm", make, ValueError, message, proj_size=2)


def packed_weights(mode="lstm", backend="cudnn", **fields):
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=5, **fields)
    return RNNWeights.pack(testing.weights(spec, 0), spec, backend=backend)


RNN_WEIGHTS = {
    "of another mode": (
        lambda a: a._replace(weights=packed_weights("gru")),
        ValueError,
        r"^weights are of mode 'gru', but lstm was called; call dnnffi.gru$",
    ),
    "of another number of layers": (
        lambda a: a._replace(weights=packed_weights()).with_(num_layers=2),
        ValueError,
        r"^num_layers is 2; the weights have 1$",
    ),
    "of one direction": (
        lambda a: a._replace(weights=packed_weights()).with_(bidirectional=True),
        ValueError,
        r"^bidirectional is True; the weights are for one direction$",
    ),
    "of another dtype": (
        lambda a: a._replace(weights=packed_weights(dtype="float64")),
        TypeError,
        r"^x must have the dtype of the weights, float64; got float32; (use|convert)",
    ),
    "of another input size": (
        lambda a: a._replace(weights=packed_weights(), x=a.x[..., 1:]),
        ValueError,
        r"^x must have 3 as its last dimension",
    ),
    "with num_layers no integer": (
        lambda a: a._replace(weights=packed_weights()).with_(num_layers="1"),
        TypeError,
        r"^num_layers must be an integer; got str$",
    ),
    "with bidirectional no bool": (
        lambda a: a._replace(weights=packed_weights()).with_(bidirectional=0),
        TypeError,
        r"^bidirectional must be True or False; got 0$",
    ),
}


@each(RNN_WEIGHTS)
def test_packed_weights(make, error, message):
    refused("lstm", make, error, message)


KEYWORDS = {
    "num_layers of 0": (
        lambda a: a.with_(num_layers=0),
        ValueError,
        r"^num_layers must be from 1 to 10000; got 0$",
    ),
    "num_layers of 1.0": (
        lambda a: a.with_(num_layers=1.0),
        TypeError,
        r"^num_layers must be an integer; got float$",
    ),
    "bidirectional of 1": (
        lambda a: a.with_(bidirectional=1),
        TypeError,
        r"^bidirectional must be True or False; got 1$",
    ),
    "batch_first of 1": (
        lambda a: a._replace(x=a.x.swapaxes(0, 1)).with_(batch_first=1),
        TypeError,
        r"^batch_first must be True or False; got 1$",
    ),
    "batch_first of 0": (
        lambda a: a.with_(batch_first=0),
        TypeError,
        r"^batch_first must be True or False; got 0$",
    ),
    "batch_first of None": (
        lambda a: a.with_(batch_first=None),
        TypeError,
        r"^batch_first must be True or False; got None$",
    ),
    "batch_first in a list": (
        lambda a: a.with_(batch_first=[True]),
        TypeError,
        r"^batch_first must be True or False; got \[True\]$",
    ),
    "a length below 0": (
        lambda a: a.with_(lengths=(2, 4, -1)),
        ValueError,
        r"^lengths\[2\] must be from 0 to 4 \(T\); got -1$",
    ),
    "a length above T": (
        lambda a: a.with_(lengths=(5, 4, 1)),
        ValueError,
        r"^lengths\[0\] must be from 0 to 4 \(T\); got 5$",
    ),
    "too few lengths": (
        lambda a: a.with_(lengths=(2, 4)),
        ValueError,
        r"^lengths must have one entry for each of the 3 rows of the batch; got 2$",
    ),
    "too many lengths": (
        lambda a: a.with_(lengths=(2, 4, 1, 1)),
        ValueError,
        r"^lengths must have one entry for each of the 3 rows of the batch; got 4$",
    ),
    "no lengths": (
        lambda a: a.with_(lengths=()),
        ValueError,
        r"^lengths must have one entry for each of the 3 rows of the batch; got 0$",
    ),
    "lengths of floats": (
        lambda a: a.with_(lengths=(2.0, 4.0, 1.0)),
        TypeError,
        r"^lengths\[0\] must be an integer; got float$",
    ),
    "lengths of bools": (
        lambda a: a.with_(lengths=(2, 4, True)),
        TypeError,
        r"^lengths\[2\] must be an integer; got bool$",
    ),
    "lengths of None": (
        lambda a: a.with_(lengths=[2, None, 1]),
        TypeError,
        r"^lengths\[1\] must be an integer; got NoneType$",
    ),
    "lengths in an array of floats": (
        lambda a: a.with_(lengths=np.ones(3)),
        TypeError,
        r"^lengths\[0\] must be an integer; got float64$",
    ),
    "lengths in a set": (
        lambda a: a.with_(lengths={2, 4, 1}),
        TypeError,
        r"^lengths must be a sequence of integers; got set$",
    ),
    "lengths in a dict": (
        lambda a: a.with_(lengths={2: 0, 4: 0, 1: 0}),
        TypeError,
        r"^lengths must be a sequence of integers; got dict$",
    ),
    "lengths of bytes": (
        lambda a: a.with_(lengths=b"\2\4\1"),
        TypeError,
        r"^lengths must be a sequence of integers; got bytes$",
    ),
    "lengths that are masked": (
        lambda a: a.with_(lengths=np.ma.masked_array([2, 4, 1])),
        TypeError,
        r"^lengths must be a sequence of integers; got MaskedArray$",
    ),
    "one length for all": (
        lambda a: a.with_(lengths=4),
        TypeError,
        r"^lengths must be a sequence of integers; got int$",
    ),
    "lengths and batch_sizes": (
        lambda a: a._replace(x=np.zeros((7, 3), "f4")).with_(batch_sizes=(3, 2, 1, 1)),
        ValueError,
        r"^lengths and batch_sizes exclude each other; give one$",
    ),
    "lengths and batch_sizes for x of rank 3": (
        lambda a: a.with_(batch_sizes=(3, 2, 1, 1)),
        ValueError,
        r"^lengths and batch_sizes exclude each other; give one$",
    ),
    "batch_sizes for x of rank 3": (
        lambda a: a.with_(batch_sizes=(3, 2, 1, 1), lengths=None),
        ValueError,
        r"^x must have 2 dimensions, \[sum\(batch_sizes\), I\]; got shape \(4, 3, 3\)$",
    ),
    "an unknown backend": (
        lambda a: a.with_(backend="cuda"),
        ValueError,
        r"^backend must be one of cudnn, miopen, vulkan, reference or None; got 'cuda'$",
    ),
    "a backend that is no name": (
        lambda a: a.with_(backend=["reference"]),
        TypeError,
        r"^backend must be one of cudnn, miopen, vulkan, reference or None; got \['reference'\]$",
    ),
    "options of no dict": (
        lambda a: a.with_(options="strict"),
        TypeError,
        r"^options must be a dict or None; got str$",
    ),
    "an unknown option": (
        lambda a: a.with_(options={"algo": "standard"}),
        ValueError,
        r"^options: unknown key 'algo'; known are algorithm, math, clip, clip_nan, validate, tune, "
        r"allocator, stream$",
    ),
    "an unknown algorithm": (
        lambda a: a.with_(options={"algorithm": "fast"}),
        ValueError,
        r"^options\['algorithm'\] must be one of auto, standard, .*; got 'fast'$",
    ),
    "an unknown math": (
        lambda a: a.with_(options={"math": "exact"}),
        ValueError,
        r"^options\['math'\] must be one of default, strict, fast; got 'exact'$",
    ),
    "an unknown treatment of NaN": (
        lambda a: a.with_(options={"clip_nan": True}),
        ValueError,
        r"^options\['clip_nan'\] must be one of propagate, clip; got True$",
    ),
    "a clip of one number": (
        lambda a: a.with_(options={"clip": 1.0}),
        TypeError,
        r"^options\['clip'\] must be \(low, high\) or None; got 1.0$",
    ),
    "a clip of no numbers": (
        lambda a: a.with_(options={"clip": ("-1", "1")}),
        TypeError,
        r"^options\['clip'\] must be two numbers; got ",
    ),
    "a clip upside down": (
        lambda a: a.with_(options={"clip": (1, -1)}),
        ValueError,
        r"^options\['clip'\] must be \(low, high\) with low <= high; got \(1, -1\)$",
    ),
    "a clip of NaN": (
        lambda a: a.with_(options={"clip": (-1, nan)}),
        ValueError,
        r"^options\['clip'\] must be \(low, high\) with low <= high; got \(-1, nan\)$",
    ),
    "validate of 1": (
        lambda a: a.with_(options={"validate": 1}),
        TypeError,
        r"^options\['validate'\] must be True or False; got 1$",
    ),
}


@each(KEYWORDS)
def test_keywords(make, error, message):
    refused("lstm", make, error, message)


@pytest.mark.parametrize("mode", ["gru", "rnn_tanh", "rnn_relu"])
def test_clip_of_a_network_without_cell(mode):
    message = rf"^options\['clip'\]: only an LSTM has a cell to clip; mode is '{mode}'$"
    refused(mode, lambda a: a.with_(options={"clip": (-1, 1)}), ValueError, message)


PACKED = {
    "batch_sizes that rise": (
        lambda a: a.with_(batch_sizes=(3, 1, 2, 2)),
        ValueError,
        r"^batch_sizes must never rise; batch_sizes\[2\] is 2 after 1$",
    ),
    "batch_sizes that sum to less": (
        lambda a: a.with_(batch_sizes=(3, 2, 2)),
        ValueError,
        r"^batch_sizes must sum to the first dimension of x \(8\); they sum to 7$",
    ),
    "batch_sizes that sum to more": (
        lambda a: a.with_(batch_sizes=(3, 3, 3)),
        ValueError,
        r"^batch_sizes must sum to the first dimension of x \(8\); they sum to 9$",
    ),
    "batch_sizes of 0": (
        lambda a: a.with_(batch_sizes=(3, 3, 2, 0)),
        ValueError,
        r"^batch_sizes must be 1 or more, or all of them 0; got 0$",
    ),
    "no batch_sizes": (
        lambda a: a._replace(x=a.x[:0]).with_(batch_sizes=()),
        ValueError,
        r"^batch_sizes must have at least one entry$",
    ),
    "batch_sizes of floats": (
        lambda a: a.with_(batch_sizes=(3.0, 2.0, 2.0, 1.0)),
        TypeError,
        r"^batch_sizes\[0\] must be an integer; got float$",
    ),
    "batch_sizes of bools": (
        lambda a: a.with_(batch_sizes=(3, 2, 2, True)),
        TypeError,
        r"^batch_sizes\[3\] must be an integer; got bool$",
    ),
    "batch_sizes of one number": (
        lambda a: a.with_(batch_sizes=8),
        TypeError,
        r"^batch_sizes must be a sequence of integers; got int$",
    ),
    "x too wide": (
        lambda a: a._replace(x=np.zeros((8, 7), "f4")),
        ValueError,
        r"^x must have 3 as its last dimension",
    ),
    "x of rank 1": (
        lambda a: a._replace(x=a.x[:, 0]),
        ValueError,
        r"^x must have 2 dimensions, \[sum\(batch_sizes\), I\]; got shape \(8,\)$",
    ),
    "h_0 for another batch": (
        lambda a: a._replace(hx=np.zeros((1, 8, 5), "f4")),
        ValueError,
        r"^h_0 must have shape \(1, 3, 5\); got \(1, 8, 5\)$",
    ),
}


@each(PACKED)
def test_packed_sequences(make, error, message):
    refused("gru", make, error, message, packed=True)


DROPOUT = {
    "below 0": (-0.1, ValueError, r"^dropout must be from 0 to 1; got -0.1$"),
    "above 1": (1.5, ValueError, r"^dropout must be from 0 to 1; got 1.5$"),
    "infinite": (inf, ValueError, r"^dropout must be from 0 to 1; got inf$"),
    "NaN": (nan, ValueError, r"^dropout must be from 0 to 1; got nan$"),
    "True": (True, TypeError, r"^dropout must be a number; got bool$"),
    "a string": ("0.5", TypeError, r"^dropout must be a number; got str$"),
    "None": (None, TypeError, r"^dropout must be a number; got NoneType$"),
}


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize(("value", "error", "message"), DROPOUT.values(), ids=list(DROPOUT))
def test_dropout(value, error, message, mode):
    refused(mode, lambda a: a.with_(dropout=value), error, message, training_only=True)


@pytest.mark.parametrize("state", [7, "seed", {"seed": 7}, np.random.default_rng(7)], ids=str)
def test_dropout_state(state):
    message = rf"^dropout_state must be a DropoutState; got {type(state).__name__}$"
    make = lambda a: a.with_(dropout=0.5, dropout_state=state)  # noqa: E731
    refused("lstm", make, TypeError, message, training_only=True)


BACKWARD = {
    "dy of no array": (
        lambda a: a._replace(dy=1.0),
        TypeError,
        f"^dy {NOT_AN_ARRAY}.*got float$",
    ),
    "dy of another shape": (
        lambda a: a._replace(dy=a.dy[1:]),
        ValueError,
        r"^dy must have shape \(4, 3, 5\); got \(3, 3, 5\)$",
    ),
    "dy of another dtype": (
        lambda a: a._replace(dy=double(a.dy)),
        TypeError,
        r"^dy must have the dtype of the weights, float32; got float64; (use|convert)",
    ),
    "dhx of one array": (
        lambda a: a._replace(dhx=a.dhx[0]),
        TypeError,
        r"^dhx of an LSTM must be \(dh_n, dc_n\) or None",
    ),
    "dhx of three": (
        lambda a: a._replace(dhx=(*a.dhx, None)),
        TypeError,
        r"^dhx of an LSTM must be \(dh_n, dc_n\) or None",
    ),
    "dh_n of another shape": (
        lambda a: a._replace(dhx=(a.dhx[0][0], a.dhx[1])),
        ValueError,
        r"^dh_n must have shape \(1, 3, 5\); got \(3, 5\)$",
    ),
    "dc_n of another dtype": (
        lambda a: a._replace(dhx=(a.dhx[0], double(a.dhx[1]))),
        TypeError,
        r"^dc_n must have the dtype of the weights, float32; got float64; (use|convert)",
    ),
    "no gradient": (
        lambda a: a._replace(dy=None, dhx=None),
        TypeError,
        r"^backward needs dy or dhx; both are None, so all gradients would be zero$",
    ),
    "no gradient in a pair": (
        lambda a: a._replace(dy=None, dhx=(None, None), backward={"need": "x", "retain": True}),
        TypeError,
        r"^backward needs dy or dhx; both are None",
    ),
    "an unknown need": (
        lambda a: a._replace(backward={"need": ("x", "y")}),
        ValueError,
        r"^need: unknown \['y'\]; known are x, hx, weights, reset_to$",
    ),
    "a need that is no name": (
        lambda a: a._replace(backward={"need": 5}),
        TypeError,
        r"^need must be names out of x, hx, weights, reset_to; got 5$",
    ),
    "a need of lists": (
        lambda a: a._replace(backward={"need": [["x"]]}),
        TypeError,
        r"^need must be names out of x, hx, weights, reset_to; got \[\['x'\]\]$",
    ),
    "retain of 1": (
        lambda a: a._replace(backward={"retain": 1}),
        TypeError,
        r"^retain must be True or False; got 1$",
    ),
}


@each(BACKWARD)
def test_backward(make, error, message):
    arguments = right("lstm")
    *_, ctx = call("lstm", arguments, training=True)
    wrong = make(arguments)
    with pytest.raises(error, match=message):
        ctx.backward(wrong.dy, wrong.dhx, **wrong.backward)
    ctx.backward(arguments.dy, arguments.dhx)  # nothing was spent


def test_a_pair_of_gradients_for_a_network_without_cell():
    arguments = right("gru")
    *_, ctx = call("gru", arguments, training=True)
    message = r"^dhx must be one array: gru has no cell state; got a tuple of 2$"
    with pytest.raises(TypeError, match=message):
        ctx.backward(arguments.dy, (arguments.dhx, None))


# Backends that are not there


LIBRARIES = {
    "cudnn": ("cuDNN", "libcudnn.so.9", "pip install nvidia-cudnn-cu13", cudnn),
    "miopen": ("MIOpen", "libMIOpen.so.1", "the package miopen-hip", miopen),
}


@pytest.mark.parametrize("backend", LIBRARIES)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_without_a_library_the_error_names_the_places_and_the_install_command(
    monkeypatch, tmp_path, mode, training, backend
):
    vendor, file, install, library = LIBRARIES[backend]
    missing = str(tmp_path / file)
    variable = f"DNNFFI_{backend.upper()}_LIBRARY"
    monkeypatch.setenv(variable, missing)
    monkeypatch.setattr(library._process, "current", None)
    with pytest.raises(dnnffi.LibraryNotFoundError) as caught:
        call(mode, right(mode).with_(backend=backend), training=training)
    assert isinstance(caught.value, ImportError)
    message = str(caught.value)
    assert message.startswith(f"{vendor} could not be loaded. Searched:\n")
    assert f"environment variable {variable}: {missing} (" in message
    assert f"\nInstall: {install}" in message
    assert missing in caught.value.searched[0]
    assert library._process.current is None
