"""The functional API on cuDNN against the reference in float64."""

from __future__ import annotations

import conformance
import numpy as np
import pytest
from conformance import Case, problem_of

import dnnffi
from dnnffi.backends.cudnn import library
from dnnffi.backends.cudnn.algorithm import known_wrong
from dnnffi.backends.cudnn.rnn_executor import CudnnRNNExecutor
from dnnffi.errors import UnsupportedError
from dnnffi.rnn.executor import RNNExecutor
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

cupy = pytest.importorskip("cupy")

ALGORITHMS = ("standard", "persist_static", "persist_dynamic", "persist_static_small_h")


@pytest.mark.parametrize("case", conformance.matrix(), ids=str)
def test_matrix(case):
    conformance.check(case, cupy.asarray, "cudnn")


def algorithm_cases():
    cases = []
    for algorithm in ALGORITHMS:
        for mode in conformance.MODES:
            for dtype in conformance.DTYPES:
                for math in ("default", "strict", "fast"):
                    for layout in ("dense", "batch_first"):
                        spec = RNNSpec(
                            mode=mode, input_size=128, hidden_size=128, num_layers=2, dtype=dtype
                        )
                        problem = problem_of(
                            spec,
                            layout,
                            5,
                            16,
                            np.random.default_rng(0),
                            training=True,
                            options=RNNOptions(algorithm=algorithm, math=math),
                        )
                        cases.append(Case(problem, states=True, seed=len(cases)))
    return cases


@pytest.mark.parametrize("case", algorithm_cases(), ids=str)
def test_algorithms_and_math(case):
    algorithm, dtype = case.problem.options.algorithm, case.problem.spec.dtype
    if dtype == "float64" and algorithm in ("persist_static", "persist_static_small_h"):
        with pytest.raises(UnsupportedError, match=r"cuDNN .*NOT_SUPPORTED"):
            conformance.check(case, cupy.asarray, "cudnn")
    else:
        conformance.check(case, cupy.asarray, "cudnn")


BOUNDS = (-0.25, 0.125)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", conformance.MODES)
@pytest.mark.parametrize("algorithm", ALGORITHMS[1:])
def test_persistent_algorithms_in_both_directions(algorithm, mode, dtype):
    spec = RNNSpec(
        mode=mode, input_size=64, hidden_size=128, num_layers=2, bidirectional=True, dtype=dtype
    )
    rng = np.random.default_rng(0)
    options = RNNOptions(algorithm=algorithm)
    problem = problem_of(spec, "dense", 4, 8, rng, training=True, options=options)
    case = Case(problem, states=True, seed=0)
    if known_wrong(problem, algorithm):
        with pytest.raises(UnsupportedError, match="gradients are wrong in two directions"):
            conformance.check(case, cupy.asarray, "cudnn")
    else:
        conformance.check(case, cupy.asarray, "cudnn")


def cases_by_size():
    cases = []
    for algorithm in ALGORITHMS[1:]:
        for mode in ("lstm", "gru", "rnn_tanh"):
            # The library's own limits for training, beyond which it refuses.
            largest = 256
            if algorithm == "persist_static_small_h" and mode != "rnn_tanh":
                largest = 128
            for size in (16, 32, 48, 64, 80, 96, 100, 112, 127, 128, 160, 192, 255, 256):
                if size <= largest:
                    cases += [
                        (algorithm, mode, size, "float32"),
                        (algorithm, mode, size, "float16"),
                    ]
    return cases


@pytest.mark.parametrize(("algorithm", "mode", "size", "dtype"), cases_by_size())
def test_persistent_algorithms_by_size(algorithm, mode, size, dtype):
    spec = RNNSpec(mode=mode, input_size=64, hidden_size=size, dtype=dtype)
    rng = np.random.default_rng(0)
    options = RNNOptions(algorithm=algorithm)
    problem = problem_of(spec, "dense", 4, 8, rng, training=True, options=options)
    case = Case(problem, states=True, seed=0)
    if known_wrong(problem, algorithm):
        with pytest.raises(UnsupportedError, match="outputs are wrong for hidden sizes"):
            conformance.check(case, cupy.asarray, "cudnn")
    else:
        conformance.check(case, cupy.asarray, "cudnn")


def test_the_stream_is_right_after_a_refused_backward():
    # cuDNN 9.19 leaves its handle on a stream of its own here.
    spec = RNNSpec(mode="rnn_tanh", input_size=64, hidden_size=300)
    options = {"algorithm": "persist_static_small_h"}
    x = cupy.zeros((4, 8, 64), "float32")
    w = dnnffi.RNNWeights(cupy.zeros(dnnffi.weight_layout(spec, "cudnn").size, "float32"), spec)
    y, _, ctx = dnnffi.rnn_tanh_forward(x, None, w, options=options)
    with pytest.raises(UnsupportedError, match=r"cudnnRNNBackwardData_v8 .*NOT_SUPPORTED"):
        ctx.backward(y)
    dnnffi.rnn_tanh(x, None, w)
    found = library.load()
    stream = library.ffi.new("stream_ptr *")
    found.lib.cudnnGetStream(found.local.handles[0].pointer, stream)
    assert stream[0] == cupy.cuda.get_current_stream().ptr


