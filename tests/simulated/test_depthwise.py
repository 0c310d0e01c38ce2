"""The kernel for the weights of depthwise convolutions, its CUDA source run as C."""

from __future__ import annotations

import json

import conformance_conv
import numpy as np
import pytest
from conformance import deviation

from dnnffi import testing
from dnnffi.backends.conv_interface import OWN, ConvAddresses, EngineChoice
from dnnffi.backends.cudnn.conv_executor import EngineExecutors
from dnnffi.backends.own.depthwise.weights import DepthwiseWeights, has_kernel
from dnnffi.backends.vendor.handle import current_launch
from dnnffi.convolution import tuning as conv_tuning
from dnnffi.convolution.backend import conv_backends
from dnnffi.device.interface import Launch
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, ConvProblem
from dnnffi.spec.layouts import CHANNELS_LAST


def spec_of(channels=6, many=1, kernel=(3, 3), dtype="float32", **geometry):
    return ConvSpec(
        in_channels=channels,
        out_channels=channels * many,
        kernel=kernel,
        groups=channels,
        dtype=dtype,
        **geometry,
    )


def problem_of(spec, sizes=(9, 7), batch=3, operation=BACKWARD_WEIGHTS, **rest):
    return ConvProblem.of(operation, spec, (batch, spec.in_channels, *sizes), **rest)


def run(simulator, problem):
    """(found, expected, the kernel)."""
    arrays = testing.conv_inputs(problem, 0)
    kernel = DepthwiseWeights(problem, 0, simulator.memory)
    dy, x = simulator.asarray(arrays.dy), simulator.asarray(arrays.x)
    dw = simulator.memory.empty(problem.spec.weight_shape, dy.dtype)
    workspace = simulator.memory.empty((max(kernel.workspace_bytes, 1),), np.uint8)
    at = ConvAddresses(dy.data.ptr, x.data.ptr, 0, 0, dw.data.ptr, workspace.data.ptr)
    kernel.run(Launch(simulator.memory.current_stream(), 0), at)
    return dw, conformance_conv.expected(problem, arrays), kernel


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ({"padding": 1}, (9, 7)),
        ({"padding": 1, "stride": 2}, (8, 11)),
        ({"padding": (0, 3), "stride": (2, 1), "dilation": (1, 2)}, (9, 7)),
        ({"many": 3, "padding": 1}, (5, 6)),
        ({"kernel": (1, 5), "padding": (0, 2)}, (4, 9)),
        ({"kernel": (4,), "stride": 3, "padding": 2}, (17,)),
        ({"channels": 1, "padding": 1}, (40, 30)),
        ({"padding": ((0, 1), (2, 1)), "stride": 2}, (8, 10)),
        ({"kernel": (4,), "padding": ((0, 3),)}, (5,)),
    ],
)
def test_the_gradient(simulator, dtype, spec, sizes):
    found, expected, _ = run(simulator, problem_of(spec_of(dtype=dtype, **spec), sizes))
    assert deviation(found, expected) < (1e-5 if dtype == "float32" else 1e-12)


def test_positions_are_divided_among_blocks_where_there_are_few_channels(simulator):
    problem = problem_of(spec_of(channels=2, padding=1), (40, 30), batch=9)
    found, expected, kernel = run(simulator, problem)
    assert kernel.workspace_bytes > 0
    assert kernel.workspace_bytes % (2 * 9 * 4) == 0
    assert deviation(found, expected) < 1e-5


@pytest.mark.parametrize("limit", [0, 71])
def test_no_workspace_beyond_the_limit(simulator, limit):
    options = ConvOptions(workspace_limit=limit)
    problem = problem_of(spec_of(channels=2, padding=1), (40, 30), batch=9, options=options)
    found, expected, kernel = run(simulator, problem)
    assert kernel.workspace_bytes == 0
    assert deviation(found, expected) < 1e-5


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(spec_of(), operation=FORWARD),
        problem_of(spec_of(), operation=BACKWARD_DATA),
        problem_of(spec_of(), layout=CHANNELS_LAST),
        problem_of(spec_of(dtype="float16")),
        problem_of(spec_of(dtype="bfloat16")),
        problem_of(spec_of(transposed=True)),
        problem_of(spec_of(kernel=(2, 2, 2)), (5, 5, 5)),
        problem_of(ConvSpec(in_channels=4, out_channels=4, kernel=(3, 3), groups=2)),
        problem_of(spec_of(kernel=(10, 10)), (12, 12)),
        problem_of(spec_of(kernel=(7, 7), dtype="float64"), (12, 12)),
        problem_of(spec_of(padding=1), (2**16, 2**15)),
        problem_of(spec_of(padding=1), (2**15, 2**15), batch=2),
    ],
    ids=str,
)
def test_what_it_is_not_for(problem):
    assert not has_kernel(problem)


def test_it_is_a_candidate_and_used_where_it_is_fastest(simulator, tmp_path, monkeypatch):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    times = iter([1.0, 4.0, 3.0, 2.0, 3.0])
    monkeypatch.setattr(conv_tuning, "_time", lambda call, memory, best: next(times))
    problem = problem_of(spec_of(padding=1), options=ConvOptions(tune="now"))
    arrays = testing.conv_inputs(problem, 0)
    backend = conv_backends.of("cudnn")
    for source in ("measured", "disk"):
        plan = backend.plan(problem, 0)
        assert plan.finder.tuning.source == source
        assert plan.finder.tuning.choice == EngineChoice(True, OWN, ())
        assert "a kernel of dnnffi's; workspace" in plan.report()
        found = plan.run(simulator.asarray(arrays.dy), simulator.asarray(arrays.x))
        assert deviation(found, conformance_conv.expected(problem, arrays)) < 1e-5
        plan.close()
        backend.clear()


def test_on_disk_for_a_problem_that_it_is_not_for(simulator):
    choice = EngineChoice.read(json.loads(json.dumps(EngineChoice(True, OWN, ()))))
    problem = problem_of(spec_of(), operation=FORWARD)
    with pytest.raises(ValueError, match="dnnffi's kernel is not for forward"):
        EngineExecutors(simulator.library, problem, current_launch(simulator.library)).made_again(
            choice
        )
    simulator.control.standin_reset()
