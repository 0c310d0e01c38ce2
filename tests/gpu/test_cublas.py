"""Products of matrices by the real cuBLASLt: numbers, addresses, threads, graphs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from products import CASES, DTYPES, Case, Problem, cases

from dnnffi.backends.cublas.library import load
from dnnffi.backends.cublas.product import Matrix, MatrixProduct
from dnnffi.device.cupy import cupy_memory
from dnnffi.device.interface import Launch

cupy = pytest.importorskip("cupy")


class OnDevice:
    """A problem's arrays in device memory, its product and its workspace.

    As bytes: CuPy need not know the dtype.
    """

    def __init__(self, problem, product=None):
        self.problem = problem
        case = problem.case
        self.expected = problem.expected()
        self.allowed = problem.allowed(self.expected)
        self.product = product or MatrixProduct(
            load(), 0, *problem.matrices, case.dtype, math=case.math, batch=case.batch
        )
        self.arrays = [cupy.asarray(one.flat.view(np.uint8)) for one in problem.operands]
        self.workspace = cupy.empty(max(self.product.workspace_bytes, 1), np.uint8)
        self.addresses = [
            array.data.ptr + one.offset * one.flat.itemsize
            for array, one in zip(self.arrays, problem.operands, strict=True)
        ]
        cupy.cuda.get_current_stream().synchronize()

    def run(self, stream=None):
        stream = cupy.cuda.get_current_stream() if stream is None else stream
        self.product.run(
            Launch(stream, 0),
            *self.addresses,
            self.workspace.data.ptr,
            accumulate=self.problem.case.accumulate,
        )

    def fill(self, problem):
        """Put another problem of the same case in the place of this one."""
        self.problem, self.expected = problem, problem.expected()
        self.allowed = problem.allowed(self.expected)
        for array, one in zip(self.arrays, problem.operands, strict=True):
            array.set(one.flat.view(np.uint8))

    def result(self):
        return self.arrays[2].get().view(self.problem.c.flat.dtype)

    def check(self):
        self.problem.check(self.expected, self.allowed, self.result())


def check(case):
    on_device = OnDevice(Problem(case))
    on_device.run()
    on_device.check()
    on_device.product.close()


@pytest.fixture(autouse=True)
def on_device():
    with cupy.cuda.Device(0):
        yield


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_product_is_numpys(case):
    check(case)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_any_small_product_is_numpys(case):
    check(case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("size", "transposed"),
    [
        ((6400, 512, 2048), (False, True)),  # the input of an LSTM, all steps at once
        ((2048, 6400, 512), (True, False)),  # the gradient of its weights
        ((1, 4096, 1000), (False, False)),
        ((1023, 257, 511), (True, True)),
    ],
)
def test_the_product_is_numpys_at_the_sizes_of_networks(dtype, size, transposed):
    check(Case(*size, dtype, transposed=transposed, accumulate=True))
    check(Case(*size, dtype, math="strict", transposed=transposed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_unaligned_addresses_give_what_aligned_ones_do(dtype):
    for which in range(3):
        offset = [0, 0, 0]
        offset[which] = 1
        case = Case(128, 256, 192, dtype, offset=tuple(offset))
        check(case)
        check(case._replace(accumulate=True, transposed=(True, True)))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_captured_product_is_replayed_on_what_is_there_then(dtype, accumulate):
    case = Case(96, 160, 224, dtype, accumulate=accumulate)
    on_device = OnDevice(Problem(case, 0))
    # Captured as the first run: loading kernels in it must not end the capture.
    graph = cupy_memory().capture(on_device.run)
    np.testing.assert_array_equal(
        on_device.result().view(np.uint8), on_device.problem.c.flat.view(np.uint8)
    )
    for seed in (1, 2):
        on_device.fill(Problem(case, seed))
        graph.launch(cupy.cuda.get_current_stream())
        on_device.check()


def test_a_replay_gives_the_bits_of_a_call():
    on_device = OnDevice(Problem(Case(512, 2048, 256, "float16")))
    on_device.run()
    called = on_device.result()
    graph = cupy_memory().capture(on_device.run)
    on_device.arrays[2].fill(0xFF)
    graph.launch(cupy.cuda.get_current_stream())
    np.testing.assert_array_equal(on_device.result().view(np.uint16), called.view(np.uint16))


def test_threads_share_a_product_on_streams_of_their_own():
    case = Case(512, 1024, 256, "float16", transposed=(False, True))
    first = OnDevice(Problem(case, 0))
    others = [first, *(OnDevice(Problem(case, seed), first.product) for seed in (1, 2, 3))]

    def work(one):
        with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True) as stream:
            for _ in range(50):
                one.run(stream)
            stream.synchronize()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, others))
    for one in others:
        one.check()


def test_threads_make_products_at_once():
    def work(seed):
        with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True) as stream:
            made = OnDevice(Problem(Case(32 + seed, 64, 48, "bfloat16"), seed))
            made.run(stream)
            stream.synchronize()
            return made

    with ThreadPoolExecutor(2) as pool:
        for made in pool.map(work, range(16)):
            made.check()
    assert len(load().handles) == 1


def test_the_workspace_keeps_to_its_limit():
    a, b, c = Matrix(64, 8192), Matrix(8192, 64), Matrix(64, 64)
    for limit in (0, 1 << 20):
        product = MatrixProduct(load(), 0, a, b, c, "float16", workspace_limit=limit)
        assert product.workspace_bytes <= limit
