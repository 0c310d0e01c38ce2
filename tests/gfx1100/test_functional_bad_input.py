"""Wrong arguments on the backend MIOpen: each is refused by name before the library is reached.

The wrong arguments are those of ``tests/test_functional_bad_input.py``, put on the device.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import test_functional_bad_input as host

import dnnffi
from dnnffi.errors import UnsupportedError
from simulators.gfx1100.hip_arrays import DlpackArray, HipArray, capsule_of

CUDA = 2


def on_device(value):
    """Replace the arrays in an argument by arrays on the device."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        return DlpackArray.of(value)
    if isinstance(value, dnnffi.RNNWeights):
        packed = value.to("miopen")
        return dnnffi.RNNWeights(DlpackArray.of(packed.flat), packed.spec, backend="miopen")
    if isinstance(value, list | tuple):
        return type(value)(on_device(part) for part in value)
    return value


def arguments_of(miopen, arguments):
    options = arguments.keywords.get("options", {})
    if options is None or isinstance(options, dict):
        options = (options or {}) | miopen.options
    x, hx, weights = map(on_device, arguments[:3])
    return arguments._replace(x=x, hx=hx, weights=weights).with_(
        **{"backend": "miopen", **arguments.keywords, "options": options}
    )


def translated(message):
    """Replace the parts of a message that differ for arrays on this device."""
    other = "must be (an array in device memory|in device memory; this)"
    message = message.replace(host.NOT_AN_ARRAY, other)
    if message.startswith("^hx of an LSTM"):  # its parts are already device arrays
        message = message.replace("got ndarray", "got DeviceArray")
        if message.endswith("got dict$"):
            return "^h_0 must be an array in device memory, .*; got dict$"
    message = message.replace("got ndarray", "got DlpackArray")
    # The hint needs ``ndim``, which an array with DLPack alone does not have.
    message = message.removesuffix(
        r"; to use a flat buffer, pass RNNWeights\(flat, spec, backend='cudnn'\)$"
    )
    # The executor checks arrays of the right shape, and does not know where its dtype is from.
    return message.replace("the dtype of the weights, ", "(the dtype of the weights, |dtype )")


def refuse(miopen, mode, make, error, message, *, training_only=False, **fields):
    for training in (True,) if training_only else (False, True):
        arguments = arguments_of(miopen, make(host.right(mode, **fields)))
        before = miopen.reached()
        with pytest.raises(error, match=translated(message)):
            host.call(mode, arguments, training=training)
        assert miopen.reached() == before


# Without cases that are not possible on a device, or with the protocols for an allocator.
X = {
    name: case for name, case in host.X.items() if name not in ("masked", "packed rows of PyTorch")
}
WEIGHTS = {name: case for name, case in host.WEIGHTS.items() if name != "lists of layers"}
KEYWORDS = {
    name: case
    for name, case in host.KEYWORDS.items()
    if not name.startswith(("options of no", "a backend that is no name"))
}
REFUSED = [
    pytest.param(mode, fields, case, id=f"{kind}: {name}")
    for kind, mode, fields, cases in (
        ("x", "lstm", {}, X),
        ("a state", "lstm", {}, host.STATE),
        ("the state", "gru", {}, host.ONE_STATE),
        ("weights", "lstm", {}, WEIGHTS),
        ("keywords", "lstm", {}, KEYWORDS),
        ("packed", "gru", {"packed": True}, host.PACKED),
    )
    for name, case in cases.items()
]


@pytest.mark.filterwarnings("ignore::dnnffi.PerformanceWarning")
@pytest.mark.parametrize(("mode", "fields", "case"), REFUSED)
def test_wrong_arguments(miopen, mode, fields, case):
    refuse(miopen, mode, *case, **fields)


@pytest.mark.parametrize(("value", "error", "message"), host.DROPOUT.values())
def test_dropout(miopen, value, error, message):
    refuse(miopen, "gru", lambda a: a.with_(dropout=value), error, message, training_only=True)


