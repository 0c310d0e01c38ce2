"""Graphs of convolution on the simulator of cuDNN, compared with NumPy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from convolutions import CASES, TOLERANCES, Problem

from dnnffi.backends.cudnn.graph.build import graph_of
from dnnffi.backends.cudnn.graph.geometry import Layout
from dnnffi.backends.vendor.handle import current_launch

both_layouts = pytest.mark.parametrize("channels_last", [False, True])
each_dtype = pytest.mark.parametrize("dtype", TOLERANCES)
each_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


@pytest.fixture
def memory(shared_simulator):
    return SimpleNamespace(asarray=shared_simulator.asarray, empty=shared_simulator.memory.empty)


@pytest.fixture
def handle(shared_simulator):
    return current_launch(shared_simulator.library).owner


@each_case
@both_layouts
@each_dtype
def test_convolutions(handle, memory, case, channels_last, dtype):
    problem = Problem(case, dtype, channels_last, memory)
    geometry = case.geometry(dtype, channels_last)
    problem.check(handle, graph_of("forward", geometry, handle), "y", problem.forward())
    for operation, written, expected in problem.gradients():
        problem.check(handle, graph_of(operation, geometry, handle), written, expected)


@both_layouts
@each_dtype
@pytest.mark.parametrize("name", ["2d", "1d", "3d"])
@pytest.mark.parametrize("parts", ["b", "r", "br", "z", "zb", "zbr"])
def test_fused(handle, memory, name, channels_last, dtype, parts):
    problem = Problem(CASES[name], dtype, channels_last, memory)
    expected, geometry, options = problem.fused(parts)
    graph = graph_of("forward", geometry, handle, **options)
    names = [("residual", "z"), ("bias", "b")]
    assert graph.operands == ("x", "w", "y", *(name for name, part in names if part in parts))
    problem.check(handle, graph, "y", expected)


@both_layouts
def test_a_transposed_convolution_with_everything_fused(handle, memory, channels_last):
    case = CASES["2d strided"]
    problem = Problem(case, "float64", channels_last, memory)
    (_, _, expected), *_ = problem.gradients()
    residual = np.random.default_rng(1).normal(size=case.x)
    bias = np.random.default_rng(2).normal(size=case.x[1])
    problem.arrays |= {"residual": problem.place(residual), "bias": problem.place(bias)}
    geometry = case.geometry("float64", channels_last)
    graph = graph_of(
        "backward_data", geometry, handle, bias=True, residual=True, alpha=-0.5, relu=True
    )
    expected = np.maximum(expected - 0.5 * residual + bias.reshape(1, -1, 1, 1), 0)
    problem.check(handle, graph, "x", expected)


def test_operands_with_gaps(handle, memory):
    case = CASES["2d"]
    problem = Problem(case, "float32", False, memory)
    roomy = memory.empty((2, 8, 9, 16), np.float32)
    roomy[...] = np.nan
    problem.arrays["x"] = x = roomy[:, :, :, 4:11]
    x[...] = problem.values["x"]
    layout = Layout(case.x, tuple(stride // 4 for stride in x.strides))
    geometry = case.geometry("float32")._replace(x=layout)
    problem.check(handle, graph_of("forward", geometry, handle), "y", problem.forward())
