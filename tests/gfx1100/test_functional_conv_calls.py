"""Convolutions on the real libMIOpen: solutions, searches, fusion, memory, faults, leaks."""

from __future__ import annotations

import ast
import ctypes
import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from conformance import deviation
from conformance_conv import expected
from gfx1100.convolutions import (
    GEMM,
    NAIVE,
    SIZES,
    Injected,
    Scarce,
    conv,
    executor_of,
    problem_of,
    spec_of,
    training_step,
)

import dnnffi
from dnnffi import testing
from dnnffi.backends.miopen.limits import FUSION
from dnnffi.backends.vendor.handle import close_handles
from dnnffi.backends.vendor.limits import limit_of
from dnnffi.convolution.executor_plan import ExecutorConvPlan
from dnnffi.convolution.finder import CALLS_PER_ATTEMPT
from dnnffi.convolution.tuning import ConvTrial
from dnnffi.errors import DnnffiError, MiopenError, UnsupportedError
from dnnffi.foreign import using
from dnnffi.runtime.hip import RuntimeCallError
from simulators.gfx1100.hip_arrays import DlpackArray, HipArray, HipError, OutOfMemoryError

UNKNOWN_ERROR, NOT_IMPLEMENTED, UNSUPPORTED = 7, 6, 8
LAUNCH_FAILED = 719
RUN = "miopenConvolutionForwardImmediate"
COMPILE = "miopenConvolutionForwardCompileSolution"
FIND = "miopenFindConvolutionForwardAlgorithm"
SEARCH = {"tune": "now"}


@pytest.fixture
def injected(miopen):
    return Injected(miopen.watched)


def plan_of(miopen):
    """Return the only plan."""
    (plan,) = miopen.conv.plans.values()
    return plan


def executors_of(plan):
    """Return the executors of a plan for this thread."""
    return plan._of_thread().executors


def assert_right(found, problem=None):
    problem = problem_of() if problem is None else problem
    assert deviation(found, expected(problem, testing.conv_inputs(problem, 0))) < 1e-5


def ran(injected, miopen):
    """Return a list that gets (solution number, workspace size) of each later forward pass."""
    numbers = []

    def run(real, *arguments):
        *_, size, number = arguments
        numbers.append((number, size))
        return real(*arguments)

    injected.put(RUN, run)
    return numbers


# Arrays


