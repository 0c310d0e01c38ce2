"""Graphs of convolution on the host stand-in, compared with NumPy."""

from __future__ import annotations

from types import SimpleNamespace

import convolutions as conv
import numpy as np
import pytest
from convolutions import CASES, TOLERANCES, Problem

from dnnffi.backends.cudnn.graph import build
from dnnffi.backends.cudnn.handle import handle_for

both_layouts = pytest.mark.parametrize("channels_last", [False, True])
each_dtype = pytest.mark.parametrize("dtype", TOLERANCES)
each_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


@pytest.fixture
def memory(shared_host):
    return SimpleNamespace(asarray=shared_host.asarray, empty=shared_host.memory.empty)


@pytest.fixture
def handle(shared_host):
    return handle_for(shared_host.library, 0)


@each_case
@both_layouts
@each_dtype
def test_convolutions(handle, memory, case, channels_last, dtype):
    problem = Problem(case, dtype, channels_last, memory)
    geometry = case.geometry(dtype, channels_last)
    x, w, y = (problem.values[name] for name in ("x", "w", "y"))
    for builder, written, expected in (
        (build.backward_bias, "bias", y.sum(axis=(0, *range(2, y.ndim)))),
        (build.backward_weights, "w", conv.backward_weights(y, x, case.w, *case.steps)),
        (build.backward_data, "x", conv.backward_data(y, w, case.x, *case.steps)),
    ):
        kept = problem.arrays[written].copy()
        problem.check(handle, builder(geometry, handle), written, expected)
        problem.arrays[written][...] = kept
    problem.check(
        handle, build.forward(geometry, handle), "y", conv.forward(x, w, case.y, *case.steps)
    )


@both_layouts
@each_dtype
@pytest.mark.parametrize("name", ["2d", "1d", "3d"])
@pytest.mark.parametrize("parts", ["b", "r", "br", "z", "zb", "zbr"])
def test_fused(handle, memory, name, channels_last, dtype, parts):
    case = CASES[name]
    problem = Problem(case, dtype, channels_last, memory)
    geometry = case.geometry(dtype, channels_last)
    values = problem.values
    expected = conv.forward(values["x"], values["w"], case.y, *case.steps)
    if "z" in parts:
        expected += 0.75 * values["residual"]
    if "b" in parts:
        expected += values["bias"].reshape(1, -1, *[1] * len(case.stride))
    if "r" in parts:
        expected = np.maximum(expected, 0)
    graph = build.forward(
        geometry,
        handle,
        bias="b" in parts,
        residual=geometry.y if "z" in parts else None,
        alpha=0.75,
        relu="r" in parts,
    )
    names = [("residual", "z"), ("bias", "b")]
    assert graph.operands == ("x", "w", "y", *(name for name, part in names if part in parts))
    problem.check(handle, graph, "y", expected)


@both_layouts
def test_a_transposed_convolution_with_everything_fused(handle, memory, channels_last):
    case = CASES["2d strided"]
    problem = Problem(case, "float64", channels_last, memory)
    values = problem.values
    residual = np.random.default_rng(1).normal(size=case.x)
    bias = np.random.default_rng(2).normal(size=case.x[1])
    problem.arrays["residual"] = conv.placed(memory, residual, "float64", channels_last)
    problem.arrays["bias"] = conv.placed(memory, bias, "float64")
    expected = conv.backward_data(values["y"], values["w"], case.x, *case.steps)
    expected = np.maximum(expected - 0.5 * residual + bias.reshape(1, -1, 1, 1), 0)
    geometry = case.geometry("float64", channels_last)
    graph = build.backward_data(
        geometry, handle, bias=True, residual=geometry.x, alpha=-0.5, relu=True
    )
    problem.check(handle, graph, "x", expected)


def test_operands_with_gaps(handle, memory):
    case = CASES["2d"]
    problem = Problem(case, "float32", False, memory)
    roomy = memory.empty((2, 8, 9, 16), np.float32)
    roomy[...] = np.nan
    x = roomy[:, :, :, 4:11]
    x[...] = problem.arrays["x"]
    problem.arrays["x"] = x
    layout = build.Layout(case.x, tuple(stride // 4 for stride in x.strides))
    geometry = case.geometry("float32")._replace(x=layout)
    expected = conv.forward(problem.values["x"], problem.values["w"], case.y, *case.steps)
    problem.check(handle, build.forward(geometry, handle), "y", expected)
