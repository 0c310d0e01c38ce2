"""Products on the stand-in: operands, algorithms, errors, and release of objects."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from products import CASES, DTYPES, Case, Problem, cases
from stress.bounds import in_child

from dnnffi.backends.cublas.product import Matrix, MatrixProduct, RowsProducts
from dnnffi.device.interface import Launch, StreamAt
from dnnffi.errors import CublasError, DnnffiError, UnsupportedError

LAUNCH = Launch(StreamAt(0x57), 0)
A, B, C = Matrix(4, 8), Matrix(8, 2), Matrix(4, 2)


def made(cublas, case, problem, **options):
    options = {"math": case.math, "batch": case.batch} | options
    return MatrixProduct(cublas, 0, *problem.matrices, case.dtype, **options)


def workspace_of(product):
    """Return an array larger than the workspace, and an address in it at a multiple of 256."""
    raw = np.zeros(product.workspace_bytes + 512, np.uint8)
    return raw, raw.ctypes.data + -raw.ctypes.data % 256


def run(product, problem, launch=LAUNCH):
    raw, workspace = workspace_of(product)
    addresses = [operand.address for operand in problem.operands]
    product.run(launch, *addresses, workspace, accumulate=problem.case.accumulate)
    assert not raw[workspace - raw.ctypes.data + product.workspace_bytes :].any()


def check(cublas, case):
    problem = Problem(case)
    expected = problem.expected()
    allowed = problem.allowed(expected)
    product = made(cublas, case, problem)
    run(product, problem)
    problem.check(expected, allowed, problem.c.flat)
    product.close()
    return problem


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_product_is_numpys(cublas, case):
    check(cublas, case)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_any_product_is_numpys_by_the_algorithm_for_its_addresses(cublas, standin, case):
    problem = check(cublas, case)
    least = np.dtype(problem.c.flat.dtype).itemsize
    together = [operand.address % 16 for operand in problem.operands]
    assert standin.alignment == (least if any(together) else 16)


@pytest.mark.parametrize(
    ("dtype", "math", "compute", "reductions"),
    [
        ("float32", "default", 77, 7),
        ("float32", "fast", 77, 7),
        ("float32", "strict", 68, 7),
        ("float16", "fast", 68, 2),
        ("bfloat16", "default", 68, 2),
    ],
)
def test_sums_are_in_float32_and_with_tf32_where_that_is_not_strict(
    cublas, standin, dtype, math, compute, reductions
):
    check(cublas, Case(2, 3, 4, dtype, math))
    assert (standin.compute, standin.reductions) == (compute, reductions)


def test_it_runs_on_the_stream_of_the_launch(cublas, standin):
    check(cublas, Case(2, 3, 4))
    assert standin.stream == 0x57


def test_the_workspace_has_room_for_both_algorithms_within_the_limit(cublas):
    sizes = {
        limit: MatrixProduct(cublas, 0, A, B, C, "float32", workspace_limit=limit).workspace_bytes
        for limit in (0, 3999, 4000, 15999, 16000, 1 << 40)
    }
    assert sizes == {0: 0, 3999: 0, 4000: 4000, 15999: 4000, 16000: 16000, 1 << 40: 16000}


def test_a_product_without_workspace_takes_no_address(cublas):
    problem = Problem(Case(4, 5, 6, accumulate=True))
    expected = problem.expected()
    product = made(cublas, problem.case, problem, workspace_limit=0)
    addresses = [operand.address for operand in problem.operands]
    product.run(LAUNCH, *addresses, 0, accumulate=True)
    problem.check(expected, problem.allowed(expected), problem.c.flat)


def test_a_device_has_one_handle_for_all_products_and_threads(cublas, standin):
    with ThreadPoolExecutor(4) as pool:
        for case in pool.map(lambda n: Case(n, 3, 4), range(1, 9)):
            check(cublas, case)
    assert list(cublas.handles.values()) == [cublas.handles.find(0)]
    assert (standin.live[0], standin.products) == (1, 8)


def test_threads_share_a_product(cublas):
    problems = [Problem(Case(8, 16, 8), seed) for seed in range(16)]
    product = made(cublas, problems[0].case, problems[0])
    expected = [problem.expected() for problem in problems]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda problem: run(product, problem), problems))
    for problem, right in zip(problems, expected, strict=True):
        problem.check(right, problem.allowed(right), problem.c.flat)


# Ownership


def test_closing_destroys_the_descriptors(cublas, standin):
    product = MatrixProduct(cublas, 0, A, B, C, "float16")
    assert list(standin.live)[:4] == [1, 3, 1, 0]
    product.close()
    product.close()
    assert list(standin.live)[:4] == [1, 0, 0, 0]


def test_dropping_destroys_the_descriptors(cublas, standin):
    product = MatrixProduct(cublas, 0, A, B, C, "float16")
    del product
    gc.collect()
    assert list(standin.live)[:4] == [1, 0, 0, 0]


def test_dropping_products_of_rows_destroys_the_descriptors_at_once(cublas, standin):
    gc.disable()  # a deleted network must not need the garbage collector
    try:
        products = RowsProducts(cublas, 0, "float32")
        product = products.product(Matrix(None, 8), B, Matrix(None, 2))
        product.choose(4)
        assert list(standin.live)[1] == 3
        del product, products
        assert list(standin.live)[:4] == [1, 0, 0, 0]
    finally:
        gc.enable()


def test_a_closed_product_does_not_run(cublas):
    product = MatrixProduct(cublas, 0, A, B, C, "float16")
    product.close()
    with pytest.raises(ValueError, match="this MatrixProduct is closed"):
        product.run(LAUNCH, 0, 0, 0, 0)


def test_a_forked_child_refuses(cublas):
    problem = Problem(Case(2, 3, 4))
    product = made(cublas, problem.case, problem)

    def work():
        for call in (lambda: run(product, problem), lambda: made(cublas, problem.case, problem)):
            with pytest.raises(DnnffiError, match="this process was forked after"):
                call()

    in_child(work)
    run(product, problem)


# Errors

CREATING = (
    "cublasLtCreate",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
)


def test_a_status_for_new_rows_becomes_an_error(cublas, standin):
    products = RowsProducts(cublas, 0, "float32")
    follows = Matrix(None, 2, batch_stride=None)
    product = products.product(Matrix(None, 8), B, follows, batch=2)
    chosen = product.choose(4)
    standin.fail, standin.status = b"cublasLtMatrixLayoutSetAttribute", 7
    with pytest.raises(CublasError, match=r"LayoutSetAttribute returned .*2 rows"):
        product.run(LAUNCH, 2, chosen, (0, 0, 0), 0)
    products.close()


@pytest.mark.parametrize("function", CREATING)
def test_a_status_becomes_an_error_and_leaves_nothing(cublas, standin, function):
    standin.fail, standin.status = function.encode(), 7
    with pytest.raises(CublasError, match=f"{function} returned CUBLAS_STATUS_INVALID") as caught:
        MatrixProduct(cublas, 0, A, B, C._replace(batch_stride=8), "float16", batch=2)
    assert list(standin.live)[1:4] == [0, 0, 0]  # while the error refers to the failed object
    del caught


def test_a_product_that_fails_names_itself(cublas, standin):
    problem = Problem(Case(4, 8, 2, "bfloat16", transposed=(True, False), padding=(1, 0, 0)))
    product = made(cublas, problem.case, problem)
    standin.fail, standin.status = b"cublasLtMatmul", 13
    with pytest.raises(CublasError) as caught:
        run(product, problem)
    assert caught.value.status == 13
    assert caught.value.vendor == "cuBLAS"
    assert str(caught.value) == (
        "cublasLtMatmul returned CUBLAS_STATUS_OF_ANOTHER_KIND (13) for [4, 2] = [8, 4 of 5]^T "
        "[8, 2] in bfloat16, batch 1, math default: something else"
    )
    run(product, problem)


@pytest.mark.parametrize("no_result", [0, 1, 2])
@pytest.mark.parametrize(("least", "dtype"), [(4, "float16"), (32, "float32")])
def test_without_an_algorithm_it_is_unsupported(cublas, standin, no_result, least, dtype):
    standin.least, standin.no_result = least, no_result
    with pytest.raises(UnsupportedError, match=rf"^cuBLAS 13\.10\.0: .*\[4, 2\] = .* in {dtype}"):
        MatrixProduct(cublas, 0, A, B, C, dtype)
    assert list(standin.live)[1:4] == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dtype": "float64"}, ValueError, "dtype must be one of float32, float16, bfloat16"),
        ({"math": "exact"}, ValueError, "math must be one of"),
        ({"batch": 0}, ValueError, "batch must be from 1"),
        ({"batch": 2}, ValueError, r"c\.batch_stride must be at least 1"),
        ({"workspace_limit": -1}, ValueError, "workspace_limit must be from 0"),
        ({"a": Matrix(0, 8)}, ValueError, r"a\.rows must be from 1"),
        ({"b": Matrix(8, 2, 1)}, ValueError, r"b\.leading must be from 2"),
        ({"b": Matrix(8, 2, batch_stride=-1)}, ValueError, r"b\.batch_stride must be from 0"),
        ({"c": Matrix(4, 2.0)}, TypeError, r"c\.columns must be an integer"),
        ({"a": Matrix(4, 8, transposed=1)}, TypeError, r"a\.transposed must be True or False"),
        ({"a": Matrix(8, 4)}, ValueError, r"got \[8, 4\] \[8, 2\], \[4, 2\]"),
        ({"b": Matrix(2, 8)}, ValueError, "a b must have the shape of c"),
        ({"c": Matrix(4, 3)}, ValueError, "a b must have the shape of c"),
        ({"c": Matrix(2, 4, transposed=True)}, ValueError, "as it lies"),
    ],
)
def test_a_wrong_argument_is_named(cublas, standin, change, error, message):
    arguments = {"a": A, "b": B, "c": C, "dtype": "float32"} | change
    with pytest.raises(error, match=message):
        MatrixProduct(cublas, 0, **arguments)
    assert standin.live[4] == 0


# The stand-in itself


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_every_number_of_16_bits_goes_through_as_it_is(cublas, dtype):
    problem = Problem(Case(1, 1, 1 << 16, dtype))
    problem.a.inside(problem.a.flat)[...] = 1
    numbers = np.arange(1 << 16, dtype=np.uint16).view(problem.b.flat.dtype)
    numbers[~np.isfinite(numbers.astype(np.float32))] = 0
    problem.b.inside(problem.b.flat)[0, 0] = numbers
    run(made(cublas, problem.case, problem), problem)
    np.testing.assert_array_equal(
        problem.c.inside(problem.c.flat)[0, 0].astype(np.float32), numbers.astype(np.float32)
    )