@pytest.mark.parametrize("array", [HipArray, DlpackArray])
def test_arrays_in_and_the_allocators_own_out(miopen, array):
    problem = problem_of(bias=True, residual=True, activation="relu", alpha=0.5)
    x, w, bias, z, dy = map(array.of, testing.conv_inputs(problem, 0))
    keywords = {"padding": 1, "backend": "miopen", "options": {"allocator": array}}
    y = dnnffi.conv(x, w, bias, residual=z, alpha=0.5, activation="relu", **keywords)
    dx = dnnffi.conv_backward_data(dy, w, x.shape, **keywords)
    dw = dnnffi.conv_backward_weights(dy, x, w.shape, **keywords)
    del keywords["padding"]
    db = dnnffi.conv_backward_bias(dy, **keywords)
    assert {type(a) for a in (y, dx, dw, db)} == {array}
    assert_right(y, problem)
    np.testing.assert_allclose(db.get(), dy.get().sum(axis=(0, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(2, 4, 9), (3, 1, 4, 2), (1, 5, 1, 1), (2, 3, 2, 3, 4)])
def test_the_gradient_of_the_bias(miopen, shape, dtype):
    dy = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    keywords = {"backend": "miopen", "options": miopen.options}
    found = dnnffi.conv_backward_bias(DlpackArray.of(dy), **keywords)
    assert found.shape == shape[1:2]
    assert found.dtype.name == dtype
    wanted = dy.astype("f8").sum(axis=(0, *range(2, dy.ndim)))
    tolerance = 2e-3 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(found.get(), wanted, atol=tolerance * np.abs(dy).sum())


class AtAnOddAddress(DlpackArray):
    """An array in memory that is not aligned to its elements."""

    def __init__(self, shape, dtype):
        dtype = np.dtype(dtype)
        super().__init__((int(np.prod(shape)) * dtype.itemsize + 1,), "uint8")
        self.shape, self.dtype, self.nbytes = tuple(shape), dtype, self.nbytes - 1
        self.address += 1

    def __del__(self):
        self.address -= 1
        super().__del__()


def test_arrays_that_are_not_aligned_to_their_elements_are_copied(miopen, injected):
    addresses = []

    def run(real, *arguments):
        addresses.extend((arguments[2], arguments[4]))
        return real(*arguments)

    injected.put(RUN, run)
    assert_right(conv(miopen, asarray=AtAnOddAddress.of))
    assert [address % 4 for address in addresses] == [0, 0]
    dy = np.random.default_rng(0).standard_normal((2, 4, 9)).astype("f4")
    db = dnnffi.conv_backward_bias(AtAnOddAddress.of(dy), backend="miopen", options=miopen.options)
    np.testing.assert_allclose(db.get(), dy.sum(axis=(0, 2)), rtol=1e-5)


def test_an_empty_batch_asks_no_library(miopen):
    x, w = DlpackArray((0, 3, *SIZES), "float32"), DlpackArray((4, 3, 3, 3), "float32")
    dy = DlpackArray((0, 4, *SIZES), "float32")
    keywords = {"padding": 1, "backend": "miopen", "options": miopen.options}
    before = sum(miopen.watched.calls.values())
    assert dnnffi.conv(x, w, **keywords).shape == (0, 4, *SIZES)
    assert dnnffi.conv_backward_data(dy, w, x.shape, **keywords).shape == x.shape
    assert not dnnffi.conv_backward_weights(dy, x, w.shape, **keywords).get().any()
    del keywords["padding"]
    assert not dnnffi.conv_backward_bias(dy, **keywords).get().any()
    assert sum(miopen.watched.calls.values()) == before


def test_a_known_problem_makes_one_call(miopen):
    conv(miopen)
    before = sum(miopen.watched.calls.values())
    assert_right(conv(miopen))
    assert sum(miopen.watched.calls.values()) == before + 1


def test_the_stream_of_the_options_is_used(miopen):
    runtime = miopen.library.memory._runtime
    made = ctypes.c_void_p()
    runtime.call("StreamCreate", ctypes.byref(made))
    assert_right(conv(miopen, options={"stream": lambda: made.value}))
    handle = miopen.library.local.handles[0]
    assert handle.launch.stream.ptr == made.value
    conv(miopen)
    assert handle.launch.stream.ptr == 0
    runtime.call("StreamDestroy", made)


def test_validate_compares_on_the_host(miopen, monkeypatch):
    conv(miopen, options={"validate": True})

    def wrong(plan, addresses):
        y = run_at(plan, addresses)
        y.set(y.get() * np.float32(1.1))
        return y

    run_at = ExecutorConvPlan.run_at
    monkeypatch.setattr(ExecutorConvPlan, "run_at", wrong)
    with pytest.raises(dnnffi.ValidationError, match=r"y .*allowed"):
        conv(miopen, options={"validate": True})


def test_nan_and_infinity_go_where_the_reference_has_them(miopen):
    problem = problem_of(bias=True, residual=True)
    arrays = testing.conv_inputs(problem, 0)
    arrays.x[0, 0, 0, 0], arrays.x[1, 2, 3, 3] = np.nan, np.inf
    x, w, bias, z, _ = map(DlpackArray.of, arrays)
    wanted = dnnffi.conv(arrays.x, arrays.w, arrays.bias, residual=arrays.residual, padding=1)
    assert np.isnan(wanted).any()
    assert np.isinf(wanted).any()
    keywords = {"residual": z, "padding": 1, "backend": "miopen", "options": miopen.options}
    y = dnnffi.conv(x, w, bias, **keywords).get()
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(y), np.isinf(wanted))
    # MIOpen's ReLU makes NaN of -infinity (3.4.0).
    y = dnnffi.conv(x, w, bias, activation="relu", **keywords).get()
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted) | np.isneginf(wanted))
    np.testing.assert_array_equal(np.isposinf(y), np.isposinf(wanted))


# Immediate mode


