"""The executor of convolutions on MIOpen, called with addresses.

With addresses it is tested in channels-last layouts and bfloat16, which arrays without CuPy cannot
have. Also tested is which handle can run the result of a search.
"""

from __future__ import annotations

import numpy as np
import pytest
from conformance import deviation
from conformance_conv import arguments, cells, expected, refusal
from gfx1100.convolutions import executor_of, problem_of, spec_of

from dnnffi import testing
from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors import TensorDescriptor
from dnnffi.backends.vendor.handle import Handle, current_launch
from dnnffi.errors import UnsupportedError
from dnnffi.spec.conv_padding import PaddedImage
from dnnffi.spec.conv_problem import FORWARD, OPERATIONS
from dnnffi.spec.layouts import CHANNELS_LAST, packed_strides
from simulators.gfx1100.hip_arrays import DlpackArray

SIZES = {1: (9,), 2: (7, 6), 3: (4, 3, 5)}
ALLOWED = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2}


def truncated(array):
    """Round float32 towards zero to bfloat16, as uint16."""
    return (np.ascontiguousarray(array).view(np.uint32) >> 16).astype(np.uint16)


def widened(array):
    return (array.astype(np.uint32) << 16).view(np.float32)


def run(miopen, problem, solution_index=0):
    """Return (result, expected result, executor) for random arrays in the problem's layout."""
    bfloat16 = problem.spec.dtype == "bfloat16"
    single = problem._replace(spec=spec_of(**fields_of(problem.spec, "float32")))
    inputs = testing.conv_inputs(single if bfloat16 else problem, 0)
    if bfloat16:
        inputs = inputs._make(None if a is None else widened(truncated(a)) for a in inputs)
    last = problem.layout == CHANNELS_LAST

    def put(array):
        if array is None:
            return None
        array = np.moveaxis(array, 1, -1) if last and array.ndim > 1 else array
        return DlpackArray.of(truncated(array) if bfloat16 else array)

    given = [put(array) for array in arguments(problem, inputs)]
    n, c, *sizes = problem.result_shape
    shape = (n, *sizes, c) if last else (n, c, *sizes)
    result = DlpackArray(shape, "uint16" if bfloat16 else problem.spec.dtype)
    executor = executor_of(miopen, problem)
    addresses = [0 if a is None else a.address for a in given]
    solution = executor.solutions[solution_index]
    workspace = DlpackArray((solution.workspace_bytes,), "uint8")
    at = ConvAddresses(*(*addresses, 0, 0)[:4], result.address, workspace.address)
    executor.run(current_launch(miopen.library), at, solution)
    found = widened(result.get()) if bfloat16 else result.get()
    executor.close()
    found = np.moveaxis(found, -1, 1) if last else found
    return found, expected(single, inputs), executor


def fields_of(spec, dtype):
    names = ("in_channels", "out_channels", "kernel", "stride", "padding", "dilation", "groups",
             "transposed", "output_padding")  # fmt: skip
    return {name: getattr(spec, name) for name in names} | {"dtype": dtype}


def spec_with(rank, **fields):
    fields = {"kernel": (3,) * rank} | fields
    return spec_of(**fields)


