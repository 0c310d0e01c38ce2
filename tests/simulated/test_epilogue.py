"""The kernel for what follows a convolution that was computed alone, its CUDA source run as C."""

from __future__ import annotations

import numpy as np
import pytest

from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.own.epilogue import EpilogueKernel
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import Launch
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_problem import FORWARD, ConvProblem
from dnnffi.spec.layouts import CHANNELS_LAST, LAYOUTS

DIGITS = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-14}
PARTS = [
    {"residual": True, "bias": True, "activation": "relu"},
    {"bias": True},
    {"residual": True},
    {"activation": "relu"},
]


def run(simulator, shape, dtype, layout, alpha=0.5, fill=None, **parts):
    """(found, expected) of an output of ``shape``."""
    rng = np.random.default_rng(0)
    batch, channels, *sizes = shape
    spec = ConvSpec(in_channels=1, out_channels=channels, kernel=(1,) * len(sizes), dtype=dtype)
    problem = ConvProblem.of(
        *(FORWARD, spec, (batch, 1, *sizes)), layout=layout, alpha=alpha, **parts
    )
    y, residual = (rng.standard_normal(shape).astype(dtype_object(dtype)) for _ in range(2))
    bias = rng.standard_normal(channels).astype(y.dtype)
    if fill is not None:
        y.reshape(-1)[: len(fill)] = fill
    expected = y.astype("f8")
    if problem.residual:
        expected = expected + alpha * residual.astype("f8")
    if problem.bias:
        expected = expected + bias.astype("f8").reshape(-1, *(1,) * len(sizes))
    if problem.activation:
        expected = np.maximum(expected, 0)

    def put(array):
        last = layout == CHANNELS_LAST and array.ndim > 1
        return simulator.asarray(np.ascontiguousarray(np.moveaxis(array, 1, -1) if last else array))

    found, z, b = put(y), put(residual), put(bias)
    at = ConvAddresses(
        *(0, 0, b.data.ptr if problem.bias else 0, z.data.ptr if problem.residual else 0),
        found.data.ptr,
    )
    kernel = EpilogueKernel(problem, 0, simulator.memory)
    kernel.run(Launch(simulator.memory.current_stream(), 0), at)
    found = np.moveaxis(found, -1, 1) if layout == CHANNELS_LAST else found
    return np.array(found).astype("f8"), expected


@pytest.mark.parametrize("dtype", DIGITS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 7, 11), (1, 2, 3, 2, 5)])
def test_each_part_is_added(simulator, shape, parts, layout, dtype):
    found, expected = run(simulator, shape, dtype, layout, **parts)
    digits = DIGITS[dtype]
    np.testing.assert_allclose(found, expected, rtol=digits, atol=8 * digits)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_elements_than_threads(simulator, layout):
    # The launch has eight blocks for each of 132 multiprocessors; here each block is one thread.
    found, expected = run(simulator, (2, 5, 160, 200), "float32", layout, **PARTS[0])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)


def test_nan_and_infinity_stay(simulator):
    values = [np.nan, np.inf, -np.inf]
    found, _ = run(
        simulator, (1, 1, 5), "float32", "channels_first", fill=values, activation="relu"
    )
    np.testing.assert_array_equal(found.reshape(-1)[:3], [np.nan, np.inf, 0])
    found, _ = run(simulator, (1, 1, 5), "float32", "channels_first", fill=values, bias=True)
    np.testing.assert_array_equal(found.reshape(-1)[:3], values)


def test_alpha_is_not_rounded_to_float32_for_float64(simulator):
    found, expected = run(
        *(simulator, (1, 2, 3), "float64", "channels_first"), alpha=1 / 3, residual=True
    )
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)
