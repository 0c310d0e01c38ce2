"""Wrong arguments of the convolutions are refused before any call of the library, counted.

The cases are those of `test_convolution_bad_input`, on arrays of the stand-in.
"""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import test_convolution_bad_input as bad

import dnnffi
from dnnffi.spec.conv_problem import ARGUMENTS

TABLES = (
    (bad.ALL, bad.EACH),
    (bad.FORWARDS, bad.FUSED),
    (("conv_transpose", bad.DATA[1], bad.WEIGHTS[1]), bad.OUTPUT_PADDING),
    ((*bad.DATA, *bad.WEIGHTS), bad.BACKWARD),
    *(
        (names, {what: (make, ValueError, message)})
        for what, (names, make, message) in bad.SHAPES.items()
    ),
)
CASES = [
    pytest.param(name, *case, id=f"{name}-{what}")
    for names, table in TABLES
    for name in names
    for what, case in table.items()
]


@pytest.mark.parametrize(("name", "make", "error", "message"), CASES)
def test_refused_before_any_call(shared_simulator, name, make, error, message):
    arguments = make(bad.right(name))

    def on_host(value):
        return shared_simulator.asarray(value) if isinstance(value, np.ndarray) else value

    arrays = [on_host(value) for value in arguments.arrays]
    keywords = {"backend": "cudnn"} | {
        name: on_host(value) if name == "residual" else value
        for name, value in arguments.keywords.items()
    }
    before = shared_simulator.calls("*")
    with pytest.raises(error, match=message) as caught:
        getattr(dnnffi, name)(*arrays, **keywords)
    assert type(caught.value) is error
    assert shared_simulator.calls("*") == before


def test_an_array_that_is_not_on_the_device(shared_simulator):
    x, w = bad.zeros(*bad.X), bad.zeros(*bad.W)
    for arrays, name in (
        ((x, shared_simulator.asarray(w)), "x"),
        ((shared_simulator.asarray(x), w), "w"),
    ):
        with pytest.raises(TypeError, match=rf"^{name} must be a CuPy array .*; got ndarray$"):
            dnnffi.conv(*arrays, groups=2, backend="cudnn")


@pytest.mark.parametrize("backend", ["cudnn", "reference"])
@pytest.mark.parametrize(
    ("operation", "number", "name"),
    [
        *(("forward", number, name) for number, name in enumerate(ARGUMENTS["forward"])),
        *(("backward_data", number, name) for number, name in enumerate(("dy", "w"))),
        *(("backward_weights", number, name) for number, name in enumerate(("dy", "x"))),
    ],
)
def test_the_result_of_a_plan_shares_no_memory(shared_simulator, operation, number, name, backend):
    spec = dnnffi.ConvSpec(in_channels=4, out_channels=4, kernel=(3, 3), padding="same")
    fused = {"bias": True, "residual": True} if operation == "forward" else {}
    plan = dnnffi.ConvPlan(spec, bad.X, operation=operation, backend=backend, **fused)
    problem = plan.problem
    arrays = [shared_simulator.memory.zeros(shape, "f4") for shape in problem.argument_shapes]
    # One allocation for both: the result starts in the middle of the argument.
    size, start = arrays[number].size, arrays[number].size // 2 // 4 * 4
    both = shared_simulator.memory.zeros((size + prod(problem.result_shape),), "f4")
    arrays[number] = both[:size].reshape(arrays[number].shape)
    out = both[start : start + prod(problem.result_shape)].reshape(problem.result_shape)
    if backend == "reference":
        arrays, out = [np.asarray(array) for array in arrays], np.asarray(out)
    message = rf"^({name} and out|out and {name}) must not share memory: one is written$"
    before = shared_simulator.calls("cudnnBackendExecute")
    with pytest.raises(ValueError, match=message):
        plan.run(*arrays, out=out)
    assert shared_simulator.calls("cudnnBackendExecute") == before
    plan.close()