def test_the_first_solution_is_taken(miopen, injected):
    numbers = ran(injected, miopen)
    assert_right(conv(miopen))
    plan = plan_of(miopen)
    first, second = executors_of(plan).solutions
    assert {first.number, second.number} == {GEMM, NAIVE}
    assert numbers == [(first.number, first.workspace_bytes)]
    assert f"* {first.number} {first.algorithm}: workspace " in plan.report()
    assert "not measured here" in plan.report()


def test_any_number_of_solutions(miopen, injected):
    many = [(10_000 + i, 1, 0) for i in range(40)]
    injected.list_solutions(lambda own: [*many, *own])
    numbers = ran(injected, miopen)
    assert_right(conv(miopen))
    plan = plan_of(miopen)
    assert len(executors_of(plan).solutions) == 42
    # The library does not know the first 40, and refuses to compile them.
    assert numbers[0][0] in (GEMM, NAIVE)
    assert plan.report().count("gave up Solution(number=100") == 40


def test_no_solution_that_can_be_compiled(miopen, injected):
    injected.list_solutions(lambda own: [(10_000, 1, 0), (10_001, 1, 0)])
    with pytest.raises(MiopenError, match=COMPILE):
        conv(miopen)


def test_no_solution(miopen, injected):
    injected.list_solutions(lambda own: [])
    with pytest.raises(UnsupportedError, match=r"^MIOpen 3\.4\.0: has no solution for forward of "):
        conv(miopen)


def refuse(injected, name, numbers, status):
    injected.put(
        name, lambda real, *arguments: status if arguments[-1] in numbers else real(*arguments)
    )


def test_a_solution_that_cannot_be_compiled_is_followed_by_the_next(miopen, injected):
    injected.list_solutions(sorted_with_first(GEMM))
    refuse(injected, COMPILE, [GEMM], UNKNOWN_ERROR)
    numbers = ran(injected, miopen)
    assert_right(conv(miopen))
    assert numbers == [(NAIVE, 0)]


@pytest.mark.parametrize("status", [UNSUPPORTED, NOT_IMPLEMENTED])
def test_a_solution_that_is_refused_when_it_runs_is_followed_by_the_next(miopen, injected, status):
    injected.list_solutions(sorted_with_first(GEMM))
    tried = []

    def run(real, *arguments):
        tried.append(arguments[-1])
        return status if arguments[-1] == GEMM else real(*arguments)

    injected.put(RUN, run)
    assert_right(conv(miopen))
    assert tried == [GEMM, NAIVE]
    conv(miopen)
    assert tried == [GEMM, NAIVE, NAIVE]  # for good
    assert "gave up Solution(number=91" in plan_of(miopen).report()


def test_no_solution_that_runs(miopen, injected):
    injected.put(RUN, lambda real, *arguments: UNSUPPORTED)
    with pytest.raises(UnsupportedError, match=f"{RUN} does not support forward of"):
        conv(miopen)


def test_an_error_when_it_runs_is_the_callers(miopen, injected):
    injected.put(RUN, lambda real, *arguments: UNKNOWN_ERROR)
    with pytest.raises(MiopenError, match=RUN) as caught:
        conv(miopen)
    assert caught.value.status == UNKNOWN_ERROR


def sorted_with_first(number):
    return lambda own: sorted(own, key=lambda one: one[0] != number)


# Workspaces


def test_without_memory_for_the_workspace_one_without_is_taken(miopen, injected):
    injected.list_solutions(sorted_with_first(GEMM))
    numbers = ran(injected, miopen)
    allocator = Scarce(most=100)
    assert_right(conv(miopen, options={"allocator": allocator}))
    first = executors_of(plan_of(miopen)).solutions[0]
    assert allocator.asked == [first.workspace_bytes]
    assert numbers == [(NAIVE, 0)]
    conv(miopen)  # with memory again
    assert numbers[1] == (GEMM, first.workspace_bytes)


def test_without_memory_for_the_first_the_default_is_taken(miopen, injected):
    injected.list_solutions(lambda own: [(10_000, 1, 1 << 40), *sorted_with_first(NAIVE)(own)])
    injected.put(
        COMPILE, lambda real, *arguments: 0 if arguments[-1] == 10_000 else real(*arguments)
    )
    numbers = ran(injected, miopen)
    allocator = Scarce(most=1 << 20)
    assert_right(conv(miopen, options={"allocator": allocator}))
    # A solution without workspace comes before it in the list.
    assert [number for number, _ in numbers] == [GEMM]
    assert allocator.asked == [1 << 40, numbers[0][1]]


