"""Matrix products by cublasLtMatmul, with algorithms that are chosen before the calls.

The library stores matrices by columns, we store them by rows: it reads ours transposed. So it
is asked for the transposed result, which is the product of the other two in the opposite order.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from dnnffi.backends.cublas._cdef import ffi
from dnnffi.backends.cublas.handle import handle_of
from dnnffi.backends.cublas.library import Library
from dnnffi.backends.vendor.library import named
from dnnffi.backends.vendor.resource import Resource
from dnnffi.device.interface import Launch
from dnnffi.errors import CublasError, UnsupportedError
from dnnffi.execution.cache import keep_newest
from dnnffi.spec.checks import INT64_MAX, ITEM_SIZES, check_choice, check_flag, check_range
from dnnffi.spec.options import MATHS

_named = partial(named, ffi)

DATA_TYPES = _named(float32="CUDA_R_32F", float16="CUDA_R_16F", bfloat16="CUDA_R_16BF")
_FLOAT, _TF32 = _named(one="CUBLAS_COMPUTE_32F", two="CUBLAS_COMPUTE_32F_FAST_TF32").values()

WORKSPACE_LIMIT = 32 << 20
"""Bytes that NVIDIA recommends on Hopper; 4 MiB are enough before it
(https://docs.nvidia.com/cuda/cublas/#cublassetworkspace)."""

ALIGNMENT = 16
"""Bytes: the longest that one instruction reads."""

MAX_CHOSEN = 64
"""Numbers of rows for which a `RowsProduct` keeps algorithms."""

_OPERATIONS = tuple(_named(plain="CUBLAS_OP_N", transposed="CUBLAS_OP_T").values())
_IN_FLOAT = ffi.integer_const("CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE")

_ONE, _ZERO = ffi.new("float *", 1), ffi.new("float *", 0)
_ROWS = ffi.integer_const("CUBLASLT_MATRIX_LAYOUT_COLS")  # the library's columns are our rows
_BATCH_STRIDE = ffi.integer_const("CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET")


class Matrix(NamedTuple):
    """Rows of elements in memory, or a batch of such matrices. The address comes with the call.

    rows, columns : what lies in memory; rows is None where each call brings it (`RowsProduct`)
    leading : elements from a row to the next; None where rows follow each other without gaps
    batch_stride : elements from a matrix of the batch to the next; 0 where it is the same one, None
        where the matrices follow each other without gaps
    transposed : whether the product takes it transposed
    """

    rows: int | None
    columns: int
    leading: int | None = None
    batch_stride: int | None = 0
    transposed: bool = False

    def with_rows(self, rows: int | None) -> Matrix:
        """Return the same with ``rows`` rows, if each call brings them."""
        return self._replace(rows=rows) if self.rows is None else self

    @property
    def shape(self) -> tuple[Any, Any]:
        """Rows and columns as the product takes them."""
        size = self.rows, self.columns
        return size[::-1] if self.transposed else size

    def checked(self, name: str) -> Matrix:
        """Return the same with all numbers set. Raises ``ValueError`` or ``TypeError``."""
        rows = check_range(f"{name}.rows", self.rows, 1)
        columns = check_range(f"{name}.columns", self.columns, 1)
        leading = columns if self.leading is None else self.leading
        leading = check_range(f"{name}.leading", leading, columns, INT64_MAX)
        stride = rows * leading if self.batch_stride is None else self.batch_stride
        return Matrix(
            rows,
            columns,
            leading,
            check_range(f"{name}.batch_stride", stride, 0, INT64_MAX),
            check_flag(f"{name}.transposed", self.transposed),
        )

    def __str__(self) -> str:
        gaps = "" if self.leading in (None, self.columns) else f" of {self.leading}"
        return f"[{self.rows}, {self.columns}{gaps}]{'^T' if self.transposed else ''}"


class MatrixProduct:
    """C = A B, or C += A B, of matrices in rows on addresses in device memory.

    It calls ``cublasLtMatmul``. The sums are computed in float32, of ``float32`` elements with
    TF32 unless ``math`` is "strict". Threads may share it.

    Parameters
    ----------
    library : the libcublasLt to use
    device : number of the device, which must be current
    a, b, c : the matrices: ``a.shape`` [m, k], ``b.shape`` [k, n], c [m, n] and not transposed
    dtype : of all elements: "float16", "bfloat16" or "float32"
    math : "default", "fast" or "strict"
    batch : how many products there are; their matrices lie ``batch_stride`` apart
    workspace_limit : bytes that the workspace may have

    ``workspace_bytes`` is what `run` needs. Raises `UnsupportedError` where the library has no
    algorithm, `CublasError` for other statuses, ``ValueError`` or ``TypeError`` for wrong
    arguments, `DnnffiError` in a process that was forked after cuBLAS had been used.
    """

    def __init__(
        self,
        library: Library,
        device: int,
        a: Matrix,
        b: Matrix,
        c: Matrix,
        dtype: str,
        *,
        math: str = "default",
        batch: int = 1,
        workspace_limit: int = WORKSPACE_LIMIT,
    ) -> None:
        limit = check_range("workspace_limit", workspace_limit, 0, INT64_MAX)
        self._layouts = _Layouts(library, dtype)
        self._descriptors: Any = None
        try:
            self._descriptors = _Descriptors(library, device, self._layouts, (a, b, c), math, batch)
            self._algorithms = self._descriptors.choose(limit)
        except BaseException:
            self.close()
            raise
        self.workspace_bytes = self._algorithms.workspace_bytes

    def run(
        self, launch: Launch, a: int, b: int, c: int, workspace: int, *, accumulate: bool = False
    ) -> None:
        """Enqueue the product on the stream of ``launch``, which may be captured.

        ``a``, ``b`` and ``c`` are addresses of the dtype's alignment; where all three have 16
        bytes, faster algorithms run. ``workspace`` has 256 bytes of alignment; 0 suffices where
        ``workspace_bytes`` is 0. With ``accumulate`` the product is added to what C holds, without
        C is not read. Raises `CublasError`, `UnsupportedError`; `DnnffiError` if forked.
        """
        self._descriptors.run(launch, self._algorithms, (a, b, c), workspace, accumulate)

    def close(self) -> None:
        """Destroy the descriptors. A second call does nothing."""
        if self._descriptors is not None:
            self._descriptors.close()
        self._layouts.close()

    def __str__(self) -> str:
        return str(self._descriptors)


class Algorithms(NamedTuple):
    """Algorithms of a product (``cublasLtMatmulAlgo_t *``), and the workspace that they need.

    ``aligned`` is for addresses that are multiples of 16 bytes, ``any_address`` for others.
    ``results`` are the results of the heuristic, which own both.
    """

    any_address: Any
    aligned: Any
    workspace_bytes: int
    results: tuple[Any, ...]


class RowsProducts:
    """Products as of `MatrixProduct` whose number of rows is an argument of each call.

    Products of one network share descriptors of layouts: a batch sets its number of rows once. A
    call uses descriptors that no other thread uses at the time; the library reads them before the
    call returns.
    """

    def __init__(self, library: Library, device: int, dtype: str, *, math: str = "default") -> None:
        self._rest = library, device, dtype, math
        self._num_products = 0
        self.unused: list[_RowsDescriptors] = []  # as many as were ever used at the same time

    def product(self, a: Matrix, b: Matrix, c: Matrix, *, batch: int = 1) -> RowsProduct:
        """Return a product of matrices; those with ``rows`` None have the rows of a call."""
        self._num_products += 1
        return RowsProduct(self, self._num_products, (a, b, c), batch)

    def take(self, rows: int) -> _RowsDescriptors:
        """Return descriptors of ``rows`` rows.

        They are the caller's alone until it appends them to ``unused``.
        """
        try:
            found = self.unused.pop()
        except IndexError:
            return _RowsDescriptors(*self._rest, rows)
        if found.layouts.rows != rows:
            found.layouts.set_rows(rows)
        return found

    def close(self) -> None:
        """Destroy the descriptors. A second call does nothing."""
        while self.unused:
            self.unused.pop().close()


class RowsProduct:
    """One product of `RowsProducts`, which has no other with the same ``number``.

    Algorithms are chosen by `choose` for a number of rows, and run with any smaller one too, except
    where the library refuses that: then `run` chooses others.
    """

    def __init__(
        self,
        products: RowsProducts,
        number: int,
        matrices: tuple[Matrix, Matrix, Matrix],
        batch: int,
    ) -> None:
        self._products, self.number = products, number
        self.matrices, self.batch = matrices, batch
        self._chosen: dict[int, Algorithms] = {}
        self._exact: dict[tuple[int, int], Algorithms] = {}  # where those of `choose` did not fit

    def choose(self, rows: int) -> Algorithms:
        """Return the algorithms for up to ``rows`` rows; the library is asked once for each number.

        Raises as `MatrixProduct`.
        """
        found = self._chosen.get(rows)
        if found is None:
            taken = self._products.take(rows)
            found = self._chosen.setdefault(rows, taken.of(self).choose(WORKSPACE_LIMIT))
            self._products.unused.append(taken)
            keep_newest(self._chosen, MAX_CHOSEN)
        return found

    def run(
        self,
        launch: Launch,
        rows: int,
        algorithms: Algorithms,
        addresses: tuple[int, int, int],
        workspace: int,
        *,
        accumulate: bool = False,
    ) -> None:
        """Enqueue the product of ``rows`` rows on the ``addresses`` of A, B and C.

        The other arguments are those of `MatrixProduct.run`.
        """
        taken = self._products.take(rows)
        descriptors = taken.made.get(self.number) or taken.of(self)
        try:
            descriptors.run(launch, algorithms, addresses, workspace, accumulate)
        except (UnsupportedError, CublasError):
            # The algorithms for more rows are not for these. (cuBLASLt 13.0 says INVALID_VALUE.)
            key = rows, algorithms.workspace_bytes
            exact = self._exact.get(key)
            if exact is None:
                exact = self._exact[key] = descriptors.choose(algorithms.workspace_bytes)
                keep_newest(self._exact, MAX_CHOSEN)
            descriptors.run(launch, exact, addresses, workspace, accumulate)
        self._products.unused.append(taken)


class _RowsDescriptors:
    """Descriptors of all products of `RowsProducts`, for one call at a time."""

    def __init__(self, library: Library, device: int, dtype: str, math: str, rows: int) -> None:
        self._library, self._device, self._math = library, device, math
        self.layouts = _Layouts(library, dtype, rows)
        # By number: products as keys would be a reference cycle, which waits for the collector.
        self.made: dict[int, _Descriptors] = {}

    def of(self, product: RowsProduct) -> _Descriptors:
        """Return the descriptors of a product, made at its first use."""
        found = self.made.get(product.number)
        if found is None:
            where = self._library, self._device, self.layouts
            found = _Descriptors(*where, product.matrices, self._math, product.batch)
            self.made[product.number] = found
        return found

    def close(self) -> None:
        """Destroy the descriptors."""
        for descriptors in self.made.values():
            descriptors.close()
        self.layouts.close()


class _Layouts:
    """Descriptors of the layouts of matrices, one for matrices that lie in the same way.

    ``rows`` is the number of rows of those that leave it open.
    """

    def __init__(self, library: Library, dtype: str, rows: int | None = None) -> None:
        self.dtype = check_choice("dtype", dtype, DATA_TYPES)
        self.rows = rows
        self._library = library
        self._set = library.lib.cublasLtMatrixLayoutSetAttribute
        self._made: dict[tuple[Matrix, int], _Descriptor] = {}
        # Pointers, and the elements of a row where the distance of a batch's matrices varies too.
        self._varying: list[tuple[Any, int]] = []
        self._new_rows, self._new_stride = ffi.new("uint64_t *"), ffi.new("int64_t *")

    def pointer(self, name: str, matrix: Matrix, batch: int) -> Any:
        """Return the layout of a matrix, called ``name`` in errors, of ``batch`` matrices."""
        key = matrix._replace(transposed=False), batch
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._layout(matrix.with_rows(self.rows).checked(name), batch)
            if matrix.rows is None:
                varies = batch > 1 and matrix.batch_stride is None
                row = (matrix.leading or matrix.columns) if varies else 0
                self._varying.append((found.pointer, row))
        return found.pointer

    def set_rows(self, rows: int) -> None:
        """Set the number of rows of the matrices that leave it open."""
        self.rows = None  # until all have it
        self._new_rows[0] = rows
        for pointer, row in self._varying:
            status = self._set(pointer, _ROWS, self._new_rows, 8)
            if row and not status:
                self._new_stride[0] = rows * row
                status = self._set(pointer, _BATCH_STRIDE, self._new_stride, 8)
            if status:
                raise self._library.error(
                    status, "cublasLtMatrixLayoutSetAttribute", f"{rows} rows"
                )
        self.rows = rows

    def close(self) -> None:
        """Destroy the descriptors."""
        for made in self._made.values():
            made.close()

    def _layout(self, matrix: Matrix, batch: int) -> _Descriptor:
        sizes = matrix.columns, matrix.rows, matrix.leading or matrix.columns
        where = self._library, "MatrixLayout", DATA_TYPES[self.dtype]
        made = _Descriptor(*where, *sizes, problem=matrix)  # type: ignore[arg-type]
        try:
            if batch > 1:
                made.set("CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT", "int32_t", batch)
                stride = "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET"
                made.set(stride, "int64_t", matrix.batch_stride or 0)
        except BaseException:
            made.close()
            raise
        return made


class _Descriptors:
    """The descriptor of the operation of one product, with the layouts of A, B and C."""

    def __init__(
        self,
        library: Library,
        device: int,
        layouts: _Layouts,
        matrices: tuple[Matrix, Matrix, Matrix],
        math: str,
        batch: int,
    ) -> None:
        self._arguments: Any = None
        self._operation: _Descriptor | None = None
        math = check_choice("math", math, MATHS)
        batch = check_range("batch", batch, 1)
        a, b, c = (
            one.with_rows(layouts.rows).checked(name)
            for name, one in zip("abc", matrices, strict=True)
        )
        if c.transposed or (*a.shape, *b.shape) != (c.rows, a.shape[1], a.shape[1], c.columns):
            raise ValueError(f"a b must have the shape of c, which is as it lies; got {a} {b}, {c}")
        if batch > 1 and not c.batch_stride:
            raise ValueError("c.batch_stride must be at least 1 where there is a batch; got 0")
        self._library, self._device, self._layouts = library, device, layouts
        self._matrices, self._rest = matrices, f"batch {batch}, math {math}"
        self._matmul = library.lib.cublasLtMatmul
        handle_of(library, device)  # refuses in a forked process before anything is made
        is_float = layouts.dtype == "float32"
        compute = _TF32 if is_float and math != "strict" else _FLOAT
        operation = _Descriptor(library, "MatmulDesc", compute, DATA_TYPES["float32"], problem=self)
        self._operation = operation
        try:
            # The other way round: see above.
            for side, matrix in (("A", b), ("B", a)):
                operation.set(
                    f"CUBLASLT_MATMUL_DESC_TRANS{side}", "int32_t", _OPERATIONS[matrix.transposed]
                )
            a_layout, b_layout, c_layout = (
                layouts.pointer(name, one, batch) for name, one in zip("abc", matrices, strict=True)
            )
        except BaseException:
            self.close()
            raise
        self._arguments = operation.pointer, b_layout, a_layout, c_layout

    def run(
        self,
        launch: Launch,
        algorithms: Algorithms,
        addresses: tuple[int, int, int],
        workspace: int,
        accumulate: bool,
    ) -> None:
        operation, b_layout, a_layout, c_layout = self._arguments or self._raise_closed()
        library, device = self._library, self._device
        a, b, c = addresses
        handle = library.handles.find(device) or handle_of(library, device)
        any_address, aligned, workspace_bytes, _ = algorithms
        status = self._matmul(
            handle.address,
            operation,
            _ONE,
            b,
            b_layout,
            a,
            a_layout,
            _ONE if accumulate else _ZERO,
            c,
            c_layout,
            c,
            c_layout,
            any_address if (a | b | c) % ALIGNMENT else aligned,
            workspace,
            workspace_bytes,
            launch.stream.ptr,
        )
        if status:
            raise library.error(status, "cublasLtMatmul", self)

    def choose(self, workspace_limit: int) -> Algorithms:
        """Return what the library's heuristic chooses for addresses with and without alignment."""
        results = tuple(
            self._choose(alignment, workspace_limit)
            for alignment in (ITEM_SIZES[self._layouts.dtype], ALIGNMENT)
        )
        any_address, aligned = (ffi.addressof(found[0], "algo") for found in results)
        workspace_bytes = max(found.workspaceSize for found in results)
        return Algorithms(any_address, aligned, workspace_bytes, results)

    def close(self) -> None:
        self._arguments = None
        if self._operation is not None:
            self._operation.close()

    def __str__(self) -> str:
        a, b, c = (one.with_rows(self._layouts.rows) for one in self._matrices)
        return f"{c} = {a} {b} in {self._layouts.dtype}, {self._rest}"

    def _raise_closed(self) -> Any:
        raise ValueError("this MatrixProduct is closed")

    def _choose(self, alignment: int, limit: int) -> Any:
        """Return the result of the heuristic for addresses of ``alignment`` bytes.

        This is the alignment of the addresses only: the heuristic reads the gaps between rows and
        matrices from the layouts.
        """
        operation, b_layout, a_layout, c_layout = self._arguments
        library, name = self._library, "CUBLASLT_MATMUL_PREF"
        handle = handle_of(library, self._device).pointer
        found, count = ffi.new("cublasLtMatmulHeuristicResult_t *"), ffi.new("int *")
        with _Descriptor(library, "MatmulPreference", problem=self) as preference:
            preference.set(f"{name}_MAX_WORKSPACE_BYTES", "uint64_t", limit)
            for side in "ABCD":
                preference.set(f"{name}_MIN_ALIGNMENT_{side}_BYTES", "uint32_t", alignment)
            if (
                ITEM_SIZES[self._layouts.dtype] == 2
            ):  # parts of a sum are not to be rounded to 16 bits
                preference.set(f"{name}_REDUCTION_SCHEME_MASK", "uint32_t", _IN_FLOAT)
            layouts = b_layout, a_layout, c_layout, c_layout
            arguments = handle, operation, *layouts, preference.pointer, 1, found, count
            library.call("cublasLtMatmulAlgoGetHeuristic", *arguments, problem=self)
        if not count[0] or found.state:
            raise UnsupportedError(
                library.vendor,
                library.version_text,
                f"has no algorithm for {self}, addresses of {alignment} bytes of alignment and a "
                f"workspace of {limit} bytes",
            )
        return found


class _Descriptor(Resource):
    """A descriptor of the library's; ``kind`` is the part of its functions' names."""

    def __init__(self, library: Library, kind: str, *arguments: int, problem: object) -> None:
        self._library, self._set = library, f"cublasLt{kind}SetAttribute"
        out, name = ffi.new("uintptr_t *"), f"cublasLt{kind}"
        super().__init__(
            library, f"{name}Create", f"{name}Destroy", out, out, *arguments, problem=problem
        )

    def set(self, attribute: str, c_type: str, value: int) -> None:
        """Set the attribute of that name, which is of a type of C."""
        number, held = ffi.integer_const(attribute), ffi.new(f"{c_type} *", value)
        arguments = self.pointer, number, held, ffi.sizeof(c_type)
        self._library.call(self._set, *arguments, problem=attribute)
