"""Calls with an allocator on arrays on the host: the reference's results, in the user's objects."""

from __future__ import annotations

import ctypes
import re
from types import SimpleNamespace

import conformance
import numpy as np
import pytest
from host_arrays import LIBRARIES, Allocator, ByDLPack, ByInterface, values_of
from hypothesis import given, settings
from hypothesis import strategies as st
from stress import user_arrays
from stress.user_arrays import UserArray

import dnnffi
from dnnffi import RNNSpec, RNNWeights, testing
from dnnffi.device.external.use import current_allocator

STEPS, BATCH = 5, 3
SPECS = {
    "lstm": RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2, bidirectional=True),
    "lstm, projection": RNNSpec(mode="lstm", input_size=3, hidden_size=4, proj_size=2),
    "gru": RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype="float64"),
    "rnn_tanh": RNNSpec(mode="rnn_tanh", input_size=3, hidden_size=4, bias=False),
    "rnn_relu, float16": RNNSpec(mode="rnn_relu", input_size=3, hidden_size=4, dtype="float16"),
}
FORMS = {
    "time major": {},
    "batch major": {"batch_first": True},
    "lengths": {"lengths": [2, 5, 1]},
    "packed": {"batch_sizes": [3, 2, 1]},
}


def flat(values):
    """All arrays in a structure."""
    if isinstance(values, tuple | list):
        return [array for part in values for array in flat(part)]
    return [] if values is None else [values]


def drawn(shape, dtype, seed):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, shape).astype(dtype)


class Problem:
    """The arguments of a network, as NumPy arrays and as arrays of a library."""

    def __init__(self, name="lstm", library="numpy", **keywords):
        self.spec = spec = SPECS[name]
        self.allocator = Allocator(library)
        self.keywords = keywords
        batch = BATCH
        shape = spec.x_shape(STEPS, batch)
        if keywords.get("batch_first"):
            shape = (batch, STEPS, 3)
        if "batch_sizes" in keywords:
            shape = (sum(keywords["batch_sizes"]), 3)
        self.x = drawn(shape, spec.dtype, 1)
        self.hx = drawn(spec.h_shape(batch), spec.dtype, 2)
        if spec.has_cell:
            self.hx = self.hx, drawn(spec.c_shape(batch), spec.dtype, 3)
        self.weights = RNNWeights.random(spec, np.random.default_rng(4))

    def of_user(self, values):
        """Arrays as those of the library, in the same structure."""
        if isinstance(values, tuple | list):
            return type(values)(map(self.of_user, values))
        return None if values is None else self.allocator.array(values)

    @property
    def options(self):
        return {"allocator": self.allocator}

    def call(self, suffix, weights, **keywords):
        """The call without an allocator, and the one with it."""
        function = getattr(dnnffi, f"{self.spec.mode}{suffix}")
        keywords = self.keywords | keywords
        if weights == "packed":
            own, of_user = self.weights, RNNWeights(self.of_user(self.weights.flat), self.spec)
        else:
            own = self.weights.arrays()
            of_user = self.of_user([np.array(array) for array in own])
            layers = {"num_layers": self.spec.num_layers, "bidirectional": self.spec.bidirectional}
            keywords |= layers
        expected = function(self.x, self.hx, own, **keywords)
        found = function(
            self.of_user(self.x), self.of_user(self.hx), of_user, options=self.options, **keywords
        )
        return expected, found

    def check(self, expected, found):
        """The results are the same bits, in objects that the allocator returned."""
        for one, other in zip(flat(found), flat(expected), strict=True):
            assert self.allocator.has_made(one)
            np.testing.assert_array_equal(values_of(one), other, strict=True)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("weights", ["packed", "loose"])
@pytest.mark.parametrize("name", SPECS)
def test_a_training_step_returns_what_the_allocator_made(name, weights, library):
    problem = Problem(name, library)
    (*expected, right), (*found, ctx) = problem.call("_forward", weights)
    problem.check(expected, found)
    dy = drawn(expected[0].shape, problem.spec.dtype, 5)
    right = right.backward(dy, expected[1])
    gradients = ctx.backward(problem.of_user(dy), found[1])
    problem.check(right[:2], gradients[:2])
    if weights == "packed":
        problem.check(right.weights.flat, gradients.weights.flat)
        assert gradients.weights.layout == problem.weights.layout
    else:
        problem.check(right.weights, gradients.weights)
    assert current_allocator() is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_every_form_of_a_batch_runs_on_the_host(name, form):
    problem = Problem(name, "interface", **FORMS[form])
    problem.check(*problem.call("", "packed"))
    (*expected, right), (*found, ctx) = problem.call("_forward", "packed")
    problem.check(expected, found)
    problem.check(right.backward(expected[0]).x, ctx.backward(found[0]).x)


