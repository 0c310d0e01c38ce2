"""The kernel for the weights of depthwise convolutions, on a GPU."""

from __future__ import annotations

import conformance_conv
import pytest
from conformance import deviation

from dnnffi import testing
from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.own.depthwise import DepthwiseWeights
from dnnffi.device.cupy import cupy_memory
from dnnffi.device.interface import Launch
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import BACKWARD_WEIGHTS, ConvProblem

cupy = pytest.importorskip("cupy")


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
def test_the_gradient(dtype, limit, channels, many, kernel, geometry, shape):
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
