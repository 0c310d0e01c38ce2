"""RNNs of the real libMIOpen, through the calls with one descriptor for each step."""

from __future__ import annotations

import numpy as np
import pytest
from gfx1100.rnn_network import Network, Problem

from dnnffi.reference import rnn as reference
from dnnffi.spec.rnn import RNNSpec

TOLERANCES = {"float32": 5e-6, "float16": 1e-2}


def run(session, network, problem):
    """Return the library's results and gradients by name, and the gradients of the weights."""
    steps, batch = problem.x.shape[:2]
    spec, dtype = network.spec, network.dtype
    xs = session.tensors([network.tensor(batch, spec.input_size)] * steps)
    ys = session.tensors([network.tensor(*spec.y_shape(steps, batch)[1:])] * steps)
    state = network.tensor(*spec.h_shape(batch))
    sizes = (session.handle, network.descriptor, steps, xs)
    workspace_bytes = session.size("miopenGetRNNWorkspaceSize", *sizes)
    reserve_bytes = session.size("miopenGetRNNTrainingReserveSize", *sizes)
    workspace = session.allocate(workspace_bytes), workspace_bytes
    reserve = session.allocate(reserve_bytes), reserve_bytes
    x, h_0, c_0, dy, dh_n, dc_n = (
        session.upload(getattr(problem, name)) for name in ("x", "h_0", "c_0", "dy", "dh_n", "dc_n")
    )
    w = session.upload(network.pack(problem.weights))
    given = (network.descriptor, steps, xs, x, state, h_0, state, c_0, network.weight_tensor, w)

    def new(array):
        return session.allocate(array.nbytes)

    def results(prefix):
        shapes = {"y": problem.dy, "h_n": problem.h_0, "c_n": problem.c_0}
        return {prefix + name: (new(array), array.shape) for name, array in shapes.items()}

    found = results("inference_") | results("")
    for prefix, call, extra in (
        ("inference_", "miopenRNNForwardInference", workspace),
        ("", "miopenRNNForwardTraining", (*workspace, *reserve)),
    ):
        y, h_n, c_n = (found[prefix + name][0] for name in ("y", "h_n", "c_n"))
        session.run(call, *given, ys, y, state, h_n, state, c_n, *extra)
    found |= {
        f"d{name}": (new(array), array.shape)
        for name, array in (("x", problem.x), ("h_0", problem.h_0), ("c_0", problem.c_0))
    }
    dx, dh_0, dc_0 = (found[name][0] for name in ("dx", "dh_0", "dc_0"))
    y = found["y"][0]
    session.run(
        *("miopenRNNBackwardData", network.descriptor, steps, ys, y, ys, dy, state, dh_n, state),
        *(dc_n, network.weight_tensor, w, state, h_0, state, c_0, xs, dx, state, dh_0, state, dc_0),
        *(*workspace, *reserve),
    )
    dw = session.allocate(network.weight_bytes)
    session.run(
        *("miopenRNNBackwardWeights", network.descriptor, steps, xs, x, state, h_0, ys, y),
        *(network.weight_tensor, dw, *workspace, *reserve),
    )
    arrays = {
        name: session.download(buffer, shape, dtype)
        for name, (buffer, shape) in found.items()
        if spec.has_cell or "c_" not in name
    }
    flat = session.download(dw, (network.weight_bytes // dtype.itemsize,), dtype)
    return arrays, network.unpack(flat)


def expected(spec, problem):
    """Return the results of `run` from the reference in float64."""
    x, h_0, c_0, dy, dh_n, dc_n = (
        getattr(problem, name).astype("float64")
        for name in ("x", "h_0", "c_0", "dy", "dh_n", "dc_n")
    )
    has_cell = spec.has_cell
    weights = [weight.astype("float64") for weight in problem.weights]
    done = reference.forward(spec, x, h_0, c_0 if has_cell else None, weights)
    gradients = reference.backward(done.tape, dy, dh_n, dc_n if has_cell else None)
    arrays = {"y": done.y, "h_n": done.h_n, "c_n": done.c_n}
    arrays |= {f"inference_{name}": array for name, array in arrays.items()}
    arrays |= {"dx": gradients.x, "dh_0": gradients.h_0, "dc_0": gradients.c_0}
    return arrays, gradients.weights


def error(found, wanted):
    """Return the relative error in the Euclidean norm, which is infinite if there is a NaN."""
    if np.isnan(found).any():
        return np.inf
    return np.linalg.norm(found - wanted) / max(np.linalg.norm(wanted), 1e-3)


@pytest.mark.parametrize("variant", ["biased", "unbiased", "skip", "half"])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, True)])
@pytest.mark.parametrize("mode", ["rnn_relu", "rnn_tanh", "lstm", "gru"])
def test_every_result_and_gradient_is_that_of_the_reference(
    session, mode, layers, bidirectional, variant
):
    spec = RNNSpec(
        mode=mode,
        input_size=5 if variant == "skip" else 4,
        hidden_size=5,
        num_layers=layers,
        bidirectional=bidirectional,
        bias=variant != "unbiased",
        dtype="float16" if variant == "half" else "float32",
    )
    network = Network(session, spec, skip=variant == "skip")
    problem = Problem(network, steps=3, batch=2)
    arrays, gradients = run(session, network, problem)
    wanted_arrays, wanted_gradients = expected(spec, problem)
    errors = {name: error(array, wanted_arrays[name]) for name, array in arrays.items()}
    for i, gradient in enumerate(gradients):
        if gradient is not None:
            errors[f"dw[{i}]"] = error(gradient, wanted_gradients[i])
    tolerance = TOLERANCES[spec.dtype]
    assert {name: e for name, e in errors.items() if not e < tolerance} == {}