def test_dropout_draws_what_it_draws_without_an_allocator():
    problem = Problem(library="interface")
    results = []
    for options in (None, problem.options):
        y, _, ctx = dnnffi.lstm_forward(
            *(problem.x, None, problem.weights),
            dropout=0.5,
            dropout_state=dnnffi.DropoutState(7),
            options=options,
        )
        results.append([values_of(array) for array in (y, ctx.backward(y).x)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("weights", ["packed", "loose"])
def test_an_empty_batch_has_results_of_the_allocator(weights):
    problem = Problem("gru", "interface")
    problem.x, problem.hx = problem.x[:, :0], problem.hx[:, :0]
    (*expected, right), (*found, ctx) = problem.call("_forward", weights)
    problem.check(expected, found)
    right, gradients = right.backward(expected[0]), ctx.backward(found[0])
    problem.check(right[:2], gradients[:2])
    of_weights = [
        one.flat if weights == "packed" else one for one in (right.weights, gradients.weights)
    ]
    problem.check(*of_weights)


def test_bfloat16_is_allocated_by_its_name():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    problem = Problem("gru")
    problem.spec = RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype="bfloat16")
    problem.weights = RNNWeights.random(problem.spec, np.random.default_rng(0))
    problem.x, problem.hx = (a.astype(ml_dtypes.bfloat16) for a in (problem.x, problem.hx))
    asked = []

    def allocate(shape, dtype):
        asked.append(dtype)
        problem.allocator.made.append(np.empty(shape, ml_dtypes.bfloat16))
        return problem.allocator.made[-1]

    y, _ = dnnffi.gru(problem.x, problem.hx, problem.weights, options={"allocator": allocate})
    assert problem.allocator.has_made(y)
    assert set(asked) == {"bfloat16"}
    expected = dnnffi.gru(problem.x, problem.hx, problem.weights)[0]
    np.testing.assert_array_equal(y.view("u2"), expected.view("u2"))


def test_gradients_that_are_not_needed_are_not_allocated():
    problem = Problem(library="interface")
    _, (y, _, ctx) = problem.call("_forward", "packed")
    before = len(problem.allocator.made)
    assert ctx.backward(y, need="hx").x is None
    assert [a.values.shape for a in problem.allocator.made[before:]] == [(4, 3, 4)] * 2


def test_a_context_is_spent_by_one_backward_pass():
    problem = Problem("gru")
    _, (y, _, ctx) = problem.call("_forward", "packed")
    first = ctx.backward(y, retain=True)
    np.testing.assert_array_equal(ctx.backward(y).x, first.x)
    with pytest.raises(dnnffi.ContextError, match=r"^backward was already called"):
        ctx.backward(y)


@pytest.mark.parametrize("retain", [1, None, "yes"])
def test_retain_is_checked(retain):
    _, (y, _, ctx) = Problem("gru").call("_forward", "packed")
    with pytest.raises(TypeError, match=r"^retain must be"):
        ctx.backward(y, retain=retain)


def test_an_allocator_that_fails_in_the_backward_pass_spends_nothing():
    problem = Problem("gru")
    _, (y, _, ctx) = problem.call("_forward", "packed")
    right = ctx.backward(y, retain=True)
    made, problem.allocator.made = problem.allocator.made, None  # append fails
    with pytest.raises(AttributeError):
        ctx.backward(y)
    problem.allocator.made = made
    np.testing.assert_array_equal(ctx.backward(y).weights.flat, right.weights.flat)


def test_the_weights_may_be_stepped_in_place():
    problem = Problem("gru", "interface")
    buffer = ByInterface(problem.weights.flat)
    weights = RNNWeights(buffer, problem.spec)
    assert weights.flat is buffer
    arguments = problem.x, problem.hx, weights
    y, _, ctx = dnnffi.gru_forward(*arguments, options=problem.options)
    gradient = ctx.backward(y).weights
    buffer.values -= 0.1 * gradient.flat.values
    less, _ = dnnffi.gru(*arguments, options=problem.options)
    assert (less.values**2).sum() < (y.values**2).sum()


@pytest.mark.parametrize("written", ["y", "x", "weights"])
def test_validate_notices_writes_before_the_backward_pass(written):
    problem = Problem("gru", "interface")
    x, weights = ByInterface(problem.x), ByInterface(problem.weights.flat)
    options = problem.options | {"validate": True}
    y, _, ctx = dnnffi.gru_forward(x, None, RNNWeights(weights, problem.spec), options=options)
    ctx.backward(y, retain=True)
    {"x": x, "y": y, "weights": weights}[written].values[0] += 1
    with pytest.raises(dnnffi.ContextError, match=rf"^{written}.* was written to after"):
        ctx.backward(y)


class Elsewhere(ByDLPack):
    """An array that DLPack says to be on another kind of device."""

    def __init__(self, values, device_type):
        super().__init__(values)
        self._device_type = device_type

    def __dlpack_device__(self):
        return self._device_type, 0


@pytest.mark.parametrize("device_type", [3, 11], ids=["CUDAHost", "ROCmHost"])
def test_pinned_memory_is_memory_of_the_host(device_type):
    problem = Problem("gru")
    x = Elsewhere(problem.x, device_type)
    y, _ = dnnffi.gru(x, None, problem.weights, options=problem.options)
    np.testing.assert_array_equal(y, dnnffi.gru(problem.x, None, problem.weights)[0])


class PinnedLengths(Elsewhere):
    """Lengths in pinned memory, which can be read one by one."""

    def __init__(self, values):
        super().__init__(values, 3)
        self._values = values

    def __iter__(self):
        return iter(self._values)


def test_pinned_lengths_are_lengths_on_the_host():
    problem = Problem("gru")
    lengths = np.arange(problem.x.shape[1]) % problem.x.shape[0] + 1
    given = PinnedLengths(lengths)
    y, _ = dnnffi.gru(problem.x, None, problem.weights, lengths=given, options=problem.options)
    expected, _ = dnnffi.gru(problem.x, None, problem.weights, lengths=lengths)
    np.testing.assert_array_equal(y, expected)


def test_resets_of_bool_with_dlpack_are_read():
    problem = Problem("gru")
    resets = (
        np.arange(problem.x.shape[0] * problem.x.shape[1]).reshape(problem.x.shape[:2]) % 3 == 0
    )
    y, _ = dnnffi.gru(
        problem.x, None, problem.weights, resets=ByDLPack(resets), options=problem.options
    )
    expected, _ = dnnffi.gru(problem.x, None, problem.weights, resets=resets)
    np.testing.assert_array_equal(y, expected)


@settings(max_examples=50)
@given(
    problem=testing.problems(training=True),
    states=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_random_problems_have_the_results_of_the_reference(problem, states, seed):
    case = conformance.Case(problem._replace(dropout=0.0), states, seed)
    conformance.check(case, np.asarray, "reference", {"allocator": np.empty})


# Refusals


def test_the_backend_may_be_named():
    problem = Problem("gru", backend="reference")
    problem.check(*problem.call("", "packed"))


@pytest.mark.parametrize("backend", ["cudnn", "miopen"])
def test_a_backend_of_a_device_says_what_to_do_with_arrays_on_the_host(backend):
    problem = Problem("gru")
    arguments = problem.x, problem.hx, problem.weights
    message = (
        r"^x must be in device memory; this ndarray is on the host: copy it to the device, or "
        r"pass all arrays on the host, for backend='reference'$"
    )
    with pytest.raises(TypeError, match=message):
        dnnffi.gru(*arguments, backend=backend, options=problem.options)


def test_vulkan_takes_no_allocator():
    problem = Problem("gru", backend="vulkan")
    arguments = problem.x, problem.hx, problem.weights
    with pytest.raises(ValueError, match=r"for the backends 'cudnn', 'miopen' and 'reference'; go"):
        dnnffi.gru(*arguments, backend="vulkan", options=problem.options)


def in_device_memory(values):
    return UserArray.of(lambda nbytes: (ctypes.c_char * nbytes)(), values)


@pytest.mark.parametrize("name", ["x", "h_0", "c_0", "weights[1]"])
def test_an_array_in_device_memory_is_refused_by_its_name(name):
    problem = Problem("lstm, projection")
    arguments = {"x": problem.x, "h_0": problem.hx[0], "c_0": problem.hx[1]}
    arguments |= {f"weights[{i}]": np.array(w) for i, w in enumerate(problem.weights.arrays())}
    arguments[name] = in_device_memory(arguments[name])
    x, h, c, *weights = arguments.values()
    message = rf"^{re.escape(name)} must be on the host for backend 'reference'.* UserArray is in d"
    with pytest.raises(TypeError, match=message):
        dnnffi.lstm(x, (h, c), weights, backend="reference", options=problem.options)


def test_weights_in_device_memory_are_refused(monkeypatch):
    user_arrays.install(monkeypatch)
    problem = Problem("gru")
    weights = RNNWeights(in_device_memory(problem.weights.flat), problem.spec)
    with pytest.raises(TypeError, match=r"^weights must be on the host for backend 'reference'"):
        dnnffi.gru(problem.x, None, weights, options=problem.options)


@pytest.mark.parametrize("value", [memoryview(b"1234"), [1.0], np.float32(1), None])
def test_what_is_no_array_is_refused_by_its_name(value):
    problem = Problem("gru", backend="reference")
    message = rf"^x must be an array on the host, with DLPack .*; got {type(value).__name__}$"
    with pytest.raises(TypeError, match=message):
        dnnffi.gru(value, None, problem.weights, backend="reference", options=problem.options)


def test_a_packed_sequence_is_named_with_an_allocator():
    problem = Problem("gru")
    x = SimpleNamespace(data=problem.x, batch_sizes=[3, 3])
    advice = r"^x must be one array; got SimpleNamespace; give its data, with batch_sizes=x"
    for backend in (None, "reference"):
        with pytest.raises(TypeError, match=advice):
            dnnffi.gru(x, None, problem.weights, backend=backend, options=problem.options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: [w[:2], w[2:]], r"one list of arrays; got a list of lists, as of layers: join"),
        (lambda w: {"a": w[0]}, r"a sequence of arrays or an RNNWeights; got dict; RNNWeights.f"),
        (lambda w: iter(w), r"a sequence of arrays or an RNNWeights; got list_iterator; list"),
        (lambda w: "a.npz", r"a sequence of arrays or an RNNWeights; got str; RNNWeights.load"),
    ],
)
def test_weights_of_another_form_are_named_with_an_allocator(change, message):
    problem = Problem("gru")
    weights = change([np.array(w) for w in problem.weights.arrays()])
    with pytest.raises(TypeError, match=f"^weights must be {message}"):
        dnnffi.gru(problem.x, None, weights, options=problem.options)


