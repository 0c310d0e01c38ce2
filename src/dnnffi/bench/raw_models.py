"""cuDNN itself: its calls in a CUDA graph, and nothing of dnnffi around the launch.

What this reaches on a machine, the library can reach there; where an aim is beyond it, the library
is what holds it.
"""

from __future__ import annotations

from typing import Any

import dnnffi
from dnnffi.backends.vendor.context import Context
from dnnffi.bench.limits import Limits
from dnnffi.bench.model import Creator, ModelDef
from dnnffi.bench.shapes import Data, Shape
from dnnffi.device.interface import Array
from dnnffi.execution.measure import FAILURES, Results, disagreement, ends, median_time
from dnnffi.execution.tolerance import tolerance
from dnnffi.rnn.candidates import Executor
from dnnffi.rnn.engines import engine_named
from dnnffi.rnn.functions import Gradients
from dnnffi.spec.problem import RNNProblem


class _Inputs:
    """Inputs, weights and the gradient of y on the device."""

    def __init__(self, problem: RNNProblem, data: Data, memory: Any) -> None:
        spec = problem.spec
        self.dtype = memory.dtype(spec.dtype)

        def upload(values: Array) -> Array:
            array = memory.empty(values.shape, self.dtype)
            array.set(values)
            return array

        self.x, self.dy, self.h_0 = upload(data.x), upload(data.dy), upload(data.h_0)
        self.c_0 = None if data.c_0 is None else upload(data.c_0)
        flat = memory.empty((dnnffi.weight_layout(spec, "cudnn").size,), self.dtype)
        arrays = [upload(array) for array in data.weights]
        self.weights = dnnffi.RNNWeights.pack(arrays, spec, backend="cudnn", out=flat)


class _Captured:
    """The calls of one algorithm on results of its own, as a graph; it keeps what that needs."""

    def __init__(self, executor: Executor, inputs: _Inputs, memory: Any) -> None:
        problem = executor.problem
        cell = problem.spec.has_cell
        byte = memory.dtype("uint8")

        def new(shape: tuple[int, ...]) -> Array:
            return memory.empty(shape, inputs.dtype)

        x, h_0, c_0, weights = inputs.x, inputs.h_0, inputs.c_0, inputs.weights.buffer
        y, h_n = new(problem.y_shape), new(problem.h_shape)
        c_n = new(problem.c_shape) if cell else None
        workspace = memory.empty((executor.least_workspace_bytes,), byte)
        forward = executor.check_forward(x, y, h_0, h_n, c_0, c_n, weights, workspace)
        self.executor = executor
        self.outputs = (y, (h_n, c_n) if cell else h_n)
        self.gradients: Any = None
        self._results = [y, h_n, c_n]
        self._kept: list[Any] = [inputs, workspace]
        self._current_stream = memory.current_stream
        if problem.training:
            dx, dh_0 = new(problem.x_shape), new(problem.h_shape)
            dc_0 = new(problem.c_shape) if cell else None
            dweights = new((executor.weight_size,))
            in_layout = dnnffi.RNNWeights(dweights, problem.spec)
            self.gradients = Gradients(dx, (dh_0, dc_0) if cell else dh_0, in_layout)
            self._results += [dx, dh_0, dc_0, dweights]
            context = Context(executor, memory.empty((executor.reserve_bytes,), byte))
            self._kept.append(context)
            backward_data = executor.check_backward_data(
                *(y, inputs.dy, h_0, c_0, None, None, weights, dx, dh_0, dc_0, workspace)
            )
            backward_weights = executor.check_backward_weights(x, h_0, y, dweights, workspace)

        def calls() -> None:
            if not problem.training:
                executor.forward_at(forward)
                return
            executor.forward_at(forward, context)
            executor.backward_data_at(backward_data, context)
            executor.backward_weights_at(backward_weights, context)

        memory.elapsed(calls)  # the first run loads kernels, and what fails late fails here
        self._graph = memory.capture(calls)
        self._graph.executor = executor  # whose kernels it may need

    def launch(self) -> None:
        """Enqueue the calls on the current stream."""
        self._graph.launch(self._current_stream())

    def results(self) -> Results:
        """What was computed, on the host; of a long array its two ends."""
        return [part for array in self._results if array is not None for part in ends(array)]


def _fastest(problem: RNNProblem, data: Data) -> tuple[_Inputs, _Captured, dict[str, Any]]:
    """The algorithm with the shortest time, and what was found of each.

    As a plan does it leaves out what the library refuses, and what computes something else than
    the standard algorithm, which is the first.
    """
    engine: Any = engine_named("cudnn")
    memory, kernels = engine.library.memory, engine.kernels
    inputs = _Inputs(problem, data, memory)
    found: dict[str, Any] = {}
    best: _Captured | None = None
    best_ms = float("inf")
    expected: Results = []
    for name in kernels.offers(problem):
        try:
            one = _Captured(kernels.make(problem, name, memory.current_device()), inputs, memory)
            results = one.results()
            ms = median_time(one.launch, memory, best_ms)
        except FAILURES as error:
            if best is None:
                raise
            found[name] = {"refused": f"{type(error).__name__}: {error}"}
            continue
        expected = expected or results
        wrong = disagreement(results, expected, tolerance(problem), "the standard algorithm's")
        if wrong:
            found[name] = {"refused": wrong}
            continue
        found[name] = {
            "ms": ms,
            "workspace_bytes": one.executor.least_workspace_bytes,
            "reserve_bytes": one.executor.reserve_bytes,
        }
        if ms < best_ms:
            best, best_ms = one, ms
    assert best is not None, "the standard algorithm is always offered"
    return inputs, best, found


def raw(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """The algorithm of cuDNN that is fastest here: its calls as one graph on the same arrays."""
    problem = RNNProblem.dense(
        shape.spec, shape.steps, shape.batch, lengths=shape.lengths, training=training
    )
    inputs, best, found = _fastest(problem, data)
    hx = inputs.h_0 if inputs.c_0 is None else (inputs.h_0, inputs.c_0)
    return ModelDef.of_graph(
        (inputs.x, hx, inputs.weights),
        [inputs.weights],
        best.launch,
        (best.outputs, best.gradients),
        about=lambda: {"algorithm": best.executor.algorithm, "algorithms": found},
    )


CREATORS = (Creator("cudnn raw", "array", raw, Limits(places=("gpu",)), always=True),)
