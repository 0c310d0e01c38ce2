"""Asymmetric padding on the stand-in: the padded image and its kernel, whose source runs as C."""

from __future__ import annotations

import conformance_conv
import numpy as np
import pytest
from conformance import deviation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dnnffi
from dnnffi import testing
from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.own.image_copy import WORKSPACE_ALIGNMENT, ImageCopyByKernel
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import Launch
from dnnffi.errors import UnsupportedError
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_padding import PaddedImage
from dnnffi.spec.conv_problem import BACKWARD_DATA, FORWARD, OPERATIONS, ConvProblem
from dnnffi.spec.layouts import CHANNELS_LAST, LAYOUTS

DTYPES = ("float16", "bfloat16", "float32", "float64")
SPEC = ConvSpec(
    in_channels=4, out_channels=6, kernel=(3, 2), stride=(1, 2), padding=((0, 2), 1), groups=2
)
X_SHAPE = (2, 4, 5, 6)
FUSED = {"activation": "relu", "residual": True, "alpha": 0.5, "bias": True}


def problem_of(operation=FORWARD, spec=SPEC, **more):
    return ConvProblem.of(operation, spec, X_SHAPE, **more)


def check(simulator, problem, seed=0):
    arrays = testing.conv_inputs(problem, seed)
    return conformance_conv.check_values(problem, arrays, simulator.asarray, "cudnn")


def the_plan(simulator):
    (plan,) = simulator.conv.plans.values()
    return plan


asymmetric = testing.conv_specs(asymmetric=True)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=testing.conv_problems(asymmetric), seed=st.integers(0, 2**32 - 1))
def test_every_problem_has_the_result_of_the_reference(shared_simulator, problem, seed):
    spec = problem.spec
    if any(more >= step for more, step in zip(spec.output_padding, spec.stride, strict=True)):
        with pytest.raises(UnsupportedError, match="output_padding must be smaller than stride"):
            check(shared_simulator, problem, seed)
        return
    check(shared_simulator, problem, seed)
    assert shared_simulator.violation == ""
    shared_simulator.conv.clear()


# The kernel


def in_memory(array, layout):
    return np.ascontiguousarray(np.moveaxis(array, 1, -1) if layout == CHANNELS_LAST else array)


def copied(simulator, image, values, convolution_bytes=0):
    """(The padded image, what is copied out of it), in the order of memory."""
    layout = image.problem.layout
    given = simulator.asarray(in_memory(values, layout))
    copy = ImageCopyByKernel(image, 0, simulator.memory, convolution_bytes)
    start = copy.workspace_bytes - image.padded_bytes
    assert start % WORKSPACE_ALIGNMENT == 0
    assert start >= convolution_bytes
    guard = 64
    room = simulator.memory.empty((copy.workspace_bytes + guard,), np.uint8)
    room[...] = 0xFF
    at = ConvAddresses(0, 0, 0, 0, 0, room.data.ptr)._replace(**{image.operand: given.data.ptr})
    launch = Launch(simulator.memory.current_stream(), 0)
    used = copy.before(launch, at)
    assert used == at._replace(**{image.operand: room.data.ptr + start})
    padded = np.array(room[start:-guard]).view(given.dtype)
    if image.operand == "result":
        assert (np.array(room) == 0xFF).all()  # nothing was copied yet
        source = np.random.default_rng(1).normal(size=image.padded_shape).astype(given.dtype)
        room[start:-guard] = in_memory(source, layout).reshape(-1).view(np.uint8)
        padded = source
    copy.after(launch, at)
    assert (np.array(room[:start]) == 0xFF).all()
    assert (np.array(room[-guard:]) == 0xFF).all()
    return padded, np.array(given)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_image_is_copied_into_zeros_or_out_of_a_larger_one(
    simulator, operation, rank, layout, dtype
):
    padding = ((0, 3), (2, 1), 1)[:rank]
    spec = ConvSpec(in_channels=3, out_channels=2, kernel=(2,) * rank, padding=padding, dtype=dtype)
    sizes = (4, 5, 3)[:rank]
    problem = ConvProblem.of(operation, spec, (2, 3, *sizes), layout=layout)
    image = PaddedImage.of(problem)
    values = np.random.default_rng(0).normal(size=problem.x_shape).astype(dtype_object(dtype))
    padded, found = copied(simulator, image, values)
    inside = tuple(slice(o, o + n) for o, n in zip(image.offset, sizes, strict=True))
    if operation == BACKWARD_DATA:
        expected = in_memory(padded[(..., *inside)], layout)
        np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))
        return
    expected = np.zeros(image.padded_shape, values.dtype)
    expected[(..., *inside)] = values
    expected = in_memory(expected, layout).reshape(-1)
    np.testing.assert_array_equal(padded.view(np.uint8), expected.view(np.uint8))
    np.testing.assert_array_equal(found, in_memory(values, layout))


