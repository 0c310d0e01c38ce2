"""Convolutions on the reference: default values, and the devices and backends of a plan."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import dnnffi
from dnnffi import ConvPlan, ConvSpec
from dnnffi.convolution.backend import conv_backends

RANDOM = np.random.default_rng(0)
X, W, BIAS, Y = (
    RANDOM.standard_normal(shape) for shape in ((2, 3, 6, 6), (4, 3, 3, 3), (4,), (2, 4, 4, 4))
)
TRANSPOSED_BIAS = RANDOM.standard_normal(3)
GEOMETRY = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
FORWARD = {"activation": None, "alpha": 1.0}
TRANSPOSED = {"output_padding": 0}
CALLS = {
    "conv": ((X, W, BIAS), {"residual": Y}, FORWARD),
    "conv_backward_data": ((Y, W, X.shape), {}, {}),
    "conv_backward_weights": ((Y, X, W.shape), {}, {}),
    "conv_transpose": ((Y, W, TRANSPOSED_BIAS), {"residual": X}, FORWARD | TRANSPOSED),
    "conv_transpose_backward_data": ((X, W, Y.shape), {}, TRANSPOSED),
    "conv_transpose_backward_weights": ((X, Y, W.shape), {}, TRANSPOSED),
}
SPEC = ConvSpec(in_channels=3, out_channels=4, kernel=(3, 3), dtype="float64")


@pytest.mark.parametrize("name", CALLS)
def test_defaults_are_those_of_a_plain_convolution(name):
    arrays, given, defaults = CALLS[name]
    function = getattr(dnnffi, name)
    expected = function(*arrays, **given, **GEOMETRY, **defaults)
    np.testing.assert_array_equal(function(*arrays, **given), expected)


@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
def test_a_residual_is_added_once(name):
    arrays, given, _ = CALLS[name]
    function = getattr(dnnffi, name)
    np.testing.assert_allclose(function(*arrays, **given), function(*arrays) + given["residual"])


def test_a_plan_adds_its_residual_once():
    with ConvPlan(SPEC, X.shape, residual=True, bias=True, backend="reference") as plan:
        assert plan.problem.alpha == 1.0
        found = plan.run(X, W, BIAS, Y)
    np.testing.assert_array_equal(found, dnnffi.conv(X, W, BIAS, residual=Y))


@pytest.mark.parametrize("device", [None, 0])
def test_the_reference_has_one_device(device):
    with ConvPlan(SPEC, X.shape, backend="reference", device=device) as plan:
        assert plan.device == "host"
    with pytest.raises(ValueError, match=r"^device: backend 'reference' has none but 0; got 1$"):
        ConvPlan(SPEC, X.shape, backend="reference", device=1)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (1, "the NumPy reference; there is nothing to choose"),
        (0, "nothing runs: there are no images"),
    ],
)
def test_the_report_of_a_plan_on_the_reference(batch, said):
    with ConvPlan(SPEC, (batch, *X.shape[1:]), backend="reference") as plan:
        assert plan.report().splitlines()[1:] == [said]


@pytest.mark.parametrize("change", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_plan_cannot_be_copied(change):
    message = "pickle the ConvSpec and the arrays"
    plan = ConvPlan(SPEC, X.shape, backend="reference")
    with plan, pytest.raises(TypeError, match=message):
        change(plan)


@pytest.mark.parametrize("device", [None, 3])
def test_a_backend_without_convolutions_makes_no_plan(device):
    with pytest.raises(dnnffi.UnsupportedError, match="Vulkan"):
        ConvPlan(SPEC, X.shape, backend="vulkan", device=device)
    with pytest.raises(dnnffi.UnsupportedError, match="Vulkan"):
        dnnffi.conv(X, W, backend="vulkan")


def test_a_plan_takes_what_shows_its_memory_and_nothing_else():
    class Shown:
        def __dlpack_device__(self):
            return X.__dlpack_device__()

        def __dlpack__(self, **keywords):
            return X.__dlpack__(**keywords)

    with ConvPlan(SPEC, X.shape, backend="reference") as plan:
        np.testing.assert_array_equal(plan.run(Shown(), W), dnnffi.conv(X, W))
        with pytest.raises(
            TypeError, match=r"^x must be a NumPy or CuPy array, .*; got list; use numpy\.as"
        ):
            plan.run(X.tolist(), W)


def test_the_newest_1024_plans_are_kept():
    w = np.ones((1, 1, 1), np.float32)
    for size in range(1, 1100):
        dnnffi.conv(np.ones((1, 1, size), np.float32), w)
    sizes = [plan.problem.sizes[0] for plan in conv_backends.of("reference").plans.values()]
    dnnffi.clear_plans()
    assert sorted(sizes) == list(range(76, 1100))


def test_dtypes_that_are_equal_are_taken_together():
    labelled = X.astype(np.dtype("f8", metadata={"unit": "volt"}))
    assert labelled.dtype is not W.dtype
    np.testing.assert_array_equal(dnnffi.conv(labelled, W), dnnffi.conv(X, W))
    np.testing.assert_array_equal(
        dnnffi.conv(X, W, residual=Y.astype(labelled.dtype)), dnnffi.conv(X, W, residual=Y)
    )


def test_a_closed_plan_does_nothing():
    plan = ConvPlan(SPEC, X.shape, backend="reference")
    for call in (lambda: plan.run(X, W), plan.autotune):
        plan.close()
        with pytest.raises(ValueError, match=r"^this plan is closed$"):
            call()
    assert plan.closed