def test_without_memory_for_the_default_one_without_is_taken(miopen, injected):
    injected.list_solutions(lambda own: [(10_000, 1, 1 << 40), *sorted_with_first(GEMM)(own)])
    injected.put(
        COMPILE, lambda real, *arguments: 0 if arguments[-1] == 10_000 else real(*arguments)
    )
    numbers = ran(injected, miopen)
    allocator = Scarce(most=100)
    assert_right(conv(miopen, options={"allocator": allocator}))
    assert numbers == [(NAIVE, 0)]
    assert len(allocator.asked) == 2


# Subclass of MemoryError, PyTorch's error, and another error.
ERRORS = pytest.mark.parametrize("error", [OutOfMemoryError, RuntimeError, LookupError])


@ERRORS
@pytest.mark.parametrize("options", [{}, SEARCH], ids=["listed", "searched"])
def test_whatever_the_allocator_raises_one_without_workspace_is_taken(
    miopen, injected, options, error
):
    listed = [(10_000, 1, 1 << 40), (GEMM, 0, 4536), (NAIVE, 1, 0)]
    injected.list_solutions(lambda own: listed)
    injected.put(
        COMPILE, lambda real, *arguments: 0 if arguments[-1] == 10_000 else real(*arguments)
    )
    numbers = ran(injected, miopen)
    assert_right(conv(miopen, options=options | {"allocator": Scarce(most=100, error=error)}))
    assert numbers == [(NAIVE, 0)]


@ERRORS
def test_the_allocators_error_where_nothing_needs_less(miopen, injected, error):
    injected.list_solutions(lambda own: [one for one in own if one[0] == GEMM])
    with pytest.raises(error, match=r"^'?4536 bytes"):
        conv(miopen, options={"allocator": Scarce(most=100, error=error)})


def test_a_limit_of_the_workspace(miopen, injected):
    numbers = ran(injected, miopen)
    assert_right(conv(miopen, options={"workspace_limit": 0}))
    assert numbers == [(NAIVE, 0)]
    injected.list_solutions(lambda own: [one for one in own if one[0] == GEMM])
    message = r"options\['workspace_limit'\] is 1 bytes, and the solution .* needs 4536: forward of"
    with pytest.raises(UnsupportedError, match=message):
        conv(miopen, options={"workspace_limit": 1})


# Options


@pytest.mark.parametrize("deterministic", [False, True])
def test_deterministic_is_an_attribute_of_the_descriptor(miopen, deterministic):
    assert_right(conv(miopen, options={"deterministic": deterministic}))
    assert (
        executors_of(plan_of(miopen))._convolution._convolution.read().deterministic
        == deterministic
    )


def test_a_search_is_made_once_for_a_problem(miopen, injected):
    numbers = ran(injected, miopen)
    problem = problem_of(sizes=(7, 6))
    assert_right(conv(miopen, problem, options=SEARCH), problem)
    assert miopen.watched.calls[FIND] == 1
    plan = plan_of(miopen)
    (found,) = miopen.conv.source.searches.values()
    first = executors_of(plan).solutions[0]
    assert (first.algorithm, first.workspace_bytes) == found
    assert first.number == GEMM  # always has fewer instructions than the loops
    assert numbers == [(first.number, first.workspace_bytes)]
    assert "measured" in plan.report().splitlines()
    conv(miopen, problem, options=SEARCH)
    miopen.conv.plans.clear()
    conv(miopen, problem, options=SEARCH)
    with_bias = problem_of(sizes=(7, 6), bias=True, residual=True)
    assert_right(conv(miopen, with_bias, options=SEARCH), with_bias)
    assert miopen.watched.calls[FIND] == 1


