"""Refused arguments, default values, engines of implementations, and single-device programs."""

from __future__ import annotations

import re
import sys
import tracemalloc
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla.jax_programs import assert_close, convolution, network

import dnnffi
from dnnffi import jax as djax
from dnnffi.errors import PerformanceWarning, UnsupportedError
from dnnffi.jax import xla_ffi
from dnnffi.jax._cdef import ffi
from dnnffi.jax.arrays import warn_once
from dnnffi.jax.convolution import implementations as conv_implementations
from dnnffi.jax.convolution.engine import ReferenceEngine as ConvReferenceEngine
from dnnffi.jax.convolution.engine import ReferenceExecutor
from dnnffi.jax.engine import VendorHandles
from dnnffi.jax.handlers import each
from dnnffi.jax.rnn import implementations, tuning
from dnnffi.jax.rnn.engine import ReferenceEngine
from dnnffi.jax.rnn.handlers import ALIGNMENT, Handlers
from dnnffi.jax.xla_ffi import Buffer, Buffers

SPEC = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2)
PROBLEM = dnnffi.RNNProblem.dense(SPEC, steps=5, batch=4)
TRAINING = PROBLEM._replace(training=True)
CONV = dnnffi.ConvProblem.of(
    "forward", dnnffi.ConvSpec(in_channels=2, out_channels=3, kernel=(3,)), (2, 2, 8)
)


def test_the_names_of_all_implementations_are_in_the_error():
    message = r"^implementation must be one of .*cudnn, .*, {} or None; got 'x'$"
    one = network(PROBLEM, "x")
    with pytest.raises(ValueError, match=message.format("scan")):
        one.function(*one.arrays)
    one = convolution(CONV, "x")
    with pytest.raises(ValueError, match=message.format("lax")):
        one.function(*one.arrays)


NETWORK_DEFAULTS = {
    "num_layers": 1,
    "bidirectional": False,
    "lengths": None,
    "batch_first": False,
    "dropout": 0.0,
    "key": None,
    "implementation": None,
    "options": None,
}
CONV_DEFAULTS = {
    "stride": 1,
    "padding": 0,
    "dilation": 1,
    "groups": 1,
    "activation": None,
    "alpha": 1.0,
    "layout": "channels_first",
    "implementation": None,
    "options": None,
}


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_defaults_of_networks_are_those_of_one_plain_layer(mode):
    spec = dnnffi.RNNSpec(mode=mode, input_size=3, hidden_size=3)
    x, hx, flat = network(dnnffi.RNNProblem.dense(spec, steps=3, batch=5), None).arrays
    function, arrays = getattr(djax, mode), djax.unpack(flat, spec)
    found = function(x, hx, arrays)
    assert found[0].shape == (3, 5, 3)
    assert_close(found, function(x, hx, arrays, **NETWORK_DEFAULTS), tolerance=0)


def test_defaults_of_a_convolution_are_those_of_a_plain_one():
    x, w, bias = jnp.ones((2, 4, 6)), jnp.ones((5, 4, 3)), jnp.ones(5)
    residual = jnp.ones((2, 5, 4))
    found = djax.conv(x, w, bias, residual=residual)
    expected = djax.conv(x, w, bias, residual=residual, **CONV_DEFAULTS)
    assert_close(found, expected, tolerance=0)
    assert_close(found, jnp.full((2, 5, 4), 12.0 + 1.0 + 1.0), tolerance=0)


@pytest.mark.parametrize("implementation", [None, "scan", "reference"])
def test_an_empty_batch_has_steps_and_may_have_lengths(implementation):
    weights = network(PROBLEM, None).arrays[2]

    def run(steps, lengths):
        x = jnp.zeros((steps, 0, 3))
        return djax.lstm(
            *(x, None, weights),
            spec=SPEC,
            layout="cudnn",
            lengths=lengths,
            implementation=implementation,
        )

    y, (h_n, c_n) = run(5, ())
    assert (y.shape, h_n.shape, c_n.shape) == ((5, 0, 4), (2, 0, 4), (2, 0, 4))
    with pytest.raises(ValueError, match=r"^x must have at least one time step; got T = 0$"):
        run(0, None)


