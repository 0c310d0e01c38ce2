"""Products of matrices: NumPy's on the host, refusals, and how matrices that are views are read."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dnnffi
from dnnffi.matrices import _as_matrix

A, B = np.arange(6, dtype="float32").reshape(2, 3), np.ones((3, 4), "float32")


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float32", "float64"])
def test_numpy_multiplies_arrays_of_numpy(dtype):
    a, b = A.astype(dtype), B.astype(dtype)
    found = dnnffi.matmul(a, b)
    assert found.dtype == dtype
    assert np.array_equal(found, a @ b)


def test_the_result_may_be_given():
    out = np.empty((2, 4), "float32")
    assert dnnffi.matmul(A, B, out=out) is out
    assert np.array_equal(out, A @ B)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_a_size_of_zero(shape):
    m, k, n = shape
    found = dnnffi.matmul(np.ones((m, k)), np.ones((k, n)))
    assert found.shape == (m, n)
    assert not found.any()


ROOM = np.zeros(64, "float32")


@pytest.mark.parametrize(
    ("a", "b", "keywords", "error", "words"),
    [
        ([[1.0]], B, {}, TypeError, "a must be"),
        (A[0], B, {}, ValueError, r"a must have 2 dimensions; got shape \(3,\)"),
        (A, B[None], {}, ValueError, r"b must have 2 dimensions; got shape \(1, 3, 4\)"),
        (A.astype(int), B.astype(int), {}, TypeError, "a must have dtype .*float64; got int64"),
        (A, B.T, {}, ValueError, r"b must have 3 rows, .*; got shape \(4, 3\)"),
        (A, B.astype("float64"), {}, TypeError, "b must have the dtype of a, float32; got float64"),
        (A, B, {"math": "quick"}, ValueError, "math must be one of .*; got 'quick'"),
        (A, B, {"out": np.empty((4, 2), "float32")}, ValueError, r"out must have shape \(2, 4\)"),
        (A, B, {"out": np.empty((2, 4))}, TypeError, "out must have the dtype of a, float32"),
        (A, B, {"out": np.empty((4, 2), "float32").T}, ValueError, "out must be contiguous"),
        (
            ROOM[5:11].reshape(2, 3),
            B,
            {"out": ROOM[10:18].reshape(2, 4)},
            ValueError,
            "(out and a|a and out) must not share memory",
        ),
        (
            A,
            ROOM[11::-1].reshape(3, 4),
            {"out": ROOM[:8].reshape(2, 4)},
            ValueError,
            "(out and b|b and out) must not share memory",
        ),
    ],
)
def test_what_is_wrong_is_named(a, b, keywords, error, words):
    with pytest.raises(error, match=words):
        dnnffi.matmul(a, b, **keywords)


def test_a_result_may_begin_where_a_factor_ends():
    a, out = ROOM[:6].reshape(2, 3), ROOM[6:14].reshape(2, 4)
    assert dnnffi.matmul(a, B, out=out) is out


@given(st.data())
def test_a_view_is_read_where_it_lies_or_copied(data):
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    room = np.arange(400, dtype="float32").reshape(20, 20)
    slices = tuple(
        slice(start, start + step * size, step)
        for size in shape
        for start, step in [data.draw(st.tuples(st.integers(0, 4), st.integers(1, 3)))]
    )
    view = room[slices]
    if data.draw(st.booleans()):
        view = view.T
    if data.draw(st.booleans()):
        view = view[::-1]
    matrix, array = _as_matrix(view)
    assert matrix.checked("a") == matrix
    assert array is view or array.flags.c_contiguous
    steps = (matrix.leading or matrix.columns) * 4, 4
    lies = np.lib.stride_tricks.as_strided(array, (matrix.rows, matrix.columns), steps)
    assert np.array_equal(lies.T if matrix.transposed else lies, view)


@pytest.mark.parametrize(
    ("view", "copied"),
    [
        (B, False),
        (B.T, False),
        (B[:, 1:3], False),
        (B[::2], False),
        (B[1:, :2].T, False),
        (B[:, ::2], True),
        (B[::-1], True),
        (np.broadcast_to(B[0], (3, 4)), True),
        (B[:, :1], False),
        (B[:1], False),
    ],
)
def test_only_strides_that_cublas_does_not_know_are_copied(view, copied):
    assert (_as_matrix(view)[1] is not view) == copied