def test_a_transposed_convolution_shares_the_search_of_the_ordinary_one(miopen):
    spec = spec_of()
    transposed = problem_of(spec=spec_of(in_channels=4, out_channels=3, transposed=True))
    assert_right(conv(miopen, transposed, options=SEARCH), transposed)
    find = "miopenFindConvolutionBackwardDataAlgorithm"
    assert miopen.watched.calls[find] == 1
    arrays = testing.conv_inputs(problem_of("backward_data", spec), 0)
    dnnffi.conv_backward_data(
        *map(DlpackArray.of, (arrays.dy, arrays.w)), (2, 3, *SIZES),
        padding=1, backend="miopen", options=miopen.options | SEARCH,
    )  # fmt: skip
    assert miopen.watched.calls[find] == 1


def test_another_thread_runs_what_was_searched(miopen):
    conv(miopen, options=SEARCH)
    found = []

    def run():
        with using(DlpackArray):
            found.append(conv(miopen, options=SEARCH).get())
        close_handles(miopen.library)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert_right(DlpackArray.of(found[0]))
    assert miopen.watched.calls[FIND] == 1


def test_what_one_search_has_measured_no_other_test_sees(miopen):
    problem = problem_of(sizes=(6, 7))  # sizes that no other test uses
    estimated = executor_of(miopen, problem)
    conv(miopen, problem, options=SEARCH)
    assert miopen.watched.calls[FIND] == 1
    again = executor_of(miopen, problem)
    assert again.solutions == estimated.solutions
    for executor in (estimated, again):
        executor.close()


SEARCHED_BY_THE_LIBRARY = """
from gfx1100.convolutions import conv, executor_of, problem_of
from simulators.gfx1100.device_library import device
from simulators.gfx1100.embedded import opened

with opened(device()) as miopen:
    for _ in range(2):
        executor = executor_of(miopen, problem_of())
        print(*sorted((one.number, one.milliseconds) for one in executor.solutions), sep=";")
        executor.close()
        conv(miopen, options={"tune": "now"})
"""


