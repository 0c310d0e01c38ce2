"""cuDNN alone: its calls in a CUDA graph that is launched without any code of dnnffi.

Its time on a machine is the best that the library reaches there. An aim below this time cannot be
reached with cuDNN's algorithms.
"""

from __future__ import annotations

from math import inf
from typing import Any

import dnnffi
from dnnffi.bench.creator import Creator
from dnnffi.bench.model import ModelDef
from dnnffi.bench.shapes import Data, Shape
from dnnffi.device.interface import NDArray, Stream
from dnnffi.rnn.backend import DeviceRNNBackend, rnn_backends
from dnnffi.rnn.executor import RNNExecutor
from dnnffi.rnn.gradients import Gradients
from dnnffi.rnn.route_choice import RouteChoice
from dnnffi.rnn.tuning import tune
from dnnffi.spec.problem import RNNProblem


def _captured(executor: RNNExecutor, data: Data, memory: Any, about: dict[str, Any]) -> ModelDef:
    """Capture the calls of one algorithm as a graph, which keeps their arrays and the executor."""
    problem = executor.problem
    spec, cell = problem.spec, problem.spec.has_cell
    dtype, byte = memory.dtype(spec.dtype), memory.dtype("uint8")

    def new(shape: tuple[int, ...]) -> Any:
        return memory.empty(shape, dtype)

    def upload(values: NDArray) -> NDArray:
        array = new(values.shape)
        array.set(values)
        return array

    x, h_0 = upload(data.x), upload(data.h_0)
    c_0 = None if data.c_0 is None else upload(data.c_0)
    arrays = [upload(array) for array in data.weights]
    flat = new((executor.weight_size,))
    dnnffi.RNNWeights.pack(arrays, spec, backend="cudnn", out=flat)
    y, h_n = new(problem.y_shape), new(problem.h_shape)
    c_n = new(problem.c_shape) if cell else None
    workspace = memory.empty((executor.least_workspace_bytes,), byte)
    gradients: Any = None
    context = None
    if problem.training:
        dy, dx, dh_0 = upload(data.dy), new(problem.x_shape), new(problem.h_shape)
        dc_0 = new(problem.c_shape) if cell else None
        dweights = dnnffi.RNNWeights(new((executor.weight_size,)), spec)
        gradients = Gradients(dx, (dh_0, dc_0) if cell else dh_0, dweights)
        context = executor.context(memory.empty((executor.reserve_bytes,), byte))

    def calls(stream: Stream) -> None:
        executor.forward(x, h_0, c_0, flat, out=(y, h_n, c_n), workspace=workspace, context=context)
        if context is None:
            return
        # The library adds to dweights. Clearing it between the two backward calls takes longer.
        memory.clear(dweights.flat.data.ptr, dweights.flat.nbytes, stream)
        executor.backward_data(
            *(context, y, dy, h_0, c_0, None, None, flat),
            out=(dx, dh_0, dc_0),
            workspace=workspace,
        )
        executor.backward_weights(
            *(context, x, h_0, y), out=dweights.flat, workspace=workspace, accumulate=True
        )

    calls(memory.current_stream())  # the first calls load kernels
    graph = memory.capture(calls)
    graph.executor = calls, executor  # keeps the arrays and kernels of the graph
    return ModelDef.of_graph(
        lambda: graph.launch(memory.current_stream()),
        ((y, (h_n, c_n) if cell else h_n), gradients),
        about=lambda: about,
    )


def _measured(problem: RNNProblem, backend: DeviceRNNBackend) -> RouteChoice:
    """Measure cuDNN's algorithms as graphs, as a plan does but without a limit on time."""
    memory = backend.memory
    device, launch_on = memory.current_device(), backend.resources.launch
    found = tune(backend.candidates.of_vendor, problem, device, memory, launch_on, budget=inf)
    if found is None:
        raise RuntimeError(f"cuDNN's standard algorithm does not run {problem}")
    return found


def _algorithm(candidate: str) -> str:
    return candidate.removeprefix("cudnn ")


def _executor(problem: RNNProblem, candidate: str) -> RNNExecutor:
    options = problem.options._replace(algorithm=_algorithm(candidate))
    return RNNExecutor(problem._replace(options=options))


def raw(shape: Shape, data: Data, place: str, training: bool) -> ModelDef:
    """Make a model of cuDNN's fastest algorithm: its calls as one graph on the same arrays."""
    problem = RNNProblem.dense(
        shape.spec, steps=shape.steps, batch=shape.batch, lengths=shape.lengths, training=training
    )
    backend = rnn_backends.of("cudnn")
    assert isinstance(backend, DeviceRNNBackend)
    choice = _measured(problem, backend)
    # One that is far slower than another, or that cannot be captured, has no time as a graph.
    times = {name: t.replayed for name, t in choice.times.items() if t.replayed is not None}
    best = _executor(problem, min(times, key=times.__getitem__, default=choice.direct))
    found: dict[str, Any] = {_algorithm(name): {} for name in choice.times}
    found |= {_algorithm(name): {"ms": ms} for name, ms in times.items()}
    found |= {_algorithm(name): {"refused": why} for name, why in choice.refused.items()}
    with _executor(problem, "cudnn standard") as standard:
        found["standard"]["workspace_bytes"] = standard.least_workspace_bytes
        found["standard"]["reserve_bytes"] = standard.reserve_bytes
    about = {"algorithm": best.algorithm, "algorithms": found}
    return _captured(best, data, backend.memory, about)


CREATORS = (Creator("cudnn raw", "array", raw, places=("gpu",), always=True),)
