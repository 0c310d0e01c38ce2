"""Tests of the reference BLAS: results against NumPy, and refusals."""

from __future__ import annotations

import ctypes
from pathlib import Path

import cffi
import numpy as np
import pytest
from gfx1100.conftest import milliseconds, violations

NONE, TRANSPOSED = 111, 112
F32, KINDS = 151, {"float16": 150, "float32": 151, "float64": 152}
SUCCESS, INVALID_POINTER, INVALID_SIZE = 0, 3, 4

ffi = cffi.FFI()
ffi.cdef("""
int rocblas_gemm_ex(
    void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
    const void *a, int a_type, int lda, const void *b, int b_type, int ldb, const void *beta,
    const void *c, int c_type, int ldc, void *d, int d_type, int ldd,
    int compute, int algorithm, int32_t solution, uint32_t flags);
int rocblas_sgemv(
    void *handle, int op, int m, int n, const float *alpha, const float *a, int lda,
    const float *x, int stride_x, const float *beta, float *y, int stride_y);
""")


@pytest.fixture(scope="module")
def blas():
    (path,) = Path("/usr/local/lib").glob("librocblas.so.*")
    return ffi.dlopen(str(path))


@pytest.fixture
def upload(hip):
    """Copy arrays in column-major order to device memory, which is freed after the test."""
    made = []

    def upload(array):
        flat = np.asfortranarray(array).ravel("K")
        address = ctypes.c_void_p()
        assert hip.hipMalloc(ctypes.byref(address), ctypes.c_size_t(flat.nbytes)) == 0
        made.append(address)
        host = ctypes.c_void_p(flat.ctypes.data)
        assert hip.hipMemcpy(address, host, ctypes.c_size_t(flat.nbytes), 1) == 0
        return address.value

    yield upload
    for address in made:
        hip.hipFree(address)


def read(address, shape, dtype):
    data = ctypes.string_at(address, int(np.prod(shape)) * np.dtype(dtype).itemsize)
    return np.frombuffer(data, dtype).reshape(shape, order="F")


def gemm(blas, a, b, c, d, *, m, n, k, ops=(NONE, NONE), lds, alpha=1.0, beta=0.0, kind=F32):
    scalars = (ffi.new("float *", alpha), ffi.new("float *", beta))
    a, b, c, d = (ffi.cast("void *", address) for address in (a, b, c, d))
    return blas.rocblas_gemm_ex(
        *(ffi.NULL, *ops, m, n, k, scalars[0], a, kind, lds[0], b, kind, lds[1]),
        *(scalars[1], c, kind, lds[2], d, kind, lds[2], F32, 0, 0, 0),
    )


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("op_a", [NONE, TRANSPOSED])
@pytest.mark.parametrize("op_b", [NONE, TRANSPOSED])
def test_a_product_of_matrices(blas, upload, dtype, op_a, op_b):
    m, n, k = 3, 4, 5
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, k) if op_a == NONE else (k, m)).astype(dtype)
    b = rng.standard_normal((k, n) if op_b == NONE else (n, k)).astype(dtype)
    c = rng.standard_normal((m, n)).astype(dtype)
    d = upload(c)
    status = gemm(
        *(blas, upload(a), upload(b), d, d),
        **{"m": m, "n": n, "k": k, "ops": (op_a, op_b), "lds": (a.shape[0], b.shape[0], m)},
        **{"alpha": 2, "beta": 0.5, "kind": KINDS[dtype]},
    )
    assert status == SUCCESS
    left, right = (x.astype("float64") for x in (a, b))
    left, right = left if op_a == NONE else left.T, right if op_b == NONE else right.T
    wanted = (2 * left @ right + 0.5 * c.astype("float64")).astype(dtype)
    np.testing.assert_array_equal(read(d, (m, n), dtype), wanted)


def test_without_beta_the_old_result_is_not_read(blas, upload):
    one, old = upload(np.ones((1, 1), "float32")), upload(np.full((1, 1), np.nan, "float32"))
    assert gemm(blas, one, one, old, old, m=1, n=1, k=1, lds=(1, 1, 1)) == SUCCESS
    assert read(old, (1, 1), "float32") == 1


def test_events_count_a_product_for_each_lane_of_a_wave(hip, blas, upload):
    a = upload(np.ones((64, 64), "float32"))
    d = upload(np.empty((64, 64), "float32"))
    sizes = {"m": 64, "n": 64, "k": 64, "lds": (64, 64, 64)}
    found = milliseconds(hip, lambda: gemm(blas, a, a, d, d, **sizes))
    assert found == pytest.approx(64**3 / 32 / 1e6, rel=1e-3)


def test_an_operand_beyond_its_allocation_is_refused(hip, blas, upload):
    small, large = upload(np.ones((2, 2), "float32")), upload(np.ones((3, 3), "float32"))
    arguments = {"m": 3, "n": 3, "k": 3, "lds": (3, 3, 3)}
    assert gemm(blas, small, large, large, large, **arguments) == INVALID_POINTER
    assert gemm(blas, large, large, large, small, **arguments) == INVALID_POINTER
    assert len(violations(hip)) == 2


def test_a_leading_dimension_that_is_too_small_is_refused(hip, blas, upload):
    a = upload(np.ones((3, 3), "float32"))
    assert gemm(blas, a, a, a, a, m=3, n=3, k=3, lds=(2, 3, 3)) == INVALID_SIZE
    assert len(violations(hip)) == 1


@pytest.mark.parametrize("op", [NONE, TRANSPOSED])
def test_a_matrix_times_a_vector_with_strides(blas, upload, op):
    a = np.arange(6, dtype="float32").reshape(2, 3)
    matrix = a if op == NONE else a.T
    x, y = np.arange(1, 7, dtype="float32"), np.ones(9, "float32")
    one, two = ffi.new("float *", 1), ffi.new("float *", 2)
    at = upload(y)
    arrays = [ffi.cast("float *", address) for address in (upload(a), upload(x), at)]
    status = blas.rocblas_sgemv(
        ffi.NULL, op, 2, 3, two, arrays[0], 2, arrays[1], 2, one, arrays[2], 3
    )
    assert status == SUCCESS
    count = len(matrix)
    y[: 3 * count : 3] += 2 * matrix @ x[: 2 * matrix.shape[1] : 2]
    np.testing.assert_array_equal(read(at, (9,), "float32"), y)
