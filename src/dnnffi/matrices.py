"""Matrix products of a captured step by cuBLASLt, since CuPy's own products refuse a capture."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from dnnffi.backends.cublas import library
from dnnffi.backends.cublas.product import DATA_TYPES, Matrix, MatrixProduct
from dnnffi.device.arrays import as_array, check_aligned, conversion
from dnnffi.device.cupy import cupy_memory
from dnnffi.device.graphs import refuse_in_capture
from dnnffi.device.interface import AnyArray, ArrayT, Launch
from dnnffi.device.spans import check_apart, span_of, written_span
from dnnffi.device.torch_tensors import is_compiling, uncompiled
from dnnffi.execution.cache import keep_newest
from dnnffi.spec.checks import check_choice
from dnnffi.spec.names import Math
from dnnffi.spec.options import MATHS

_MAX_PRODUCTS = 64

_products: dict[tuple[Any, ...], MatrixProduct] = {}


def matmul(a: ArrayT, b: ArrayT, *, out: ArrayT | None = None, math: Math = "default") -> ArrayT:
    """Return ``a @ b`` of two matrices, which may be captured in a CUDA graph (``cublasLtMatmul``).

    CuPy's own ``@`` refuses to run while a graph is captured. Call it once before the capture, as
    `RNNPlan.capture` does with a step. Transposed matrices, and those with gaps between rows, are
    read where they are; matrices with other strides are copied first. NumPy multiplies NumPy's
    arrays.

    Parameters
    ----------
    a : [M, K], of CuPy or NumPy, in "float16", "bfloat16" or "float32"; NumPy's in "float64" too
    b : [K, N], of the same library, device and dtype
    out : [M, N] in C order, for the result; None for a new array
    math : of CuPy's float32: "default" and "fast" multiply in TF32, "strict" does not

    Raises
    ------
    TypeError, ValueError
        The error names the argument, the value received and the value expected.
    LibraryNotFoundError, UnsupportedError, CublasError
        For libcublasLt.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> a, b = np.arange(6.0).reshape(2, 3), np.ones((3, 1))
    >>> dnnffi.matmul(a, b)
    array([[ 3.],
           [12.]])
    """
    if "torch._dynamo" in sys.modules and is_compiling():
        return uncompiled(matmul)(a, b, out=out, math=math)
    left, right = as_array("a", a), as_array("b", b)
    target = None if out is None else as_array("out", out)
    on_host = isinstance(left, np.ndarray)
    memory: Any = None if on_host else cupy_memory()
    expected = np.ndarray if on_host else memory.ndarray
    for name, one in (("a", left), ("b", right), ("out", target)):
        if one is not None and not isinstance(one, expected):
            raise TypeError(f"{name} must be of the same library as a; got {type(one).__name__}")
    shape = _check(left, right, target)
    check_choice("math", math, MATHS)
    dtypes = (*DATA_TYPES, "float64") if on_host else tuple(DATA_TYPES)
    if left.dtype.name not in dtypes:
        raise TypeError(
            f"a must have dtype {', '.join(dtypes)}; got {left.dtype.name}"
            f"{conversion('a', left, 'float32')}"
        )
    if on_host:
        with np.errstate(all="ignore"):  # the rule of dnnffi.reference
            # NumPy's product of bfloat16 is float32.
            result: Any = np.matmul(left, right, out=target).astype(left.dtype, copy=False)
        return result
    for name, one in (("a", left), ("b", right), ("out", target)):
        if one is not None:
            check_aligned(name, one)
    device = left.data.device_id
    for name, one in (("b", right), ("out", target)):
        if one is not None and one.data.device_id != device:
            raise ValueError(f"{name} must be on device {device}; got {one.data.device_id}")
    with memory.use(device):
        stream = memory.current_stream()
        refuse_in_capture(stream.ptr)  # before anything is allocated there
        found = memory.empty(shape, left.dtype) if target is None else target
        if 0 in (*shape, left.shape[1]):
            found.fill(0)
            return found
        (a_matrix, left), (b_matrix, right) = _as_matrix(left), _as_matrix(right)
        product = _product(device, a_matrix, b_matrix, left.dtype.name, math)
        launch = Launch(stream, device)
        product.run(launch, left.data.ptr, right.data.ptr, found.data.ptr, 0)
    return found


def _check(a: AnyArray, b: AnyArray, out: AnyArray | None) -> tuple[int, int]:
    """Return the shape of the product."""
    for name, one in (("a", a), ("b", b)):
        if one.ndim != 2:
            raise ValueError(f"{name} must have 2 dimensions; got shape {tuple(one.shape)}")
    if a.dtype != b.dtype:
        raise TypeError(
            f"b must have the dtype of a, {a.dtype.name}; got {b.dtype.name}"
            f"{conversion('b', b, a.dtype.name)}"
        )
    (rows, inner), (b_rows, columns) = a.shape, b.shape
    if inner != b_rows:
        raise ValueError(f"b must have {inner} rows, the columns of a; got shape {tuple(b.shape)}")
    if out is None:
        return rows, columns
    if out.dtype != a.dtype:
        raise TypeError(f"out must have the dtype of a, {a.dtype.name}; got {out.dtype.name}")
    if tuple(out.shape) != (rows, columns):
        raise ValueError(f"out must have shape ({rows}, {columns}); got {tuple(out.shape)}")
    if not out.flags.c_contiguous:
        raise ValueError("out must be contiguous, in C order")
    check_apart([written_span("out", out)], [span_of("a", a), span_of("b", b)])
    return rows, columns


def _as_matrix(array: AnyArray) -> tuple[Matrix, AnyArray]:
    """Return the memory layout of an array that is not empty, and the array or a copy of it."""
    (rows, columns), size = array.shape, array.itemsize
    down, across = (step // size if step % size == 0 else 0 for step in array.strides)
    if columns == 1 or across == 1:
        leading = columns if rows == 1 else down
        if leading >= columns:
            return Matrix(rows, columns, leading), array
    if rows == 1 or down == 1:
        leading = rows if columns == 1 else across
        if leading >= rows:
            return Matrix(columns, rows, leading, transposed=True), array
    return Matrix(rows, columns, columns), array.copy(order="C")


def _product(device: int, a: Matrix, b: Matrix, dtype: str, math: str) -> MatrixProduct:
    found = library.load()
    key = found, device, a, b, dtype, math
    product = _products.get(key)
    if product is None:
        result = Matrix(a.shape[0], b.shape[1])
        # Without a workspace, which a graph would keep.
        made = MatrixProduct(found, device, a, b, result, dtype, math=math, workspace_limit=0)
        product = _products.setdefault(key, made)
        keep_newest(_products, _MAX_PRODUCTS)
    return product