def test_the_library_lists_times_of_a_search_where_it_keeps_them(tmp_path):
    """Uses a new process and folder: in this process, ``run.py`` disables the find database."""
    kept = {"MIOPEN_DEBUG_DISABLE_FIND_DB": "0", "MIOPEN_USER_DB_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SEARCHED_BY_THE_LIBRARY],
        env={**os.environ, **kept},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    estimated, measured = (
        dict(map(ast.literal_eval, line.split(";"))) for line in done.stdout.splitlines()
    )
    assert estimated.keys() == measured.keys() == {GEMM, NAIVE}
    assert all(measured[number] != estimated[number] for number in measured)
    assert measured[GEMM] < measured[NAIVE]


def test_a_search_says_what_is_taken(miopen, injected):
    def find(real, *arguments):
        *_, count, measured, _, _, _ = arguments
        count[0] = 1
        measured[0].fwd_algo, measured[0].time, measured[0].memory = 1, 0.5, 0  # direct
        return 0

    injected.put(FIND, find)
    injected.list_solutions(sorted_with_first(GEMM))
    numbers = ran(injected, miopen)
    assert_right(conv(miopen, options=SEARCH))
    assert numbers == [(NAIVE, 0)]


def test_a_search_without_memory_measures_what_needs_none(miopen):
    allocator = Scarce(most=100)
    assert_right(conv(miopen, options=SEARCH | {"allocator": allocator}))
    (found,) = miopen.conv.source.searches.values()
    assert found.workspace_bytes == 0
    assert allocator.asked == [4536]


def test_a_search_within_a_limit(miopen):
    assert_right(conv(miopen, options=SEARCH | {"workspace_limit": 100}))
    (found,) = miopen.conv.source.searches.values()
    assert found.workspace_bytes == 0


def test_a_search_that_finds_nothing(miopen, injected):
    searches = []

    def find(real, *arguments):
        searches.append(arguments)
        arguments[-5][0] = 0
        return 0

    injected.put(FIND, find)
    for _ in range(CALLS_PER_ATTEMPT):
        assert_right(conv(miopen, options=SEARCH))
    assert len(searches) == 2
    assert "by MIOpen's list, not measured here" in plan_of(miopen).report()


def test_without_memory_for_a_search_the_list_is_taken(miopen, monkeypatch):
    def none(*arguments):
        raise LookupError("of the caller's allocator")

    with monkeypatch.context() as patch:
        patch.setattr(ConvTrial, "__init__", none)
        assert_right(conv(miopen, options=SEARCH))
    assert miopen.watched.calls[FIND] == 0
    for _ in range(CALLS_PER_ATTEMPT - 1):
        assert_right(conv(miopen, options=SEARCH))
    assert miopen.watched.calls[FIND] == 1


# Fusion


class FusedKernel:
    """Stand-in for a fused kernel, which this device does not have; it checks the library calls."""

    def __init__(self, miopen, injected):
        self.library, self.runs, self.compiled = miopen.library, [], []
        self.arguments = {}
        injected.put("miopenCompileFusionPlan", self.compile)
        injected.put("miopenExecuteFusionPlan", self.execute)
        for name in ("ConvForward", "BiasForward", "ActivForward"):
            injected.put(f"miopenSetOpArgs{name}", self.setter(name))

    def compile(self, real, handle, plan):
        self.compiled.append(handle)
        return 0

    def setter(self, name):
        def set_arguments(real, arguments, operator, one, zero, *values):
            assert (one[0], zero[0]) == (1, 0)
            self.arguments[name] = values
            return real(arguments, operator, one, zero, *values)

        return set_arguments

    def execute(self, real, handle, plan, x_desc, x, y_desc, y, arguments):
        assert handle in self.compiled
        self.runs.append((x, dict(self.arguments), y))
        return 0


@pytest.mark.parametrize(("bias", "activation"), [(True, "relu"), (True, None), (False, "relu")])
def test_a_fusion_plan_gets_all_arguments(miopen, injected, bias, activation):
    kernel = FusedKernel(miopen, injected)
    problem = problem_of(bias=bias, activation=activation)
    arrays = [DlpackArray.of(a) for a in testing.conv_inputs(problem, 0) if a is not None]
    x, w, b, _ = (*arrays, None)[:4] if bias else (*arrays[:2], None, None)
    keywords = {"activation": activation, "padding": 1, "backend": "miopen"}
    y = dnnffi.conv(x, w, b, options=miopen.options, **keywords)
    ((x_at, given, y_at),) = kernel.runs
    assert (x_at, y_at) == (x.address, y.address)
    wanted = {"ConvForward": (w.address,)}
    if bias:
        wanted["BiasForward"] = (b.address,)
    if activation:
        wanted["ActivForward"] = (0.0, 0.0, 0.0)
    assert given == wanted
    assert len(kernel.compiled) == 1
    assert "in the same kernel" in plan_of(miopen).report()
    live = miopen.watched.live()
    assert (live["FusionPlan"], live["OperatorArgs"]) == (1, 1)
    del x_at, y_at
    plan_of(miopen).close()
    assert {"FusionPlan", "OperatorArgs"}.isdisjoint(miopen.watched.live())


def test_a_fusion_plan_is_compiled_for_each_handle(miopen, injected):
    kernel = FusedKernel(miopen, injected)
    problem = problem_of(bias=True, activation="relu")
    conv(miopen, problem)

    def run():
        with using(DlpackArray):
            conv(miopen, problem)
        close_handles(miopen.library)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(set(kernel.compiled)) == 2
    assert len(kernel.runs) == 2


NOT_FUSED = {
    "a residual": {"residual": True},
    "float16": {"spec": spec_of(dtype="float16")},
    "three dimensions": {"spec": spec_of(kernel=(3, 3, 3)), "sizes": (4, 3, 2)},
    "transposed": {"spec": spec_of(in_channels=4, out_channels=3, transposed=True)},
    "deterministic": {"options": {"deterministic": True}},
}


@pytest.mark.parametrize("name", NOT_FUSED)
def test_what_is_not_fused(miopen, name):
    problem = problem_of(bias=True, activation="relu", **NOT_FUSED[name])
    found = conv(miopen, problem)
    allowed = 5e-3 if problem.spec.dtype == "float16" else 1e-5
    assert deviation(found, expected(problem, testing.conv_inputs(problem, 0))) < allowed
    assert miopen.watched.calls["miopenCreateFusionPlan"] == 0
    assert f"not fused: {limit_of(FUSION, problem)}" in plan_of(miopen).report()


def test_what_has_no_fused_kernel_is_composed(miopen):
    problem = problem_of(bias=True, activation="relu")
    assert_right(conv(miopen, problem), problem)
    assert miopen.watched.calls["miopenCompileFusionPlan"] == 1
    assert "FusionPlan" not in miopen.watched.live()
    assert "not fused: MIOpen has no kernel for all of it" in plan_of(miopen).report()


def test_an_operator_that_cannot_be_fused_is_composed(miopen, injected):
    injected.put("miopenCreateOpConvForward", lambda real, *arguments: UNSUPPORTED)
    problem = problem_of(bias=True, activation="relu")
    assert_right(conv(miopen, problem), problem)


# Asymmetric padding


ASYMMETRIC = {"padding": ((0, 2), (1, 0))}


@pytest.mark.parametrize("options", [{}, SEARCH], ids=["immediate", "search"])
@pytest.mark.parametrize("transposed", [False, True])
def test_asymmetric_padding_with_all_that_follows(miopen, transposed, options):
    problem = problem_of(
        *("forward", spec_of(**ASYMMETRIC, transposed=transposed)),
        **{"bias": True, "residual": True, "alpha": 0.5, "activation": "relu"},
    )
    for _ in range(2):
        assert_right(conv(miopen, problem, options=options), problem)


def test_a_fusion_plan_gets_the_padded_image(miopen, injected):
    kernel = FusedKernel(miopen, injected)
    problem = problem_of(spec=spec_of(**ASYMMETRIC), bias=True, activation="relu")
    images = []

    def array(value):
        images.append(DlpackArray.of(value))
        return images[-1]

    conv(miopen, problem, asarray=array)
    ((x_at, given, y_at),) = kernel.runs
    assert x_at not in (0, y_at, given["ConvForward"][0])
    assert x_at not in {image.address for image in images}


def test_a_limit_of_the_workspace_below_the_padded_image(miopen):
    problem = problem_of(spec=spec_of(**ASYMMETRIC))
    need = 4 * 2 * 3 * 9 * 7
    assert_right(conv(miopen, problem, options={"workspace_limit": need}), problem)
    message = rf"asymmetric padding, of {need} bytes; options\['workspace_limit'\] is {need - 1}$"
    with pytest.raises(UnsupportedError, match=message):
        conv(miopen, problem, options={"workspace_limit": need - 1})


# Leaks, faults, memory running out


def error_of(function, *arguments, **keywords):
    """Return the error of a call without its traceback, which keeps arrays alive, or None."""
    try:
        function(*arguments, **keywords)
    except (MemoryError, DnnffiError, HipError) as error:
        return error.with_traceback(None)
    return None


def fused_step(miopen):
    return [conv(miopen, problem_of(bias=True, activation="relu")).get()]


def forward_step(miopen):
    return [conv(miopen, problem_of(bias=True, residual=True)).get()]


def searching_step(miopen):
    if miopen.conv is not None:
        miopen.conv.source.searches.clear()
    return [conv(miopen, options=SEARCH).get()]


def asymmetric_step(miopen):
    return training_step(miopen, spec_of(**ASYMMETRIC))


STEPS = (training_step, fused_step, searching_step, asymmetric_step)


@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_left_of_many_steps(miopen, step):
    step(miopen)
    gc.collect()
    allocations, modules = miopen.hip.gfx1100_live_allocations(), miopen.hip.gfx1100_live_modules()
    objects = miopen.watched.live()
    for _ in range(10):
        step(miopen)
    gc.collect()
    assert miopen.hip.gfx1100_live_allocations() == allocations
    assert miopen.hip.gfx1100_live_modules() == modules
    assert miopen.watched.live() == objects


def test_plans_are_bounded_and_close(miopen, monkeypatch):
    conv(miopen)
    backend = miopen.conv
    monkeypatch.setattr(backend.plans, "capacity", 4)  # two plans, and signatures of their calls
    for limit in range(10_000, 10_006):
        conv(miopen, options={"workspace_limit": limit})
    gc.collect()
    assert miopen.watched.live()["ConvolutionDescriptor"] == 2
    backend.clear()
    gc.collect()
    assert set(miopen.watched.live()) == {"Handle"}


@pytest.mark.parametrize(
    ("step", "status", "must_fail"),
    [
        (training_step, UNKNOWN_ERROR, ("miopenOpTensor", "miopenActivationForward", RUN,
                                        "miopenConvolutionBackwardBias")),
        (forward_step, UNSUPPORTED, ("miopenConvolutionForwardGetSolution",)),
        (fused_step, UNKNOWN_ERROR, ("miopenCreateFusionPlan", "miopenCreateOpBiasForward",
                                     "miopenCreateOperatorArgs")),
        (searching_step, UNKNOWN_ERROR, ("miopenConvolutionForwardGetSolutionCount",)),
    ],
)  # fmt: skip
def test_a_status_at_each_call_leaves_nothing_behind(miopen, step, status, must_fail):
    wanted = step(miopen)
    expected_error = UnsupportedError if status == UNSUPPORTED else MiopenError
    failed = set()
    allocations = None
    for nth in range(1, 300):
        miopen.conv.clear()
        gc.collect()
        # The handle stays, and with it the loaded kernels.
        assert miopen.watched.live() == {"Handle": 1}
        allocations = allocations or miopen.hip.gfx1100_live_allocations()
        assert miopen.hip.gfx1100_live_allocations() == allocations
        miopen.watched.fail(nth, status)
        raised = error_of(step, miopen)
        if miopen.watched.fault is not None:
            break
        # An alternative, such as another solution, is used if there is one.
        if raised is not None:
            assert isinstance(raised, expected_error)
            assert miopen.watched.failed in str(raised)
            failed.add(miopen.watched.failed)
        del raised
    miopen.watched.fault = None
    assert set(must_fail) <= failed
    for one, other in zip(step(miopen), wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def empty_step(miopen):
    """Return the gradient of the weights for an empty batch, which is zero."""
    x, dy = DlpackArray((0, 3, *SIZES), "float32"), DlpackArray((0, 4, *SIZES), "float32")
    keywords = {"padding": 1, "backend": "miopen", "options": miopen.options}
    return [dnnffi.conv_backward_weights(dy, x, (4, 3, 3, 3), **keywords).get()]


@pytest.mark.parametrize(
    ("what", "step"),
    [
        *((what, training_step) for what in ("hipMalloc", "launch", "copy", "hipGetDevice")),
        ("memset", empty_step),
    ],
)
def test_a_fault_at_each_call_of_hip_leaves_nothing_behind(miopen, what, step):
    wanted = step(miopen)
    hip, what = miopen.hip, what.encode()
    before = hip.gfx1100_calls(what)
    step(miopen)
    count = hip.gfx1100_calls(what) - before
    assert count > 0
    known = (MiopenError, RuntimeCallError, OutOfMemoryError, HipError)
    raised = 0
    for nth in range(1, count + 1):
        gc.collect()
        objects = miopen.watched.live(), hip.gfx1100_live_allocations()
        hip.gfx1100_fail(what, nth, 2 if what == b"hipMalloc" else LAUNCH_FAILED)
        error = error_of(step, miopen)
        hip.gfx1100_fail(what, 0, 0)
        assert error is None or isinstance(error, known)
        raised += error is not None
        del error
        gc.collect()
        assert (miopen.watched.live(), hip.gfx1100_live_allocations()) == objects
    if what != b"hipGetDevice":  # MIOpen ignores some of these failures
        assert raised == count
    for one, other in zip(step(miopen), wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_memory_running_out_when_all_is_new_leaves_nothing_behind(miopen):
    training_step(miopen)
    refused = 0
    for nth in range(1, 100):
        miopen.forget()
        miopen.hip.gfx1100_fail(b"hipMalloc", nth, 2)
        raised = error_of(training_step, miopen)
        if miopen.hip.gfx1100_fault_is_armed():
            break
        refused += raised is not None
        del raised
        miopen.forget()
        assert miopen.hip.gfx1100_live_allocations() == 0
        assert miopen.watched.live() == {}
    miopen.hip.gfx1100_fail(b"hipMalloc", 0, 0)
    assert refused >= 9  # five arrays and four results