GROUPINGS = {
    "whole": {},
    "groups": {"in_channels": 4, "out_channels": 6, "groups": 2, "stride": 2},
    "depthwise": {"in_channels": 4, "out_channels": 4, "groups": 4},
    "one input channel": {"in_channels": 1},
    "one output channel": {"out_channels": 1, "kernel": 1},
    "transposed": {"transposed": True, "stride": 2, "output_padding": 1},
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize(
    ("dtype", "rank"), [("float32", 1), ("float32", 2), ("float32", 3), ("float16", 2)]
)
def test_channels_last(miopen, dtype, rank, grouping, operation):
    fields = dict(GROUPINGS[grouping])
    if fields.get("kernel") == 1:
        fields |= {"kernel": (1,) * rank, "padding": 0}
    spec = spec_with(rank, dtype=dtype, **fields)
    more = {}
    if operation == FORWARD:
        more = {"bias": True, "residual": rank > 1, "alpha": 0.5, "activation": "relu"}
    problem = problem_of(operation, spec, SIZES[rank], CHANNELS_LAST, **more)
    found, wanted, _ = run(miopen, problem)
    assert deviation(found, wanted) < ALLOWED[dtype]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_bfloat16(miopen, layout, operation):
    spec = spec_of(dtype="bfloat16")
    found, wanted, executor = run(miopen, problem_of(operation, spec, layout=layout))
    assert deviation(found, wanted) < ALLOWED["bfloat16"]
    if layout == "channels_first":
        last = len(executor.solutions) - 1
        found, wanted, _ = run(miopen, problem_of(operation, spec), last)
        assert deviation(found, wanted) < ALLOWED["bfloat16"]


def test_the_library_adds_a_bias_to_channels_last_wrongly(miopen):
    """The reason why dnnffi adds a bias to y as a matrix; it fails once the library is fixed."""
    y, bias = np.zeros((2, 5, 6, 4), "f4"), np.arange(4, dtype="f4")
    handle, one, zero = (
        current_launch(miopen.library).owner,
        ffi.new("float *", 1.0),
        ffi.new("float *"),
    )

    def added(shape, strides, bias_shape):
        held, given = DlpackArray.of(y), DlpackArray.of(bias)
        with (
            TensorDescriptor("float32", shape, strides, library=miopen.library) as of_y,
            TensorDescriptor("float32", bias_shape, library=miopen.library) as of_bias,
        ):
            status = miopen.library.lib.miopenOpTensor(
                handle.pointer, 0, one, of_y.pointer, held.address, one, of_bias.pointer,
                given.address, zero, of_y.pointer, held.address,
            )  # fmt: skip
        assert status == 0
        return held.get()

    as_image = added((2, 4, 5, 6), packed_strides((2, 4, 5, 6), True), (1, 4, 1, 1))
    assert not np.array_equal(as_image, y + bias)
    np.testing.assert_array_equal(added((60, 4, 1, 1), None, (1, 4, 1, 1)), y + bias)


@pytest.mark.parametrize("added", [{"bias": True}, {"residual": True}, {"activation": "relu"}])
def test_bfloat16_has_the_convolution_alone(miopen, added):
    current_launch(miopen.library)
    before = sum(miopen.watched.calls.values())
    message = "a convolution in bfloat16 has no bias, residual or activation; cudnn and reference"
    with pytest.raises(UnsupportedError, match=message):
        executor_of(miopen, problem_of(spec=spec_of(dtype="bfloat16"), **added))
    assert sum(miopen.watched.calls.values()) == before


@pytest.mark.parametrize(
    ("problem", "cell"),
    [
        one
        for one in cells("miopen")
        if not refusal(one.values[1]) and PaddedImage.of(one.values[0]) is None
    ],
)
def test_what_the_documentation_says(miopen, problem, cell):
    """Refusals are in ``tests/backends/miopen/test_conv_limits.py``.

    An executor convolves a padded image that its plan makes: asymmetric padding is tested by
    functions.
    """
    found, wanted, _ = run(miopen, problem)
    assert deviation(found, wanted) < ALLOWED[problem.spec.dtype]


@pytest.mark.parametrize(("problem", "cell"), cells("miopen", "FUSION"))
def test_a_fusion_plan_is_asked_for_as_the_documentation_says(miopen, problem, cell):
    executor_of(miopen, problem).close()
    asked = miopen.watched.calls["miopenCreateFusionPlan"]
    assert asked == (cell == "if the library has a kernel")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_solution_gives_the_result(miopen, operation):
    problem = problem_of(operation)
    _, _, executor = run(miopen, problem)
    for index in range(len(executor.solutions)):
        found, wanted, _ = run(miopen, problem, index)
        assert deviation(found, wanted) < 1e-5


def test_a_closed_executor_leaves_nothing(miopen):
    current_launch(miopen.library)
    before = miopen.watched.live()
    problem = problem_of(bias=True, residual=True, activation="relu")
    with pytest.raises(AttributeError, match="nothing"):
        executor_of(miopen, problem).nothing  # noqa: B018
    executor = executor_of(miopen, problem)
    assert miopen.watched.live() != before
    executor.close()
    executor.close()
    assert miopen.watched.live() == before


def test_only_the_handle_that_has_searched_can_run_an_algorithm(miopen):
    """The reason why dnnffi runs all convolutions in immediate mode."""
    problem = problem_of(sizes=(5, 8))
    inputs = testing.conv_inputs(problem, 0)
    x, w = DlpackArray.of(inputs.x), DlpackArray.of(inputs.w)
    y = DlpackArray(problem.y_shape, "float32")
    executor = executor_of(miopen, problem)
    kept = []

    def allocate(size):
        kept.append(DlpackArray((size,), "uint8"))
        return kept[-1].address, kept[-1]

    at = ConvAddresses(x.address, w.address, 0, 0, y.address)
    found = executor.search(current_launch(miopen.library), at, allocate)
    one, zero = ffi.new("float *", 1.0), ffi.new("float *", 0.0)
    tensors, convolution = executor._tensors, executor._convolution.pointer
    algorithm = {"gemm": 0, "direct": 1}[found.algorithm]

    def status_with(handle):
        return miopen.library.lib.miopenConvolutionForward(
            handle.pointer, one, tensors["x"].pointer, x.address, tensors["w"].pointer, w.address,
            convolution, algorithm, zero, tensors["y"].pointer, y.address,
            kept[0].address, kept[0].nbytes,
        )  # fmt: skip

    assert status_with(current_launch(miopen.library).owner) == 0
    with Handle(miopen.library, 0) as other:
        assert status_with(other) == 7
    executor.close()
