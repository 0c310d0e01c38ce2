"""Convolutions with an allocator on cuDNN: layouts, tuning, replay, dnnffi's own kernels."""

from __future__ import annotations

import ctypes

import conformance_conv
import numpy as np
import pytest
from conformance import deviation
from simulated import external_memory
from simulated.external_memory import Allocator, StridedArray
from stress import user_arrays

import dnnffi
from dnnffi import testing
from dnnffi.backends.conv_interface import OWN
from dnnffi.backends.own.relayout import relayout
from dnnffi.convolution.backend import conv_backends
from dnnffi.convolution.executor_plan import CAPTURED_AT
from dnnffi.device.external import DeviceArray
from dnnffi.device.interface import Launch
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import BACKWARD_WEIGHTS, FORWARD, OPERATIONS, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST, LAYOUTS, packed_strides

SPEC = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2), stride=(1, 2), groups=2)
DEPTHWISE = ConvSpec(in_channels=4, out_channels=4, kernel=(3, 3), padding=1, groups=4)
SIZE = (2, 5, 6)
FUSED = {"activation": "relu", "residual": True, "alpha": 0.5, "bias": True}

pytestmark = pytest.mark.usefixtures("pool")


@pytest.fixture
def user(simulator, monkeypatch, tmp_path):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    user_arrays.install(monkeypatch)
    external_memory.install_kernels(simulator, monkeypatch)
    yield Allocator(simulator)
    user_arrays.forget(simulator.library)


def problem_of(operation=FORWARD, spec=SPEC, size=SIZE, *, tune="auto", **more):
    batch, *sizes = size
    options = ConvOptions(tune=tune)
    return ConvProblem.of(
        operation, spec, (batch, spec.in_channels, *sizes), options=options, **more
    )


class Call:
    """A problem, its arrays in the user's memory, and calls of it."""

    def __init__(self, user, problem, seed=0):
        self.user, self.problem = user, problem
        inputs = testing.conv_inputs(problem, seed)
        self.given = [
            None if array is None else user.put(array, self.strides(array.shape))
            for array in conformance_conv.arguments(problem, inputs)
        ]
        self.expected = conformance_conv.expected(problem, inputs)
        operation, spec = problem.operation, problem.spec
        name = "conv_transpose" if spec.transposed else "conv"
        self.function = getattr(dnnffi, name if operation == FORWARD else f"{name}_{operation}")
        self.shape = spec.weight_shape if operation == BACKWARD_WEIGHTS else problem.x_shape

    def strides(self, shape):
        last = self.problem.channels_last and len(shape) > 1
        return packed_strides(shape, True) if last else None

    def run(self, given=None, **options):
        problem = self.problem
        keywords = testing.conv_keywords(problem) | {"backend": "cudnn"}
        asked = {"tune": "now"} if problem.options.tune == "now" else {}
        keywords["options"] = {"allocator": self.user, **asked, **options}
        given = self.given if given is None else given
        if problem.operation == FORWARD:
            *positional, residual = given
            return self.function(*positional, residual=residual, **keywords)
        return self.function(*given, self.shape, **keywords)

    def check(self, given=None, **options):
        found = self.run(given, **options)
        tolerance = conformance_conv.tolerance(self.problem)
        assert deviation(np.array(found), self.expected) <= tolerance
        return found


def backend_of_allocators():
    (found,) = (one for one in conv_backends.used() if getattr(one, "resources", None))
    return found


def plan_of(problem):
    (plan,) = (one for one in backend_of_allocators().plans.values() if one.problem == problem)
    return plan


# Layouts


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_result_is_the_allocators_and_has_the_layout_of_the_first_array(
    user, operation, layout, transposed
):
    spec = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2), groups=2, transposed=transposed)
    more = FUSED if operation == FORWARD else {}
    problem = problem_of(operation, spec, layout=layout, **more)
    found = Call(user, problem).check()
    assert type(found) is StridedArray
    wanted = packed_strides(problem.result_shape, layout == CHANNELS_LAST)
    if layout == CHANNELS_LAST:
        assert found.strides == wanted
        assert (problem.result_shape, "float32", {"strides": wanted}) in user.calls
    else:
        assert found.strides is None
        assert all(more == {} for _, _, more in user.calls)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_and_three_dimensions(user, layout, rank):
    spec = ConvSpec(in_channels=2, out_channels=4, kernel=(3,) * rank, padding=1)
    Call(user, problem_of(spec=spec, size=(2, *(5, 6, 4)[:rank]), layout=layout)).check()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("transposed", [False, True])
