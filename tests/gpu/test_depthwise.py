"""The kernels for depthwise convolutions, on a GPU."""

from __future__ import annotations

import conformance_conv
import numpy as np
import pytest
from conformance import deviation

from dnnffi import testing
from dnnffi.backends.conv_interface import ConvAddresses, addresses_of
from dnnffi.backends.own.depthwise import pixels
from dnnffi.backends.own.depthwise.gather import DepthwiseGather, tiles
from dnnffi.backends.own.depthwise.weights import DepthwiseWeights
from dnnffi.device.cupy import cupy_memory
from dnnffi.device.interface import Launch
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, ConvProblem
from dnnffi.spec.layouts import CHANNELS_LAST, LAYOUTS

cupy = pytest.importorskip("cupy")

FOLLOWS = {"bias": True, "residual": True, "alpha": -0.5, "activation": "relu"}
GUARD = 64  # elements after a result


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("limit", [None, 0])
@pytest.mark.parametrize(
    ("channels", "many", "kernel", "geometry", "shape"),
    [
        (144, 1, (3, 3), {"stride": 2, "padding": 1}, (4, 56, 56)),
        (1, 1, (3, 3), {"padding": 1}, (7, 61, 43)),
        (5, 3, (5, 2), {"stride": (1, 3), "padding": (0, 2), "dilation": (2, 1)}, (3, 20, 31)),
        (33, 1, (7,), {"stride": 2, "padding": 3}, (5, 200)),
        (40, 2, (5, 5), {"padding": 2}, (1, 3, 2)),
    ],
)
def test_the_gradient_by_the_weights(dtype, limit, channels, many, kernel, geometry, shape):
    spec = ConvSpec(
        in_channels=channels,
        out_channels=channels * many,
        kernel=kernel,
        groups=channels,
        dtype=dtype,
        **geometry,
    )
    batch, *sizes = shape
    options = ConvOptions(workspace_limit=limit)
    problem = ConvProblem.of(BACKWARD_WEIGHTS, spec, (batch, channels, *sizes), options=options)
    arrays = testing.conv_inputs(problem, 0)
    memory = cupy_memory()
    run = DepthwiseWeights(problem, 0, memory)
    assert limit is None or run.workspace_bytes == 0
    dy, x = cupy.asarray(arrays.dy), cupy.asarray(arrays.x)
    dw = cupy.full(spec.weight_shape, cupy.nan, dtype)
    workspace = cupy.full(run.workspace_bytes + 1, 255, "uint8")
    at = ConvAddresses(dy.data.ptr, x.data.ptr, 0, 0, dw.data.ptr, workspace.data.ptr)
    run.run(Launch(memory.current_stream(), 0), at)
    expected = conformance_conv.expected(problem, arrays)
    assert deviation(dw.get(), expected) < (1e-5 if dtype == "float32" else 1e-12)
    assert int(workspace[-1]) == 255


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", [FORWARD, BACKWARD_DATA])
@pytest.mark.parametrize(
    ("channels", "kernel", "geometry", "shape"),
    [
        (144, (3, 3), {"stride": 2, "padding": 1}, (4, 56, 56)),
        (240, (5, 5), {"stride": 2, "padding": 2}, (3, 28, 28)),
        (96, (7, 7), {"padding": 3}, (2, 56, 56)),
        (960, (3, 3), {"padding": 1}, (5, 7, 7)),
        (705, (3, 3), {"padding": 1}, (3, 7, 7)),
        (32, (3, 3), {"padding": 1}, (2, 112, 112)),
        (1, (3, 3), {"padding": 1}, (7, 61, 43)),
        (5, (5, 2), {"stride": (1, 3), "padding": (0, 1), "dilation": (2, 1)}, (3, 20, 31)),
        (33, (7,), {"stride": 2, "padding": 3}, (5, 200)),
        (40, (5, 5), {"padding": 2, "transposed": True}, (1, 3, 2)),
    ],
)
def test_forward_and_backward_data(dtype, layout, operation, channels, kernel, geometry, shape):
    spec = ConvSpec(
        in_channels=channels,
        out_channels=channels,
        kernel=kernel,
        groups=channels,
        dtype=dtype,
        **geometry,
    )
    batch, *sizes = shape
    for follows in ({}, FOLLOWS) if operation == FORWARD else ({},):
        problem = ConvProblem.of(
            operation, spec, (batch, channels, *sizes), layout=layout, **follows
        )
        arrays = testing.conv_inputs(problem, 0)
        expected = conformance_conv.expected(problem, arrays)
        given = [
            None if one is None else _put(one, problem)
            for one in conformance_conv.arguments(problem, arrays)
        ]
        for tile in tiles(problem):
            found = [_run(problem, tile, given) for _ in range(2)]
            assert deviation(found[0], expected) <= conformance_conv.tolerance(problem)
            np.testing.assert_array_equal(found[0], found[1])  # the same bits in every run


def test_several_tiles_of_a_thread(monkeypatch):
    monkeypatch.setattr(pixels, "_BLOCKS", 2)
    spec = ConvSpec(in_channels=64, out_channels=64, kernel=(3, 3), padding=1, groups=64)
    problem = ConvProblem.of(FORWARD, spec, (4, 64, 31, 20), layout=CHANNELS_LAST)
    arrays = testing.conv_inputs(problem, 0)
    given = [_put(arrays.x, problem), _put(arrays.w, problem)]
    for tile in tiles(problem):
        found = _run(problem, tile, given)
        assert deviation(found, conformance_conv.expected(problem, arrays)) < 1e-5


def _put(array, problem):
    """Copy an array to the device, with its elements in the order of the layout."""
    if problem.channels_last and array.ndim > 1:
        array = np.moveaxis(array, 1, -1)
    return cupy.asarray(np.ascontiguousarray(array))


def _run(problem, tile, given):
    """Return the result on the host; check that all of it is written, and nothing after it."""
    memory = cupy_memory()
    n, channels, *sizes = problem.result_shape
    shape = (n, *sizes, channels) if problem.channels_last else problem.result_shape
    out = cupy.empty((int(np.prod(shape)) + GUARD,), given[0].dtype)
    out.view("uint8").fill(255)
    at = ConvAddresses(*addresses_of(given), out.data.ptr)
    DepthwiseGather(problem, memory, tile).run(Launch(memory.current_stream(), 0), at)
    assert (out[-GUARD:].view("uint8").get() == 255).all()
    found = out[:-GUARD].get().reshape(shape)
    return np.moveaxis(found, -1, 1) if problem.channels_last else found
