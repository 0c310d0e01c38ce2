"""Run a problem on the adapter: by the functions, and by a packed context."""

from __future__ import annotations

import dnnffi
from dnnffi import testing


def _states(problem, h_0, c_0):
    if h_0 is None or not problem.spec.has_cell:
        return h_0
    return h_0, c_0


def run_function(problem, arrays, **resets):
    hx = _states(problem, arrays.h_0, arrays.c_0)
    weights = dnnffi.RNNWeights.pack(arrays.weights, problem.spec, backend="torch")
    keywords = testing.keywords(problem) | {"backend": "vulkan"} | resets
    return getattr(dnnffi, problem.spec.mode)(arrays.x, hx, weights, **keywords)


def run_context(problem, arrays, **resets):
    keywords = testing.keywords(problem) | resets
    del keywords["num_layers"], keywords["bidirectional"]
    with dnnffi.pack_rnn(arrays.weights, problem.spec) as context:
        return context.run(arrays.x, _states(problem, arrays.h_0, arrays.c_0), **keywords)