@pytest.mark.parametrize("algorithm", ALGORITHMS[1:])
def test_persistent_algorithms_refuse_unequal_lengths_at_the_call(algorithm, monkeypatch):
    monkeypatch.setattr(
        CudnnRNNExecutor, "_algorithm", lambda self: algorithm
    )  # past dnnffi's check
    spec = RNNSpec(mode="gru", input_size=128, hidden_size=128)
    problem = RNNProblem.dense(spec, steps=4, batch=2, lengths=[4, 2])
    executor = RNNExecutor(problem)
    empty = cupy.empty
    with pytest.raises(UnsupportedError, match=r"cudnnRNNForward .*NOT_SUPPORTED"):
        executor.forward(
            empty(problem.x_shape, "float32"),
            None,
            None,
            empty(executor.weight_size, "float32"),
            out=(empty(problem.y_shape, "float32"), None, None),
            workspace=empty(executor.workspace_bytes, "uint8"),
        )


@pytest.mark.parametrize("clip_nan", ["propagate", "clip"])
@pytest.mark.parametrize("layout", conformance.LAYOUTS)
@pytest.mark.parametrize("proj_size", [0, 3])
def test_clipping(layout, proj_size, clip_nan):
    spec = RNNSpec(
        mode="lstm",
        input_size=6,
        hidden_size=9,
        num_layers=2,
        bidirectional=True,
        proj_size=proj_size,
        dtype="float64",
    )
    options = RNNOptions(clip=BOUNDS, clip_nan=clip_nan)
    rng = np.random.default_rng(5)
    problem = problem_of(spec, layout, 7, 4, rng, training=True, options=options)
    conformance.check(Case(problem, states=True, seed=3), cupy.asarray, "cudnn")


def away_from_the_bounds(case):
    """Return whether all cells are so far from the bounds that rounding crosses none of them."""
    arrays, problem = conformance.arrays_of(case), case.problem
    cells = [arrays.c_0]
    for steps in range(1, problem.steps + 1):
        shorter = arrays._replace(x=arrays.x[:steps], dy=arrays.dy[:steps])
        part = case._replace(problem=problem._replace(steps=steps))
        cells.append(conformance.expected(part, shorter).c_n)
    distances = [abs(np.asarray(c, np.float64) - bound) for c in cells for bound in BOUNDS]
    return min(distance.min() for distance in distances) > 0.02


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_clipping_by_each_algorithm(dtype, algorithm):
    spec = RNNSpec(mode="lstm", input_size=6, hidden_size=5, dtype=dtype)
    options = RNNOptions(clip=BOUNDS, math="strict", algorithm=algorithm)
    rng = np.random.default_rng(0)
    problem = problem_of(spec, "dense", 3, 2, rng, training=True, options=options)
    cases = (Case(problem, states=True, seed=seed) for seed in range(500))
    case = next(case for case in cases if away_from_the_bounds(case))
    conformance.check(case, cupy.asarray, "cudnn")


@pytest.mark.parametrize("algorithm", ["standard", "persist_dynamic"])
@pytest.mark.parametrize("clip_nan", ["propagate", "clip"])
def test_nan_in_a_clipped_cell(clip_nan, algorithm):
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=4, dtype="float64")
    options = RNNOptions(clip=(-0.25, 0.125), clip_nan=clip_nan, algorithm=algorithm)
    rng = np.random.default_rng(0)
    problem = problem_of(spec, "dense", 3, 4, rng, training=True, options=options)
    case = Case(problem, states=True, seed=2)
    arrays = conformance.arrays_of(case)
    arrays.c_0[0, 1, 2] = np.nan
    arrays.x[1, 0, 0] = np.nan
    _, found = conformance.run(case, arrays, cupy.asarray, "cudnn")
    wanted = conformance.expected(case, arrays)
    for name in ("y", "h_n", "c_n"):
        one, other = getattr(found, name).get(), getattr(wanted, name)
        np.testing.assert_allclose(one, other, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("mode", conformance.MODES)
def test_the_longest_sequence(mode):
    spec = RNNSpec(mode=mode, input_size=2, hidden_size=3, dtype="float64")
    rng = np.random.default_rng(0)
    problem = problem_of(spec, "dense", 65535, 1, rng, training=True)
    conformance.check(Case(problem, states=True, seed=1), cupy.asarray, "cudnn")


@pytest.mark.parametrize("algorithm", ["standard", "own"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_rows_without_a_step(algorithm, batch_first):
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=24, num_layers=2, bidirectional=True)
    problem = RNNProblem.dense(
        spec,
        steps=6,
        batch=40,
        batch_first=batch_first,
        lengths=[0, 4, 0, 0, 6, 1, *[0] * 33, 2],
        training=True,
        options=RNNOptions(algorithm=algorithm),
    )
    for states in (False, True):
        conformance.check(Case(problem, states=states, seed=1), cupy.asarray, "cudnn")


def test_a_large_batch():
    spec = RNNSpec(mode="gru", input_size=2, hidden_size=3, dtype="float64")
    rng = np.random.default_rng(0)
    problem = problem_of(spec, "lengths", 3, 70000, rng, training=True)
    conformance.check(Case(problem, states=True, seed=1), cupy.asarray, "cudnn")
