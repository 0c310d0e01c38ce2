"""Products of matrices on a GPU: dtypes, views, captures, streams."""

from __future__ import annotations

import numpy as np
import pytest

import dnnffi
from dnnffi.device.dtypes import dtype_object

cupy = pytest.importorskip("cupy")

ALLOWED = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 2e-3}
SIZES = [(1, 1, 1), (16, 16, 16), (37, 21, 45), (100, 7, 300), (512, 640, 1024)]


def pair(m, n, k, dtype="float32"):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    return tuple(cupy.asarray(one.astype(dtype_object(dtype))) for one in (a, b))


def deviation(found, a, b):
    expected = cupy.asnumpy(a).astype("f8") @ cupy.asnumpy(b).astype("f8")
    return np.linalg.norm(cupy.asnumpy(found).astype("f8") - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products_of_views(dtype, sizes):
    a, b = pair(*sizes, dtype)
    for left in (a, cupy.ascontiguousarray(a.T).T, a[::-1]):
        for right in (b, cupy.ascontiguousarray(b.T).T, cupy.repeat(b, 2, axis=1)[:, ::2]):
            found = dnnffi.matmul(left, right)
            assert found.dtype == a.dtype
            assert deviation(found, left, right) < ALLOWED[dtype]


def test_strict_products_are_not_rounded_to_tf32():
    a, b = pair(64, 64, 64)
    assert deviation(dnnffi.matmul(a, b, math="strict"), a, b) < 1e-6


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 3, 0), (2, 0, 4)])
def test_a_size_of_zero(sizes):
    m, n, k = sizes
    out = cupy.ones((m, n), "float32")
    assert not dnnffi.matmul(*pair(m, n, k), out=out).any()


def test_a_product_in_a_captured_graph():
    a, b = pair(37, 21, 45)
    out = cupy.empty((37, 21), "float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        dnnffi.matmul(a, b, out=out)
        stream.begin_capture()
        dnnffi.matmul(a, b, out=out)
        graph = stream.end_capture()
        a *= 2
        out.fill(0)
        graph.launch()
    stream.synchronize()
    assert deviation(out, a, b) < 2e-3


def test_a_float64_array_is_refused():
    a, b = pair(2, 2, 2, "float64")
    with pytest.raises(TypeError, match=r"a must have dtype .*; got float64"):
        dnnffi.matmul(a, b)


def test_arrays_of_two_libraries_are_refused():
    a, b = pair(2, 2, 2)
    with pytest.raises(TypeError, match="b must be of the same library as a; got ndarray"):
        dnnffi.matmul(a, b.get())