def test_asymmetric_padding(user, layout, operation, transposed):
    spec = ConvSpec(
        in_channels=4,
        out_channels=6,
        kernel=(3, 3),
        stride=2,
        padding=((0, 1), (2, 1)),
        transposed=transposed,
    )
    Call(user, problem_of(operation, spec=spec, layout=layout)).check()


def test_weights_in_another_layout_than_the_images_are_copied_on_the_device(user):
    call = Call(user, problem_of(layout=CHANNELS_LAST))
    x, w, *rest = call.given
    first = user.put(np.array(w))
    assert first.strides is None
    call.check([x, first, *rest])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["x", "w"])
def test_an_array_with_gaps_is_copied_on_the_device(user, layout, name):
    call = Call(user, problem_of(layout=layout))
    index = ("x", "w").index(name)
    values = np.array(call.given[index])
    wider = (*values.shape[:3], 2 * values.shape[3])
    given = list(call.given)
    steps = packed_strides(wider, layout == CHANNELS_LAST)
    given[index] = user.put(values, (*steps[:3], 2 * steps[3]))
    found = call.check(given)
    assert (found.strides is None) == (layout == CHANNELS_FIRST)


def test_an_address_that_is_not_a_multiple_of_16_is_copied(user):
    call = Call(user, problem_of())
    x, *rest = call.given
    values = np.array(x)
    room = user.put(np.zeros(values.size + 1, "f4"))
    at = room.__cuda_array_interface__["data"][0] + 4
    (ctypes.c_char * values.nbytes).from_address(at)[:] = values.tobytes()
    moved = DeviceArray(room, "cuda", 0, at, values.shape, values.dtype)
    call.check([moved, *rest])


def test_an_allocator_without_strides_is_told_what_for(user):
    call = Call(user, problem_of(layout=CHANNELS_LAST))
    with pytest.raises(TypeError, match="strides") as caught:
        call.run(allocator=lambda shape, dtype: user(shape, dtype))
    assert any("channels of the result are last" in note for note in caught.value.__notes__)
    Call(user, problem_of()).check(allocator=lambda shape, dtype: user(shape, dtype))