def test_a_list_of_weights_must_be_that_of_the_spec():
    x, hx, flat = network(PROBLEM, None).arrays
    arrays = djax.unpack(flat, SPEC, layout="cudnn")
    found = djax.lstm(x, hx, arrays, spec=SPEC)
    assert_close(found, djax.lstm(x, hx, flat, spec=SPEC, layout="cudnn"), tolerance=0)
    arrays[1] = arrays[1][:, 1:]
    with pytest.raises(ValueError, match=r"weight.*\(16, 3\)"):
        djax.lstm(x, hx, arrays, spec=SPEC)


@pytest.mark.parametrize("case", [network(TRAINING, "reference"), convolution(CONV, "reference")])
def test_a_program_for_one_device_is_not_partitioned(case):
    text = jax.jit(case.function).lower(*case.arrays).as_text()
    assert "custom_call @dnnffi_reference" in text
    assert "Partition" not in text


@pytest.mark.parametrize("case", [network(PROBLEM, "reference"), convolution(CONV, "reference")])
def test_results_of_handlers_have_a_strong_type(case):
    weak = jax.tree.map(lambda array: jnp.full(array.shape, 1.0), case.arrays)
    assert all(array.weak_type for array in jax.tree.leaves(weak))
    assert not any(array.weak_type for array in jax.tree.leaves(case.function(*weak)))
    gradients = jax.grad(case.loss, tuple(range(len(weak))))(*weak)
    if case.arrays[-1].ndim == 1:  # weights of a network, which the call casts; so are JAX's casts
        *gradients, of_weights = gradients
        assert of_weights.weak_type
    assert not any(array.weak_type for array in jax.tree.leaves(gradients))


def test_networks_on_cudnn_use_what_was_measured_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    backend = SimpleNamespace(library="library", tuner="tuner")
    backends = SimpleNamespace(external={"cudnn": backend}.__getitem__)
    monkeypatch.setattr(implementations, "rnn_backends", backends)
    monkeypatch.setattr(implementations, "VendorEngine", lambda record, *given: given)
    assert implementations._cudnn() == ("library", "tuner")


def test_convolutions_on_cudnn_use_what_was_measured_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    family = conv_implementations
    backend = SimpleNamespace(library="library", tuner="tuner")
    backends = SimpleNamespace(external={"cudnn": backend}.__getitem__)
    monkeypatch.setattr(family, "conv_backends", backends)
    monkeypatch.setattr(family, "CudnnEngine", lambda *given: given)
    assert family._cudnn() == ("library", "tuner")


def test_a_reserve_space_that_no_forward_pass_filled_is_refused():
    executor = ReferenceEngine().make(TRAINING, "")
    reserve = np.ones(executor.reserve_bytes, np.uint8)
    at = SimpleNamespace(reserve=reserve.ctypes.data)
    with pytest.raises(RuntimeError, match="the reserve space is not from a forward pass"):
        executor.backward_data(None, at)


class Engine(ReferenceEngine):
    """The reference, for batches of which ``supported`` is true."""

    def __init__(self, supported):
        super().__init__()
        self._supported = supported

    def make(self, problem, candidate):
        if not self._supported(problem.batch):
            raise UnsupportedError("Odd", "", f"takes no batch of {problem.batch}")
        return super().make(problem, candidate)


@pytest.fixture
def handlers_of():
    """Handlers of networks on an engine, which XLA never calls."""
    return lambda supported: Handlers("dnnffi_refusals", "cpu", lambda: Engine(supported))