class WithoutAddress(ByInterface):
    """An array that shows its memory as a buffer of Python."""

    @property
    def __array_interface__(self):
        return super().__array_interface__ | {"data": None}


class Refusing(ByDLPack):
    """An array whose library does not hand it out."""

    def __dlpack__(self, *, stream=None):
        raise BufferError("it is read-only")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (WithoutAddress, r"x has no address in its __array_interface__"),
        (Refusing, "x does not show its memory by DLPack: it is read-only"),
        (
            lambda x: Elsewhere(x, 2),
            "x must be on the host for backend 'reference' .* Elsewhere",
        ),
        (
            lambda x: Elsewhere(x, 7),
            "x must be on the host for backend 'reference' .* Elsewhere",
        ),
    ],
)
def test_memory_that_is_not_shown_is_refused(change, message):
    problem = Problem("gru")
    keywords = {"backend": "reference", "options": problem.options}
    with pytest.raises(TypeError, match=f"^{message}"):
        dnnffi.gru(change(problem.x), None, problem.weights, **keywords)


def test_what_is_no_array_does_not_go_to_the_reference():
    problem = Problem("gru")
    with pytest.raises(
        TypeError, match=r"^x must be an array .* on the host, with DLPack .*; got list$"
    ):
        dnnffi.gru([1.0], None, problem.weights, options=problem.options)


