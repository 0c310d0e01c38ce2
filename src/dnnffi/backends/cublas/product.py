"""Matrix products by cublasLtMatmul, with algorithms that were chosen before.

The library stores matrices by columns, we store them by rows: it reads ours transposed. So it
is asked for the transposed result, which is the product of the other two in the opposite order.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from dnnffi.backends.cublas._cdef import ffi
from dnnffi.backends.cublas.handle import handle_of
from dnnffi.backends.cublas.library import Library
from dnnffi.backends.vendor.enumerators import named
from dnnffi.backends.vendor.resource import Resource
from dnnffi.device.interface import Launch
from dnnffi.errors import UnsupportedError
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

_OPERATIONS = tuple(_named(plain="CUBLAS_OP_N", transposed="CUBLAS_OP_T").values())
_IN_FLOAT = ffi.integer_const("CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE")

_ONE, _ZERO = ffi.new("float *", 1), ffi.new("float *", 0)


class Matrix(NamedTuple):
    """Rows of elements in memory, or a batch of such matrices. The address comes with the call.

    rows, columns : what lies in memory
    leading : elements from a row to the next; None where rows follow each other without gaps
    batch_stride : elements from a matrix of the batch to the next; 0 where it is the same one
    transposed : whether the product takes it transposed
    """

    rows: int
    columns: int
    leading: int | None = None
    batch_stride: int = 0
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns as the product takes them."""
        size = self.rows, self.columns
        return size[::-1] if self.transposed else size

    def checked(self, name: str) -> Matrix:
        """The same with all numbers set; ``ValueError`` or ``TypeError`` naming what is wrong."""
        rows = check_range(f"{name}.rows", self.rows, 1)
        columns = check_range(f"{name}.columns", self.columns, 1)
        leading = columns if self.leading is None else self.leading
        return Matrix(
            rows,
            columns,
            check_range(f"{name}.leading", leading, columns, INT64_MAX),
            check_range(f"{name}.batch_stride", self.batch_stride, 0, INT64_MAX),
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
        self._arguments: Any = None
        self._owned: list[Resource] = []
        dtype = check_choice("dtype", dtype, DATA_TYPES)
        math = check_choice("math", math, MATHS)
        batch = check_range("batch", batch, 1)
        limit = check_range("workspace_limit", workspace_limit, 0, INT64_MAX)
        a, b, c = a.checked("a"), b.checked("b"), c.checked("c")
        if c.transposed or (*a.shape, *b.shape) != (c.rows, a.shape[1], a.shape[1], c.columns):
            raise ValueError(f"a b must have the shape of c, which is as it lies; got {a} {b}, {c}")
        if batch > 1 and not c.batch_stride:
            raise ValueError("c.batch_stride must be at least 1 where there is a batch; got 0")
        self._library, self._device, self._dtype = library, device, dtype
        self._words = f"{c} = {a} {b} in {dtype}, batch {batch}, math {math}"
        handle = handle_of(library, device).pointer
        try:
            compute = _TF32 if dtype == "float32" and math != "strict" else _FLOAT
            operation = self._own("MatmulDesc", compute, DATA_TYPES["float32"])
            # The other way round: see above.
            for side, matrix in (("A", b), ("B", a)):
                operation.set(
                    f"CUBLASLT_MATMUL_DESC_TRANS{side}", "int32_t", _OPERATIONS[matrix.transposed]
                )
            a_layout, b_layout, c_layout = (self._layout(one, batch) for one in (a, b, c))
            layouts = tuple(one.pointer for one in (b_layout, a_layout, c_layout, c_layout))
            self._chosen = [
                self._choose(handle, (operation.pointer, *layouts), alignment, limit)
                for alignment in (ITEM_SIZES[dtype], ALIGNMENT)
            ]
        except BaseException:
            self.close()
            raise
        self.workspace_bytes: int = max(found.workspaceSize for found in self._chosen)
        self._matmul = library.lib.cublasLtMatmul
        algorithms = (ffi.addressof(found[0], "algo") for found in self._chosen)
        self._arguments = operation.pointer, *layouts[:3], *algorithms

    def run(
        self, launch: Launch, a: int, b: int, c: int, workspace: int, *, accumulate: bool = False
    ) -> None:
        """Enqueue it on the stream of ``launch``, which may be captured.

        ``a``, ``b`` and ``c`` are addresses of the dtype's alignment; where all three have 16
        bytes, faster algorithms run. ``workspace`` has 256 bytes of alignment; 0 suffices where
        ``workspace_bytes`` is 0. With ``accumulate`` the product is added to what C holds, without
        C is not read. Raises `CublasError`, or `DnnffiError` in a forked process.
        """
        operation, b_layout, a_layout, c_layout, any_address, aligned = (
            self._arguments or self._is_closed()
        )
        library, device = self._library, self._device
        handle = library.handles.find(device) or handle_of(library, device)
        status = self._matmul(
            handle.pointer,
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
            self.workspace_bytes,
            launch.stream.ptr,
        )
        if status:
            raise library.error(status, "cublasLtMatmul", self)

    def close(self) -> None:
        """Destroy the descriptors. A second call does nothing."""
        self._arguments = None
        for resource in self._owned:
            resource.close()

    def __str__(self) -> str:
        return self._words

    def _is_closed(self) -> Any:
        raise ValueError("this MatrixProduct is closed")

    def _own(self, kind: str, *arguments: int) -> _Descriptor:
        made = _Descriptor(self._library, kind, *arguments, problem=self)
        self._owned.append(made)
        return made

    def _layout(self, matrix: Matrix, batch: int) -> _Descriptor:
        sizes = matrix.columns, matrix.rows, matrix.leading or matrix.columns
        made = self._own("MatrixLayout", DATA_TYPES[self._dtype], *sizes)
        if batch > 1:
            made.set("CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT", "int32_t", batch)
            stride = "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET"
            made.set(stride, "int64_t", matrix.batch_stride)
        return made

    def _choose(self, handle: Any, descriptors: tuple[int, ...], alignment: int, limit: int) -> Any:
        """The result of the heuristic for addresses of ``alignment`` bytes.

        Only of the addresses: it knows the gaps between rows and matrices from the layouts.
        """
        library, name = self._library, "CUBLASLT_MATMUL_PREF"
        found, count = ffi.new("cublasLtMatmulHeuristicResult_t *"), ffi.new("int *")
        with _Descriptor(library, "MatmulPreference", problem=self) as preference:
            preference.set(f"{name}_MAX_WORKSPACE_BYTES", "uint64_t", limit)
            for side in "ABCD":
                preference.set(f"{name}_MIN_ALIGNMENT_{side}_BYTES", "uint32_t", alignment)
            if ITEM_SIZES[self._dtype] == 2:  # parts of a sum are not to be rounded to 16 bits
                preference.set(f"{name}_REDUCTION_SCHEME_MASK", "uint32_t", _IN_FLOAT)
            arguments = handle, *descriptors, preference.pointer, 1, found, count
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