def test_a_share_of_the_batch_that_is_not_supported_has_no_say_in_sizes(handlers_of):
    whole = handlers_of(lambda batch: True)
    sizes = whole.sizes(TRAINING, "", 4)
    executors = [whole.engine.make(TRAINING._replace(batch=n), "") for n in (1, 2, 4)]
    rows = [-(-one.reserve_bytes // n) for n, one in zip((1, 2, 4), executors, strict=True)]
    assert sizes.reserve_row == -(-max(rows) // ALIGNMENT) * ALIGNMENT
    assert sizes.workspace == executors[0].workspace_bytes
    assert handlers_of(lambda batch: batch == 4).sizes(TRAINING, "", 4).reserve_row == ALIGNMENT
    with pytest.raises(UnsupportedError, match="takes no batch of 4"):
        handlers_of(lambda batch: batch != 4).sizes(TRAINING, "", 4)


def test_a_problem_of_inference_has_no_reserve_space(handlers_of):
    sizes = handlers_of(lambda batch: True).sizes(PROBLEM, "", 4)
    assert (sizes.workspace, sizes.reserve_row) == (1, 0)


def buffers(problems, operands, results, shared=()):
    """Arrays by name with their bytes for each problem; all problems have the ``shared`` ones."""

    def listed(sizes):
        return [
            Buffer(name, "uint8", (1 if name in shared else problems, nbytes))
            for name, nbytes in sizes.items()
        ]

    return Buffers(listed(operands), listed(results))


@pytest.mark.parametrize("count", [1, 3])
def test_each_problem_has_its_place_in_the_arrays(count):
    called = []
    run = each(
        lambda launch, addresses: called.append(addresses),
        buffers(count, {"x": 16, "w": 32}, {"y": 48, "workspace": 64}, shared=("w", "workspace")),
        *(count, 16),
    )
    run(None, [1024, 2048, 4096, 8192, 0])
    assert called == [[1024 + 16 * n, 2048, 4096 + 48 * n, 8192, 0] for n in range(count)]
    with pytest.raises(RuntimeError, match=r"^w lies at 0x808, no multiple of 16$"):
        run(None, [1024, 2056, 4096, 8192, 0])


def test_results_and_operands_that_overlap_are_refused_up_to_the_last_byte():
    of_three = buffers(3, {"x": 16, "w": 32}, {"y": 48}, shared=("w",))
    run = each(lambda launch, addresses: None, of_three, 3)
    run(None, [1000, 1048, 1080, 0])
    for x, w, y in ((1033, 2000, 1080), (2000, 1049, 1080), (1223, 2000, 1080)):
        with pytest.raises(RuntimeError, match="xla_gpu_enable_dynamic_slice_fusion=false"):
            run(None, [x, w, y, 0])
    run(None, [1224, 2000, 1080, 0])


def test_problems_that_would_not_be_aligned_are_refused():
    sizes = {"x": 16}, {"y": 24}
    with pytest.raises(RuntimeError, match=r"^y: 24 bytes a problem, no multiple of 16$"):
        each(lambda launch, addresses: None, buffers(2, *sizes), 2, alignment=16)
    each(lambda launch, addresses: None, buffers(1, *sizes), 1, alignment=16)


def test_new_addresses_are_checked_however_many_there_were():
    run = each(lambda launch, addresses: None, buffers(1, {"x": 16}, {"y": 16}), 1)
    for n in range(200):
        run(None, [1024 * n, 1024 * n + 512, 0])
    with pytest.raises(RuntimeError, match="xla_gpu"):
        run(None, [1024, 1024, 0])


def test_a_batch_that_maps_make_too_large_goes_to_lax(monkeypatch):
    way = conv_implementations.IMPLEMENTATIONS["reference"]

    def decide(problem):
        if problem.batch > CONV.batch:
            raise UnsupportedError("cuDNN", "9.19.0", "cannot")
        return ""

    monkeypatch.setattr(way.handlers.engine, "decide", decide)
    monkeypatch.setattr(conv_implementations, "platform_of", lambda operands: "cuda")
    monkeypatch.setitem(conv_implementations.IMPLEMENTATIONS, "cudnn", way)
    jax.clear_caches()
    warn_once.cache_clear()

    def mapped(implementation):
        one = convolution(CONV, implementation)
        x, w = (jnp.stack([array, -array, 2 * array]) for array in one.arrays)
        over_weights = jax.vmap(one.function, (None, 0))
        return jax.vmap(over_weights, (0, None))(x, w)

    with pytest.warns(PerformanceWarning, match="has no plan for"):
        found = mapped(None)
    assert_close(found, mapped("lax"))


def calls_in(function, *arrays):
    """Batch and number of problems of each handler call in the program of a function."""
    text = jax.jit(function).lower(*arrays).as_text()
    found = re.findall(r"batch\\22:(\d+),.*?problems\\22:(\d+),", text)
    return [tuple(map(int, numbers)) for numbers in found]


@pytest.mark.parametrize(
    ("channels", "axes", "expected"),
    [
        (3, (0, None), [(6, 1)]),
        (3, (None, 0), [(2, 1)] * 3),  # not all would begin at a multiple of 16 bytes
        (4, (None, 0), [(2, 3)]),
        (4, (0, 0), [(2, 3)]),
    ],
)
def test_a_mapped_batch_is_one_larger_batch_and_mapped_weights_are_problems(
    channels, axes, expected
):
    spec = dnnffi.ConvSpec(in_channels=channels, out_channels=channels, kernel=(3,))
    problem = dnnffi.ConvProblem.of("forward", spec, (2, channels, 6))
    one = convolution(problem, "reference")
    arrays = [
        array if axis is None else jnp.stack([array] * 3)
        for array, axis in zip(one.arrays, axes, strict=True)
    ]
    assert calls_in(jax.vmap(one.function, axes), *arrays) == expected


@pytest.mark.parametrize(
    ("axes", "expected"), [((0, None, None), (12, 1)), ((0, 0, 0), (4, 3)), ((0, 0, None), (12, 1))]
)
def test_a_mapped_batch_of_a_network_is_one_larger_batch(axes, expected):
    one = network(PROBLEM, "reference")
    arrays = [
        array if axis is None else jax.tree.map(lambda part: jnp.stack([part] * 3), array)
        for array, axis in zip(one.arrays, axes, strict=True)
    ]
    assert calls_in(jax.vmap(one.function, axes), *arrays) == [expected]


@pytest.mark.parametrize("capturable", [None, False, True])
def test_xla_is_told_the_version_and_whether_it_may_capture(capturable):
    name = f"dnnffi_test_capturable_{capturable}"
    given = {} if capturable is None else {"capturable": capturable}
    xla_ffi.register(name, lambda frame: None, platform="cpu", **given)
    metadata = ffi.new("XLA_FFI_Metadata *")
    metadata.traits = 77
    extension = ffi.new("XLA_FFI_Metadata_Extension *")
    extension.extension_base.type = 1
    extension.metadata = metadata
    frame = ffi.new("XLA_FFI_CallFrame *")
    frame.extension_start = ffi.cast("XLA_FFI_Extension_Base *", extension)
    assert xla_ffi._registered[name, "cpu"](frame) == ffi.NULL
    assert metadata.traits == bool(capturable)
    assert (metadata.api_version.major_version, metadata.api_version.minor_version) == (0, 1)


@pytest.mark.parametrize("count", [1, 4])
def test_the_dtype_of_the_first_array_is_looked_at_first(count):
    one = network(PROBLEM, None)
    arrays = djax.unpack(one.arrays[2], SPEC, layout="cudnn")[:count]
    arrays = [array.astype("int32") for array in arrays]
    with pytest.raises(TypeError, match=r"^weights\[0\] must have one of the dtypes .*; got int32"):
        djax.lstm(*one.arrays[:2], arrays)


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_states_are_arrays_of_jax_or_numpy(mode):
    spec = dnnffi.RNNSpec(mode=mode, input_size=3, hidden_size=4)
    x, hx, flat = network(dnnffi.RNNProblem.dense(spec, steps=5, batch=4), None).arrays
    function = getattr(djax, mode)
    of_numpy = jax.tree.map(np.asarray, hx)
    assert_close(function(x, of_numpy, flat, spec=spec), function(x, hx, flat, spec=spec), 0)
    lists = (hx[0].tolist(), hx[1]) if mode == "lstm" else hx.tolist()
    with pytest.raises(TypeError, match=r"^h_0 must be an array of JAX or NumPy; got list$"):
        function(x, lists, flat, spec=spec)


def test_what_cudnn_does_not_have_is_not_measured(monkeypatch):
    class Engine:
        def decide(self, problem):
            raise UnsupportedError("cuDNN", "9.19.0", "cannot")

    way = SimpleNamespace(handlers=SimpleNamespace(engine=Engine()))
    monkeypatch.setitem(tuning.IMPLEMENTATIONS, "cudnn", way)
    monkeypatch.setattr(tuning, "rnn_backends", None)
    with pytest.raises(UnsupportedError, match="cannot"):
        djax.tune(SPEC, 4, 5)


@pytest.mark.parametrize("operand", ["residual", "bias"])
def test_mapped_convolutions_share_the_derivative_of_a_shared_operand(operand):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 2, 6)), rng.standard_normal((3, 4, 2, 3))
    shape = (2, 4, 4) if operand == "residual" else (4,)
    value, tangent = rng.standard_normal((2, *shape))
    x, w, value, tangent = (jnp.asarray(one, "float32") for one in (x, w, value, tangent))

    def derivative(implementation):
        def mapped(value):
            return jax.vmap(
                lambda w: djax.conv(x, w, **{operand: value}, implementation=implementation)
            )(w)

        return jax.jvp(mapped, (value,), (tangent,))

    assert_close(derivative("reference"), derivative("lax"))


def test_nested_maps_of_weights_share_what_is_not_mapped():
    one = network(PROBLEM, "reference")
    x, hx, flat = one.arrays
    weights = jnp.stack([jnp.stack([flat, -flat, 2 * flat]), jnp.stack([flat / 2, flat, flat])])
    mapped = jax.vmap(jax.vmap(one.function, (None, None, 0)), (None, None, 0))
    found = mapped(x, hx, weights)
    for at in np.ndindex(2, 3):
        part = jax.tree.map(lambda array, at=at: array[at], found)
        assert_close(part, one.function(x, hx, weights[at]))


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_mapped_convolutions_have_the_derivative_of_each_bias(layout):
    rng = np.random.default_rng(0)
    shapes = (
        ((2, 6, 5, 4), (3, 4, 3, 3, 4))
        if layout == "channels_last"
        else (
            (2, 4, 6, 5),
            (3, 4, 4, 3, 3),
        )
    )
    x, w = (jnp.asarray(rng.standard_normal(shape), "float32") for shape in shapes)
    bias, tangent = jnp.asarray(rng.standard_normal((2, 3, 4)), "float32")

    def derivative(implementation):
        def mapped(bias):
            return jax.vmap(
                lambda w, b: djax.conv(x, w, b, layout=layout, implementation=implementation)
            )(w, bias)

        return jax.jvp(mapped, (bias,), (tangent,))

    assert_close(derivative("reference"), derivative("lax"))


def test_a_workspace_that_is_not_needed_has_no_address(monkeypatch):
    seen, run = [], ReferenceExecutor.run

    def recorded(self, launch, at):
        seen.append(at.workspace)
        run(self, launch, at)

    monkeypatch.setattr(ReferenceExecutor, "run", recorded)
    jax.clear_caches()
    monkeypatch.setattr(conv_implementations.IMPLEMENTATIONS["reference"].handlers, "_prepared", {})
    one = convolution(CONV, "reference")
    jax.block_until_ready(one.function(*one.arrays))
    assert seen == [0]


def test_a_handle_is_set_to_its_stream_again_unless_a_call_succeeded_on_it(standin):
    handles = VendorHandles(standin.library)

    def borrowed(stream):
        before = standin.calls("cudnnSetStream")
        launch = handles.borrow(0, stream)
        return launch, standin.calls("cudnnSetStream") - before

    with handles.current():
        pass
    for failed, calls in ((False, 1), (False, 0), (True, 0), (False, 1)):
        launch, found = borrowed(0)
        assert found == calls
        handles.give_back(launch, failed=failed)
    launch, found = borrowed(16)
    assert found == 1
    handles.give_back(launch, failed=False)
    for handle in handles._handles[0]:
        handle.close()


def test_memory_does_not_grow_with_the_number_of_addresses():
    run = each(lambda launch, addresses: None, buffers(1, {"x": 16}, {"y": 16}), 1)
    tracemalloc.start()
    try:
        for n in range(5000):
            run(None, [1024 * n, 1024 * n + 512, 0])
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("engine", [ReferenceEngine(), ConvReferenceEngine()])
def test_the_reference_is_device_0_and_has_one_candidate_without_a_name(engine):
    launch = engine.borrow(0, 0)
    assert (engine.device(), launch.device, launch.stream.ptr) == (0, 0, 0)
    assert engine.decide(PROBLEM) == ""


def test_a_network_that_cannot_be_made_is_refused_while_tracing(handlers_of):
    assert handlers_of(lambda batch: True).decide(PROBLEM) == ""
    with pytest.raises(UnsupportedError, match="takes no batch of 4"):
        handlers_of(lambda batch: batch != 4).decide(PROBLEM)


def test_rows_of_a_batch_with_lengths_are_not_divided(handlers_of):
    problem = TRAINING._replace(lengths=(5, 4, 3, 2))
    asked = []
    handlers_of(lambda batch: asked.append(batch) or True).sizes(problem, "", 4)
    assert set(asked) == {4}
    handlers_of(lambda batch: asked.append(batch) or True).sizes(TRAINING, "", 3)
    assert set(asked) == {4, 2}