def test_a_strided_array_is_refused_as_on_a_device():
    problem = Problem("gru")
    x = problem.x.swapaxes(0, 1)
    keywords = {"batch_first": True, "options": problem.options}
    with pytest.raises(ValueError, match=r"^x must be contiguous; its strides are"):
        dnnffi.gru(x, None, problem.weights, **keywords)


@pytest.mark.parametrize("stream", [0, lambda: 0])
def test_the_default_stream_is_taken(stream):
    problem = Problem("gru")
    options = problem.options | {"stream": stream}
    dnnffi.gru(problem.x, None, problem.weights, options=options)


@pytest.mark.parametrize("stream", [16, lambda: 16])
def test_another_stream_is_refused(stream):
    problem = Problem("gru")
    options = problem.options | {"stream": stream}
    with pytest.raises(ValueError, match=r"^options\['stream'\] must be 0, or left out, .* 0x10$"):
        dnnffi.gru(problem.x, None, problem.weights, options=options)


class ReadOnly(ByInterface):
    """An array that says that it must not be written to."""

    @property
    def __array_interface__(self):
        return super().__array_interface__ | {"data": (self.values.ctypes.data, True)}


def frozen(shape, dtype):
    array = np.empty(shape, dtype)
    array.flags.writeable = False
    return array


