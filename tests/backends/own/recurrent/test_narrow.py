"""Tests of recurrent products of float16 in networks in float32."""

from __future__ import annotations

import re

import conformance
import numpy as np
import pytest
from backends.own.recurrent.emulated_network import Network, kernel_config, kind_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dnnffi.backends.own.recurrent.config import DTYPES, Kind
from dnnffi.backends.own.recurrent.kernels import layer_kernel, narrow_kernel
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from simulators.cuda.emulator import EmulatedKernel

SMALLEST = 2.0**-24
"""The smallest positive number of float16."""


@pytest.fixture(scope="module")
def kernel():
    return EmulatedKernel(*narrow_kernel(), cooperative=False)


def narrowed(kernel, matrices, padded, alone=False, gap=3):
    """Return the rows of matrices [D, rows, columns] in float16, and the divisors of the rows.

    Between two matrices lie ``gap`` numbers. With ``alone``, only the divisors are computed.
    """
    directions, rows, columns = matrices.shape
    held = np.full((directions, rows * columns + gap), np.nan, "f4")
    held[:, : rows * columns] = matrices.reshape(directions, -1)
    narrow = np.full((directions, rows, padded), 7, "f2")
    scales = np.full((directions, rows), np.nan, "f4")
    to = 0 if alone else narrow.ctypes.data
    sizes = rows, directions, columns, padded, held.shape[1]
    blocks = -(-rows * directions // 2)
    kernel((blocks,), (64,), (held.ctypes.data, to, scales.ctypes.data, *sizes))
    return narrow, scales


def powers(values):
    return np.frexp(values)[0] == 0.5


@given(
    st.integers(1, 2),
    st.integers(1, 5),
    st.integers(1, 70),
    st.integers(-60, 100),
    st.integers(0, 30),
    st.sampled_from([3, 4]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
@example(2, 3, 70 * 4, 0, 30, 4, 1)  # rows whose elements can be read four at a time
@example(1, 2, 12, 0, 30, 4, 2)
def test_a_row_is_rounded_as_in_tf32_and_divided_by_a_power_of_two(
    kernel, directions, rows, columns, exponent, spread, gap, seed
):
    rng = np.random.default_rng(seed)
    shape = directions, rows, columns
    exponents = exponent - rng.integers(0, spread + 1, shape)
    matrices = (rng.uniform(-1, 1, shape) * 2.0**exponents).astype("f4")
    padded = -(-columns // 8) * 8
    narrow, scales = narrowed(kernel, matrices, padded, gap=gap)
    assert powers(scales).all()
    found = narrow[..., :columns].astype("f8") * scales[..., None]
    largest = np.abs(matrices).max(axis=-1, keepdims=True)
    assert (np.abs(narrow).max(axis=-1) <= 2.0**15).all()
    assert (np.abs(narrow).max(axis=-1) >= 2.0**14).all()
    # The error of rounding to 11 bits, or half of the smallest number of float16.
    allowed = np.maximum(np.abs(matrices) * 2.0**-11, largest * 2.0**-14 * SMALLEST / 2)
    assert (np.abs(found - matrices) <= allowed * 1.0001).all()
    assert (narrow[..., columns:] == 0).all()


def test_infinity_and_nan_stay_and_do_not_count(kernel):
    matrices = np.array([[[1, np.inf, -2], [np.nan, 4, -np.inf], [np.inf, np.nan, 0]]], "f4")
    narrow, scales = narrowed(kernel, matrices, 8)
    found = narrow[0, :2, :3].astype("f4") * scales[0, :2, None]
    np.testing.assert_array_equal(found, matrices[0, :2])
    np.testing.assert_array_equal(narrow[0, 2, :3].astype("f4"), matrices[0, 2])


@pytest.mark.parametrize("largest", [0.0, 1e-45, 1.2e-38, 1e-30, 1e30, 3.4e38])
def test_scales_are_normal_numbers_as_are_those_that_states_are_divided_by(kernel, largest):
    narrow, scales = narrowed(kernel, np.array([[[largest, 0.0]]], "f4"), 8)
    least = np.finfo("f4").tiny
    assert powers(scales).all()
    assert least <= scales[0, 0] / 2.0**15
    assert np.isfinite(scales * np.float32(2.0**15)).all()
    if largest > 1e-35:
        assert narrow[0, 0, 0] * np.float64(scales[0, 0]) == pytest.approx(largest, rel=2.0**-11)


def test_of_states_only_the_scales_are_found(kernel):
    states = np.random.default_rng(0).normal(0, 100, (1, 9, 21)).astype("f4")
    narrow, scales = narrowed(kernel, states, 24, alone=True)
    assert (narrow == 7).all()
    np.testing.assert_array_equal(scales, narrowed(kernel, states, 24)[1])


HOW = {
    "lstm": {"units": 16, "warps": (2, 2)},
    "gru": {"units": 16, "warps": (3, 2), "subtiles": 2},
    "rnn_tanh": {"units": 16, "warps": (1, 4), "staged": False},
}


HIDDEN = 21


def results(cublas, mode, change, steps=4):
    """Return (found, expected) results of an inference whose arrays were modified by ``change``."""
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=HIDDEN, bidirectional=True)
    problem = RNNProblem.dense(spec, steps=steps, batch=11, training=False)
    case = conformance.Case(problem, True, 0)
    arrays = change(conformance.arrays_of(case))
    made = kernel_config(kind_of(problem, narrow=True), **HOW[mode])
    with Network(cublas, problem, made) as network:
        found = network.results(arrays)
    return found, conformance.expected(case, arrays)


def scaled(arrays, *factors):
    """Return arrays with the rows of the recurrent matrices multiplied by ``factors`` in turn."""
    weights = [np.array(one) for one in arrays.weights]
    for matrix in weights:
        if matrix.ndim == 2 and matrix.shape[1] == HIDDEN:
            for number, factor in enumerate(factors):
                matrix[number :: len(factors)] *= factor
    return arrays._replace(weights=weights)


@pytest.mark.parametrize("mode", HOW)
@pytest.mark.parametrize("factor", [0.0, 1e-20, 1.0, 100.0, 1e6, 1e12])
def test_states_of_any_size_are_multiplied(cublas, mode, factor):
    def change(arrays):
        arrays.h_0[:, ::2] *= np.float32(factor)
        # Large products would make the rounding error of TF32 exceed the range of a gate.
        return scaled(arrays, np.float32(1 / max(1, factor)))

    found, expected = results(cublas, mode, change)
    for name in ("y", "h_n"):
        for row in range(11):  # by rows, so that large rows do not hide errors of others
            one, other = (getattr(of, name)[:, row] for of in (found, expected))
            assert conformance.deviation(one, other) < 5e-3, f"{name}, row {row}"


@pytest.mark.parametrize("mode", HOW)
@pytest.mark.parametrize(("factor", "steps"), [(1e-30, 3), (1e-6, 3), (1e6, 1)])
def test_weights_of_any_size_are_multiplied(cublas, mode, factor, steps):
    def change(arrays):
        arrays.h_0[...] /= np.float32(max(1, factor))
        return scaled(arrays, np.float32(factor), np.float32(factor * 1e-3))

    found, expected = results(cublas, mode, change, steps)
    assert conformance.deviation(found.y, expected.y) < 3e-3


def dtypes_of(kind):
    """Return the dtypes of arrays and of factors in the kernel's constants."""
    header = dict(layer_kernel(kernel_config(kind)).headers)["kernel_config.cuh"]
    return re.findall(r"constexpr Dtype (?:DTYPE|FACTORS) = (\w+);", header)


@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_are_of_the_dtype_of_arrays_unless_they_are_narrow(dtype):
    assert dtypes_of(Kind("lstm", 64, dtype)) == [DTYPES[dtype]] * 2


def test_narrow_factors_are_of_float16():
    assert dtypes_of(Kind("lstm", 64, "float32", narrow=True)) == ["FLOAT32", "FLOAT16"]