def test_the_workspace_of_the_convolution_comes_first(simulator):
    image = PaddedImage.of(problem_of())
    values = np.random.default_rng(0).normal(size=X_SHAPE).astype("f4")
    padded, _ = copied(simulator, image, values, convolution_bytes=257)
    assert padded.size == 2 * 4 * 7 * 6


def test_an_image_of_more_elements_than_threads(simulator):
    # There are eight blocks for each of 132 multiprocessors, each of a single thread here.
    spec = ConvSpec(in_channels=5, out_channels=1, kernel=(3, 3), padding=((0, 1), (2, 1)))
    image = PaddedImage.of(ConvProblem.of(FORWARD, spec, (2, 5, 60, 70)))
    values = np.random.default_rng(0).normal(size=image.shape).astype("f4")
    padded, _ = copied(simulator, image, values)
    expected = np.pad(values, [(0, 0), (0, 0), (0, 1), (1, 0)])
    np.testing.assert_array_equal(padded.reshape(expected.shape), expected)


def test_infinity_and_nan_do_not_reach_the_zeros(simulator):
    values = np.full(X_SHAPE, np.nan, np.float32)
    padded, _ = copied(simulator, PaddedImage.of(problem_of()), values)
    padded = padded.reshape(2, 4, 7, 6)
    assert np.isnan(padded[:, :, :5]).all()
    assert not padded[:, :, 5:].any()


# Plans


@pytest.mark.parametrize("transposed", [False, True])
def test_what_follows_the_convolution(simulator, transposed):
    spec = ConvSpec(
        in_channels=4, out_channels=6, kernel=(3, 2), padding=((0, 2), 1), transposed=transposed
    )
    check(simulator, problem_of(spec=spec, **FUSED))
    report = the_plan(simulator).report()
    assert "on a padded copy of the image, with it" in report
    where = "after the convolution" if transposed else "in the same kernel"
    assert f"residual and bias and relu: {where}" in report


def test_a_workspace_limit_below_the_padded_image(simulator):
    need = PaddedImage.of(problem_of()).padded_bytes + WORKSPACE_ALIGNMENT
    check(simulator, problem_of(options=ConvOptions(workspace_limit=need)))
    message = rf"options\['workspace_limit'\] must be at least {need}"
    for tune in ("auto", "now"):
        options = ConvOptions(workspace_limit=need - 1, tune=tune)
        with pytest.raises(UnsupportedError, match=message):
            check(simulator, problem_of(options=options))


def test_where_no_kernel_can_be_compiled(simulator, monkeypatch):
    monkeypatch.setattr(simulator.memory, "kernel_problem", lambda: "need NVRTC")
    message = "asymmetric padding by a kernel of dnnffi, and none can be compiled"
    with pytest.raises(UnsupportedError, match=message):
        check(simulator, problem_of())


@pytest.mark.parametrize("transposed", [False, True])
def test_what_was_measured_is_found_on_disk(simulator, tmp_path, monkeypatch, transposed):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    spec = ConvSpec(
        in_channels=4, out_channels=6, kernel=(3, 2), padding=((0, 2), 1), transposed=transposed
    )
    problem = problem_of(spec=spec, options=ConvOptions(tune="now"), **FUSED)
    for source in ("measured", "disk"):
        check(simulator, problem)
        assert the_plan(simulator).finder.tuning.source == source
        simulator.conv.clear()


def test_a_call_is_compared_with_the_reference(simulator):
    check(simulator, problem_of(options=ConvOptions(validate=True)))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_plan_of_its_user(simulator, operation):
    problem = problem_of(operation)
    arrays = testing.conv_inputs(problem, 0)
    given = [
        None if array is None else simulator.asarray(array)
        for array in conformance_conv.arguments(problem, arrays)
    ]
    out = simulator.memory.empty(problem.result_shape, np.float32)
    with dnnffi.ConvPlan(SPEC, X_SHAPE, operation=operation, backend="cudnn") as plan:
        plan.autotune()
        for _ in range(8):
            plan.run(*given, out=out)
            error = deviation(out, conformance_conv.expected(problem, arrays))
            assert error <= conformance_conv.tolerance(problem)