ALLOCATORS = {
    "shape": (lambda s, d: np.empty((*s, 2), d), ValueError, r"must have shape \(5, 3, 4\); it ha"),
    "dtype": (lambda s, d: np.empty(s, "i4"), TypeError, "must have dtype float64; it has int32"),
    "order": (
        lambda s, d: np.empty(s, ">f8"),
        TypeError,
        "must have the native byte order; got >f8",
    ),
    "gaps": (lambda s, d: np.empty((*s, 2), d)[..., 0], ValueError, "must be contiguous; its str"),
    "read-only": (frozen, ValueError, "must be writable; it says that it is read-only"),
    "interface": (lambda s, d: ReadOnly(np.empty(s, d)), ValueError, "must be writable; it says"),
    "nothing": (lambda s, d: None, TypeError, "must be an array on the host, .*; got NoneType$"),
    "masked": (lambda s, d: np.ma.empty(s, d), TypeError, "must be a plain array; got MaskedArray"),
    "objects": (lambda s, d: np.empty(s, object), TypeError, "must have elements of numbers; got"),
    "device": (
        lambda s, d: in_device_memory(np.empty(s, d)),
        TypeError,
        "must be on the host for backend 'reference' with an allocator; this UserArray is in dev",
    ),
}


@pytest.mark.parametrize("name", ALLOCATORS)
def test_what_the_allocator_returns_is_checked(name):
    allocator, error, message = ALLOCATORS[name]
    problem = Problem("gru")
    with pytest.raises(error, match=rf"^what the allocator returned {message}"):
        dnnffi.gru(problem.x, None, problem.weights, options={"allocator": allocator})


# Convolutions

