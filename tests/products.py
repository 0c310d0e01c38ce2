"""Products of matrices to test with: cases, their arrays in NumPy, what is right and how closely.

Around the elements of an array there is NaN: what reads or writes beyond them shows.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from dnnffi.backends.cublas.product import Matrix
from dnnffi.device.dtypes import dtype_object

DTYPES = ("float32", "float16", "bfloat16")
_DIGITS = {"float32": 23, "float16": 10, "bfloat16": 7}
_SMALLEST = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
_TF32_DIGITS = 10


class Case(NamedTuple):
    """A product, and how its operands a, b, c lie.

    padding : elements between rows
    lie : of a batch, "stacked" (one after the other), "woven" (row by row), "same" (one matrix)
    offset : elements from an address of 256 bytes of alignment to the first
    """

    m: int
    k: int
    n: int
    dtype: str = "float32"
    math: str = "default"
    transposed: tuple[bool, bool] = (False, False)
    padding: tuple[int, int, int] = (0, 0, 0)
    batch: int = 1
    lie: tuple[str, str, str] = ("stacked", "stacked", "stacked")
    offset: tuple[int, int, int] = (0, 0, 0)
    accumulate: bool = False


class Operand:
    """One of a case's arrays: ``flat`` has all elements, ``view`` the batch of matrices."""

    def __init__(self, case, which, rng):
        rows, columns = [(case.m, case.k), (case.k, case.n), (case.m, case.n)][which]
        transposed = which < 2 and case.transposed[which]
        if transposed:
            rows, columns = columns, rows
        lie = case.lie[which] if case.batch > 1 else "stacked"
        wide = columns + case.padding[which]
        matrices = self._count = 1 if lie == "same" else case.batch
        leading = wide * matrices if lie == "woven" else wide
        step = {"stacked": rows * wide, "woven": wide, "same": 0}[lie]
        self.matrix = Matrix(rows, columns, leading, step, transposed)
        self.offset = case.offset[which]
        dtype = dtype_object(case.dtype)
        size = self.offset + rows * wide * matrices + 7
        # NumPy promises less alignment than a device's allocator.
        raw = np.full(size * dtype.itemsize + 256, 0xFF, np.uint8)  # NaN in all three dtypes
        start = -raw.ctypes.data % 256
        self.flat = raw[start : start + size * dtype.itemsize].view(dtype)
        self.inside(self.flat)[...] = rng.standard_normal((matrices, rows, columns)).astype(dtype)

    def inside(self, flat):
        """The batch of matrices in an array like ``flat``; those of "same" are one."""
        rows, columns, leading, step, _ = self.matrix
        strides = tuple(elements * flat.itemsize for elements in (step, leading, 1))
        return as_strided(flat[self.offset :], (self._count, rows, columns), strides)

    @property
    def address(self):
        """The address of the first element, on the host."""
        return self.flat.ctypes.data + self.offset * self.flat.itemsize

    def factor(self):
        """The batch as the product takes it, in float64."""
        values = self.inside(self.flat).astype(np.float64)
        return values.swapaxes(1, 2) if self.matrix.transposed else values


class Problem:
    """The arrays of a case, with random values."""

    def __init__(self, case, seed=0):
        rng = np.random.default_rng(seed)
        self.case = case
        self.operands = [Operand(case, which, rng) for which in range(3)]
        self.a, self.b, self.c = self.operands
        if not case.accumulate:
            self.c.inside(self.c.flat)[...] = np.nan  # must not be read

    @property
    def matrices(self):
        return [operand.matrix for operand in self.operands]

    def expected(self):
        """The product in float64, with what C holds where it is added to that."""
        held = self.c.factor() if self.case.accumulate else 0
        return np.broadcast_to(self._product() + held, self.c.factor().shape)

    def _product(self):
        return self.a.factor() @ self.b.factor()

    def allowed(self, expected):
        """Return each element's allowed error: rounding of operands, of sums and of the result.

        In 16 bits the product too is rounded before it is added, as cuBLAS 13.2 does (H200).
        """
        case = self.case
        sums = np.abs(self.a.factor()) @ np.abs(self.b.factor())
        reduced = case.dtype == "float32" and case.math != "strict"
        relative = (case.k + 4) * 2.0**-23 + (2.0 ** (1 - _TF32_DIGITS) if reduced else 0)
        rounded = 2.0 ** -_DIGITS[case.dtype] * np.abs(expected) + _SMALLEST[case.dtype]
        if case.accumulate:
            rounded = rounded + 2.0 ** -_DIGITS[case.dtype] * np.abs(self._product())
        return relative * sums + rounded

    def check(self, expected, allowed, found):
        """Check that ``found``, like ``c.flat``, has the product and is unchanged outside it."""
        inside = self.c.inside(found)
        off = np.abs(inside.astype(np.float64) - expected)
        assert (off <= allowed).all(), (
            f"{self.case}: off by {(off / allowed).max()} of what is allowed"
        )
        outside = found.copy()
        self.c.inside(outside)[...] = np.nan
        assert np.isnan(outside.astype(np.float32)).all(), f"{self.case}: wrote beyond C"


def _cases():
    """Sizes, dtypes and math; then what differs in how operands lie, one thing after the other."""
    sizes = ((1, 1, 1), (7, 5, 3), (64, 48, 96), (33, 130, 257), (1, 300, 64))
    for size, dtype in itertools.product(sizes, DTYPES):
        yield Case(*size, dtype)
    for dtype, transposed in itertools.product(DTYPES, itertools.product((False, True), repeat=2)):
        for accumulate in (False, True):
            yield Case(24, 40, 56, dtype, transposed=transposed, accumulate=accumulate)
            yield Case(
                *(9, 21, 14, dtype),
                transposed=transposed,
                padding=(3, 1, 2),
                accumulate=accumulate,
            )
    for math in ("strict", "fast"):
        yield Case(64, 200, 32, math=math)
    for dtype, lie in itertools.product(
        DTYPES,
        (
            ("stacked", "stacked", "stacked"),
            ("woven", "stacked", "woven"),
            ("same", "woven", "stacked"),
            ("stacked", "same", "woven"),
        ),
    ):
        yield Case(16, 24, 40, dtype, batch=3, lie=lie, padding=(8, 0, 8), accumulate=True)
        yield Case(5, 9, 6, dtype, batch=4, lie=lie, transposed=(True, True))
    for dtype, offset in itertools.product(DTYPES, ((1, 0, 0), (0, 3, 0), (0, 0, 1), (8, 8, 8))):
        yield Case(32, 64, 48, dtype, offset=offset)


CASES = tuple(_cases())


@st.composite
def cases(draw):
    """Any case, of small sizes."""
    sizes, flags = st.integers(1, 12), st.booleans()
    lies = st.sampled_from(("stacked", "woven", "same"))
    small = st.integers(0, 9)
    return Case(
        *(draw(sizes), draw(sizes), draw(sizes)),
        dtype=draw(st.sampled_from(DTYPES)),
        math=draw(st.sampled_from(("default", "fast", "strict"))),
        transposed=(draw(flags), draw(flags)),
        padding=(draw(small), draw(small), draw(small)),
        batch=draw(st.integers(1, 4)),
        lie=(draw(lies), draw(lies), draw(st.sampled_from(("stacked", "woven")))),
        offset=(draw(small), draw(small), draw(small)),
        accumulate=draw(flags),
    )
