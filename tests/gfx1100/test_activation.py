"""Activations of the real libMIOpen: transcendental functions, in float and half."""

from __future__ import annotations

import numpy as np
import pytest

SHAPE = (2, 3, 4, 5)
TOLERANCES = {"float32": 1e-6, "float16": 2e-3}
LOGISTIC, TANH, RELU = 1, 2, 3


def logistic(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {  # the function, and its derivative from y and x
    LOGISTIC: (logistic, lambda y, x: y * (1 - y)),
    TANH: (np.tanh, lambda y, x: 1 - y**2),
    RELU: (lambda x: np.maximum(x, 0), lambda y, x: x > 0),
}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("mode", ACTIVATIONS)
def test_forward_and_backward(session, mode, dtype):
    function, derivative = ACTIVATIONS[mode]
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(SHAPE).astype(dtype) for _ in range(2))
    activation = session.new("Activation")
    session.check("miopenSetActivationDescriptor", activation, mode, 1.0, 1.0, 1.0)
    tensor, one, zero = session.tensor(SHAPE, dtype), session.scalar(1), session.scalar(0)
    on_device = {name: session.upload(array) for name, array in (("x", x), ("dy", dy))}
    on_device |= {name: session.allocate(x.nbytes) for name in ("y", "dx")}
    session.run(
        *("miopenActivationForward", activation, one, tensor, on_device["x"]),
        *(zero, tensor, on_device["y"]),
    )
    session.run(
        *("miopenActivationBackward", activation, one, tensor, on_device["y"], tensor),
        *(on_device["dy"], tensor, on_device["x"], zero, tensor, on_device["dx"]),
    )
    y, dx = (session.download(on_device[name], SHAPE, dtype) for name in ("y", "dx"))
    wanted = function(x.astype("float64"))
    assert abs(y - wanted).max() < TOLERANCES[dtype]
    assert abs(dx - dy * derivative(wanted, x)).max() < 2 * TOLERANCES[dtype]