X, W, BIAS = drawn((2, 4, 5, 5), "f4", 0), drawn((6, 2, 3, 3), "f4", 1), drawn((6,), "f4", 2)
DY = drawn((2, 6, 3, 3), "f4", 3)
CALLS = {
    "conv": (dnnffi.conv, (X, W, BIAS), {"residual": DY, "alpha": 0.5, "activation": "relu"}),
    "conv_backward_data": (dnnffi.conv_backward_data, (DY, W, X.shape), {}),
    "conv_backward_weights": (dnnffi.conv_backward_weights, (DY, X, W.shape), {}),
    "conv_backward_bias": (dnnffi.conv_backward_bias, (DY,), {}),
    "conv_transpose": (dnnffi.conv_transpose, (DY, W), {}),
    "conv_transpose_backward_data": (*(dnnffi.conv_transpose_backward_data, (X, W, DY.shape), {}),),
    "conv_transpose_backward_weights": (
        *(dnnffi.conv_transpose_backward_weights, (X, DY, W.shape), {}),
    ),
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("name", CALLS)
def test_a_convolution_returns_what_the_allocator_made(name, rows, library):
    function, arrays, keywords = CALLS[name]
    groups = {} if name == "conv_backward_bias" else {"groups": 2}
    batched = [X.shape, DY.shape]

    def cut(value):
        if isinstance(value, tuple):
            return (rows, *value[1:]) if value in batched else value
        return value[:rows] if isinstance(value, np.ndarray) and value.shape in batched else value

    arrays = [cut(value) for value in arrays]
    keywords = {key: cut(value) for key, value in keywords.items()}
    allocator = Allocator(library)

    def of_user(value):
        return allocator.array(value) if isinstance(value, np.ndarray) else value

    found = function(
        *map(of_user, arrays),
        **{key: of_user(value) for key, value in keywords.items()},
        **groups,
        options={"allocator": allocator},
    )
    assert found is allocator.made[-1]
    expected = function(*arrays, **keywords, **groups)
    np.testing.assert_array_equal(values_of(found), expected, strict=True)
    assert len(allocator.made) == 1


def channels_last(values):
    """A copy of an array [N, C, ...] with the channels last in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(values, 1, -1)), -1, 1)


class Strided:
    """An array of any strides that shows its memory by ``__array_interface__``."""

    def __init__(self, values):
        self.values = values

    @property
    def __array_interface__(self):
        return self.values.__array_interface__


@pytest.mark.parametrize("array", [np.asarray, Strided])
def test_channels_stay_last_in_memory_as_on_a_device(array):
    made = []

    def allocate(shape, dtype, strides):
        steps = sorted(range(4), key=lambda axis: -strides[axis])
        empty = np.empty([shape[axis] for axis in steps], dtype)
        made.append(array(empty.transpose(np.argsort(steps))))
        return made[-1]

    x = channels_last(X)
    options = {"allocator": allocate}
    y = dnnffi.conv(array(x), array(W), groups=2, options=options)
    assert y is made[-1]
    expected = dnnffi.conv(x, W, groups=2)
    np.testing.assert_array_equal(values_of(y), expected, strict=True)
    assert values_of(y).strides == expected.strides


def test_an_allocator_without_strides_is_for_channels_first():
    with pytest.raises(TypeError, match="strides") as error:
        dnnffi.conv(channels_last(X), W, groups=2, options={"allocator": lambda s, d: None})
    assert "An allocator without this keyword" in error.value.__notes__[0]


def test_the_strides_of_what_the_allocator_returns_are_checked():
    options = {"allocator": lambda shape, dtype, strides: np.empty(shape, dtype)}
    with pytest.raises(ValueError, match=r"^what the allocator returned must have strides"):
        dnnffi.conv(channels_last(X), W, groups=2, options=options)


@pytest.mark.parametrize("name", ["conv_backward_data", "conv_backward_bias"])
def test_a_convolution_in_device_memory_is_refused_by_its_name(name):
    function, (_, *rest), _ = CALLS[name]
    options = {"backend": "reference", "options": {"allocator": Allocator("numpy")}}
    with pytest.raises(TypeError, match=r"^dy must be on the host for backend 'reference'"):
        function(in_device_memory(DY), *rest, **options)


@pytest.mark.parametrize("library", ["interface", "dlpack"])
def test_plans_and_products_take_arrays_of_the_host_and_return_numpys(library):
    def given(*shape):
        return LIBRARIES[library](drawn(shape, "float32", 0))

    weights = RNNWeights.random(SPECS["lstm"], np.random.default_rng(0))
    spec = dnnffi.ConvSpec(in_channels=3, out_channels=4, kernel=(3, 3))
    with dnnffi.RNNPlan(SPECS["lstm"], batch=3, steps=5) as plan:
        y, _ = plan.forward(given(5, 3, 3), None, weights)
    with dnnffi.ConvPlan(spec, (2, 3, 8, 8)) as plan:
        z = plan.run(given(2, 3, 8, 8), given(4, 3, 3, 3))
    product = dnnffi.matmul(given(3, 3), given(3, 3))
    assert {type(one) for one in (y, z, product)} == {np.ndarray}


def test_a_plan_on_the_host_captures_nothing():
    with (
        dnnffi.RNNPlan(SPECS["lstm"], batch=3, steps=5, backend="reference") as plan,
        pytest.raises(dnnffi.UnsupportedError, match="has no graphs"),
    ):
        plan.capture(lambda: None)
