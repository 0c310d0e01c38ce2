"""The equations of the frameworks, each cell written down on its own, and a loop over them.

A cell takes the arrays of one layer and direction in the framework's layout, and gives a step:
``step(x, state) -> state``, the first of the state being the output. Nothing here is dnnffi's.
"""

from __future__ import annotations

import numpy as np

import dnnffi


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def run(cells, x, hidden):
    """Layers of directions of steps over x [T, B, I] in float64; y [T, B, D*H]."""
    for layer in cells:
        outputs = []
        for direction, step in enumerate(layer):
            state = (np.zeros((x.shape[1], hidden)),) * 2
            found = []
            for one in x[::-1] if direction else x:
                state = step(one, state)
                found.append(state[0])
            outputs.append(np.stack(found[::-1] if direction else found))
        x = np.concatenate(outputs, axis=-1)
    return x


def x_of(spec):
    return np.random.default_rng(5).standard_normal((4, 3, spec.input_size))


def expect(cell, spec, arrays):
    """y of a network whose ``arrays`` are flat, as many for each layer and direction."""
    each = len(arrays) // (spec.num_layers * spec.num_directions)
    parts = [arrays[i : i + each] for i in range(0, len(arrays), each)]
    d = spec.num_directions
    cells = [[cell(*part) for part in parts[i : i + d]] for i in range(0, len(parts), d)]
    return run(cells, x_of(spec), spec.hidden_size)


def check(weights, expected):
    """The network of ``weights`` on the reference gives ``expected``."""
    function = getattr(dnnffi, weights.spec.mode)
    y, _ = function(x_of(weights.spec).astype(weights.spec.dtype), None, weights)
    tolerance = 1e-12 if weights.spec.dtype == "float64" else 1e-5
    np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)


def bare(mode):
    """torch.nn: W [G*H, I], U [G*H, H], b, c; gates i f g o, r z n."""

    def lstm(w, u, b=0, c=0):
        def step(x, state):
            i, f, g, o = np.split(x @ w.T + b + state[0] @ u.T + c, 4, axis=1)
            cell = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
            return sigmoid(o) * np.tanh(cell), cell

        return step

    def gru(w, u, b=0, c=0):
        def step(x, state):
            h = state[0]
            xr, xz, xn = np.split(x @ w.T + b, 3, axis=1)
            hr, hz, hn = np.split(h @ u.T + c, 3, axis=1)
            z = sigmoid(xz + hz)
            return ((1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h,)

        return step

    def rnn(activation):
        return lambda w, u, b=0, c=0: (
            lambda x, state: (activation(x @ w.T + b + state[0] @ u.T + c),)
        )

    cells = {"lstm": lstm, "gru": gru, "rnn_tanh": rnn(np.tanh)}
    return cells.get(mode) or rnn(lambda a: np.maximum(a, 0))