@pytest.mark.filterwarnings("ignore::dnnffi.PerformanceWarning")
@pytest.mark.parametrize(("make", "error", "message"), host.BACKWARD.values())
def test_backward(miopen, make, error, message):
    arguments = host.right("lstm")
    *_, ctx = host.call("lstm", arguments_of(miopen, arguments), training=True)
    wrong = make(arguments)
    before = miopen.reached()
    with pytest.raises(error, match=translated(message)):
        ctx.backward(on_device(wrong.dy), on_device(wrong.dhx), **wrong.backward)
    assert miopen.reached() == before
    ctx.backward(on_device(arguments.dy), on_device(arguments.dhx))  # nothing was spent


def problem(**fields):
    """x and weights of a small LSTM, on the host."""
    spec = dnnffi.RNNSpec(**{"mode": "lstm", "input_size": 3, "hidden_size": 4} | fields)
    x = np.zeros(spec.x_shape(2, 2), spec.dtype)
    return x, [np.zeros(p.shape, spec.dtype) for p in spec.parameter_shapes()]


UNSUPPORTED = {
    "float64": ({"dtype": "float64"}, {}, "RNNs are float16 or float32, not float64; cudnn and "),
    "projection": ({"proj_size": 2}, {}, "an LSTM has no projection; cudnn and reference have it"),
    "clip": ({}, {"clip": (-1, 1)}, "the cell of an LSTM is not clipped; cudnn and reference do"),
    "math": ({}, {"math": "strict"}, "there is no choice of math, 'strict' was asked for; cudnn"),
    "fast": ({}, {"math": "fast"}, "there is no choice of math, 'fast' was asked for; cudnn has"),
    "standard": (
        {},
        {"algorithm": "standard"},
        "has no algorithm 'standard', which is one of back",
    ),
    "persist": ({}, {"algorithm": "persist_static"}, "has no algorithm 'persist_static', which is"),
}


@pytest.mark.filterwarnings("ignore::dnnffi.PerformanceWarning")
@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.parametrize("training", [False, True])
def test_what_miopen_has_not(miopen, refused, name, training):
    fields, options, limit = UNSUPPORTED[name]
    x, weights = map(on_device, problem(**fields))
    function = dnnffi.lstm_forward if training else dnnffi.lstm
    before = miopen.reached()
    message = rf"^MIOpen {miopen.library.version_text}: {limit}"
    with pytest.raises(UnsupportedError, match=message) as caught:
        function(x, None, weights, backend="miopen", options=miopen.options | options)
    refused(name, caught.value)
    assert miopen.reached() == before


def test_a_projection_has_no_layout():
    spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, proj_size=2)
    with pytest.raises(UnsupportedError, match="projection"):
        dnnffi.weight_layout(spec, "miopen")


def test_an_array_on_cuda(miopen):
    class OnCuda(HipArray):
        def __dlpack_device__(self):
            return CUDA, 0

        def __dlpack__(self, *, stream=None):
            return capsule_of(self, CUDA)

    x, weights = problem()
    before = miopen.reached()
    message = r"^x must be an array on ROCm for backend 'miopen'; this .* is on CUDA, .*'cudnn'$"
    with pytest.raises(TypeError, match=message):
        dnnffi.lstm(
            OnCuda.of(x), None, on_device(weights), backend="miopen", options=miopen.options
        )
    message = r"^weights\[0\] must be an array on ROCm for backend 'miopen'"
    cuda = [OnCuda.of(w) for w in weights]
    with pytest.raises(TypeError, match=message):
        dnnffi.lstm(on_device(x), None, cuda, backend="miopen", options=miopen.options)
    assert miopen.reached() == before