def test_an_allocator_that_returns_other_strides_is_refused(user):
    call = Call(user, problem_of(layout=CHANNELS_LAST))
    with pytest.raises(ValueError, match=r"^what the allocator returned must have strides \("):
        call.run(allocator=lambda shape, dtype, strides=None: user(shape, dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_result_is_compared_with_the_reference(user, layout):
    Call(user, problem_of(layout=layout, **FUSED)).check(validate=True)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_batch_the_result_is_the_allocators(simulator, user, layout, operation):
    problem = problem_of(operation, size=(0, 5, 6), layout=layout)
    call = Call(user, problem)
    simulator.control.standin_reset()
    found = call.run()
    assert found.shape == problem.result_shape
    assert not np.array(found).any()
    assert simulator.calls("*") == 0


# The gradient of a bias


@pytest.mark.parametrize("shape", [(2, 6, 3, 5), (3, 4, 7), (1, 1, 1, 1), (2, 3, 2, 3, 4)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_of_a_bias_is_summed_by_our_kernels(user, layout, shape):
    values = np.random.default_rng(0).standard_normal(shape).astype("f4")
    strides = packed_strides(shape, True) if layout == CHANNELS_LAST else None
    dy = user.put(values, strides)
    found = dnnffi.conv_backward_bias(dy, backend="cudnn", options={"allocator": user})
    assert type(found) is StridedArray
    axes = (0, *range(2, len(shape)))
    np.testing.assert_allclose(np.array(found), values.sum(axis=axes), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("last", [False, True])
def test_a_bias_gradient_of_an_array_with_gaps(user, last):
    values = np.random.default_rng(0).standard_normal((2, 6, 3, 5)).astype("f4")
    steps = packed_strides((2, 6, 3, 10), last)
    dy = user.put(values, (*steps[:3], 2 * steps[3]))
    found = dnnffi.conv_backward_bias(dy, backend="cudnn", options={"allocator": user})
    np.testing.assert_allclose(np.array(found), values.sum(axis=(0, 2, 3)), rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_bias_of_no_batch_is_0(user):
    dy = user.put(np.zeros((0, 3, 4), "f4"))
    found = dnnffi.conv_backward_bias(dy, backend="cudnn", options={"allocator": user})
    assert np.array(found).tolist() == [0, 0, 0]


def test_a_further_gradient_of_a_bias_allocates_its_result_alone(user):
    dy = user.put(np.ones((2, 3, 4), "f4"))
    dnnffi.conv_backward_bias(dy, backend="cudnn", options={"allocator": user})
    del user.calls[:]
    dnnffi.conv_backward_bias(dy, backend="cudnn", options={"allocator": user})
    assert [shape for shape, *_ in user.calls] == [(3,)]


# Tuning, replay, kernels


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_call_is_tuned_and_new_sizes_use_what_was_measured(user, layout):
    problem = problem_of(size=(4, 8, 16), tune="now", layout=layout)
    Call(user, problem).check()
    tuning = plan_of(problem).finder.tuning
    assert tuning.source == "measured"
    assert {name.split()[1] for name in tuning.times} == {"1", "2", "3"}
    other = problem_of(size=(3, 9, 16), tune="now", layout=layout)
    Call(user, other).check()
    assert plan_of(other).finder.tuning is tuning


@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_on_the_same_addresses_are_replayed(simulator, user, layout):
    call = Call(user, problem_of(layout=layout, **FUSED))
    for number in range(1, 2 * CAPTURED_AT):
        call.check()
        assert plan_of(call.problem).graph_count == (number >= CAPTURED_AT)
    (graph,) = plan_of(call.problem)._of_thread().operation.graphs.values()
    assert graph.launches == CAPTURED_AT
    del graph
    simulator.control.standin_reset()
    call.check()
    assert simulator.calls("*") == simulator.calls("cudnnBackendExecute") == 1


def test_a_call_that_is_known_is_not_checked_again(user, monkeypatch):
    call = Call(user, problem_of(layout=CHANNELS_LAST))
    for _ in range(2):
        call.check()
    monkeypatch.setattr(dnnffi.convolution.functions, "_checked", None)
    call.check()
    Call(user, call.problem, seed=1).check()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_depthwise_kernels_are_measured_and_used(user, layout, monkeypatch):
    from dnnffi.convolution import tuning as conv_tuning

    times = iter((1.0, *[9.0] * 20))
    monkeypatch.setattr(conv_tuning, "_time", lambda call, memory, best: next(times))
    problem = problem_of(spec=DEPTHWISE, size=(2, 9, 7), tune="now", layout=layout, **FUSED)
    Call(user, problem).check()
    assert plan_of(problem)._of_thread().executor.choice.engine == OWN


def test_what_no_engine_fuses_is_a_kernel_of_ours(simulator, user):
    simulator.control.standin_set_max_operations(1)
    problem = problem_of(**FUSED)
    Call(user, problem).check()
    assert "after the convolution" in plan_of(problem).report()


def test_plans_of_allocators_are_apart_from_those_of_cupy(simulator, user):
    problem = problem_of()
    Call(user, problem).check()
    arrays = testing.conv_inputs(problem, 0)
    conformance_conv.run(problem, arrays, simulator.asarray, "cudnn")
    assert len(simulator.conv.plans) == 1
    found = [one for one in conv_backends.used() if getattr(one, "resources", None)]
    assert [len(one.plans.values()) for one in found] == [1, 1]


# Copies on the device


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_copy_has_the_elements_of_its_source(simulator, dtype):
    random = np.random.default_rng(0)
    for _ in range(12):
        rank = int(random.integers(1, 6))
        shape = tuple(map(int, random.integers(1, 5, rank)))
        source = simulator.asarray(
            random.standard_normal(tuple(2 * n for n in shape)).astype(dtype)
        )
        source = source[tuple(slice(None, None, int(step)) for step in random.integers(1, 3, rank))]
        source = source[tuple(slice(n) for n in shape)].transpose(random.permutation(rank))
        last = bool(random.integers(2))
        strides = tuple(n * source.itemsize for n in packed_strides(source.shape, last))
        target = simulator.memory.empty_strided(source.shape, source.dtype, strides, source.nbytes)
        relayout(source, target, Launch(simulator.memory.stream, 0), simulator.memory)
        np.testing.assert_array_equal(target, source)


def test_a_broadcast_array_is_copied(simulator):
    source = np.broadcast_to(simulator.asarray(np.arange(3.0)), (2, 4, 3)).view(
        simulator.memory.ndarray
    )
    target = simulator.memory.empty((2, 4, 3), "f8")
    relayout(source, target, Launch(simulator.memory.stream, 0), simulator.memory)
    np.testing.assert_array_equal(target, source)