def test_an_array_on_rocm_for_cudnn(miopen):
    x, weights = map(on_device, problem())
    message = r"^x must be an array on CUDA for backend 'cudnn'; this .* on ROCm, .* 'miopen'$"
    with pytest.raises(TypeError, match=message):
        dnnffi.lstm(x, None, weights, backend="cudnn", options=miopen.options)
    with pytest.raises(TypeError, match=message):
        dnnffi.lstm(x, None, weights, backend="cudnn")


def test_an_array_that_does_not_say_where_it_is_needs_a_backend(miopen):
    x, weights = problem()
    x, weights = HipArray.of(x), on_device(weights)
    with pytest.raises(TypeError, match=r"^backend must be named: x does not tell whose memory"):
        dnnffi.lstm(x, None, weights, options=miopen.options)


def test_without_cupy_an_allocator_is_needed(miopen):
    x, weights = map(on_device, problem())
    with pytest.raises(ImportError, match=r"unless options\['allocator'\] makes the results"):
        dnnffi.lstm(x, None, weights)


def test_strided_arrays(miopen):
    class Strided(DlpackArray):
        def __dlpack__(self, *, stream=None):
            return capsule_of(self, strides=(1, 2, 4))

    x, weights = problem()
    with pytest.raises(ValueError, match=r"^x must be contiguous; its .* \(4, 8, 16\) bytes"):
        dnnffi.lstm(Strided.of(x), None, on_device(weights), options=miopen.options)


OPTIONS = {
    "no function": ({"allocator": 5}, TypeError, r"^options\['allocator'\] must be a function"),
    "a stream alone": ({"stream": 0}, ValueError, r"^options\['stream'\] needs options\['alloc"),
    "a stream of no address": (
        {"allocator": DlpackArray.empty, "stream": "0"},
        TypeError,
        r"^options\['stream'\] must be the address",
    ),
    "a function of no address": (
        {"allocator": DlpackArray.empty, "stream": lambda: None},
        TypeError,
        r"^stream must be the address of a stream, or return one; got None",
    ),
    "the reference": (
        {"allocator": DlpackArray.empty, "backend": "reference"},
        TypeError,
        r"^x must be on the host for backend 'reference' with an allocator; this DlpackArray is",
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_embedding(miopen, name):
    options, error, message = OPTIONS[name]
    options = dict(options)
    backend = options.pop("backend", "miopen")
    x, weights = map(on_device, problem())
    before = miopen.reached()
    with pytest.raises(error, match=message):
        dnnffi.lstm(x, None, weights, backend=backend, options=options)
    assert miopen.reached() == before


class ReadOnly(HipArray):
    @property
    def __cuda_array_interface__(self):
        return super().__cuda_array_interface__ | {"data": (self.address, True)}


ALLOCATORS = {
    "a shape": (lambda s, d: DlpackArray((*s, 2), d), ValueError, "must have shape"),
    "a dtype": (lambda s, d: DlpackArray(s, "int32"), TypeError, "must have dtype uint8; it has i"),
    "nothing": (lambda s, d: None, TypeError, "must be an array in device memory, .* NoneType$"),
    "the host": (lambda s, d: np.empty(s, d), TypeError, "must be in device memory; this ndarray"),
    "read-only": (ReadOnly, ValueError, "must be writable"),
}


@pytest.mark.parametrize("name", ALLOCATORS)
def test_what_an_allocator_returns_is_checked(miopen, name):
    allocator, error, message = ALLOCATORS[name]
    x, weights = problem()
    spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
    packed = dnnffi.RNNWeights.pack(weights, spec, backend="miopen")
    given = dnnffi.RNNWeights(DlpackArray.of(packed.flat), spec, backend="miopen")
    before = miopen.watched.calls["miopenRNNForward"]
    with pytest.raises(error, match=re.escape("what the allocator returned ") + message):
        dnnffi.lstm_forward(on_device(x), None, given, options={"allocator": allocator})
    assert miopen.watched.calls["miopenRNNForward"] == before
