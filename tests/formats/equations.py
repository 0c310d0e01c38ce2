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


def keras(mode):
    """Keras: kernel [I, G*H], recurrent [H, G*H], bias; gates i f c o, z r h; reset_after."""

    def lstm(kernel, recurrent, bias=0):
        def step(x, state):
            h, c = state
            i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            return sigmoid(o) * np.tanh(c), c

        return step

    def gru(kernel, recurrent, bias=(0, 0)):
        def step(x, state):
            h = state[0]
            x_z, x_r, x_h = np.split(x @ kernel + bias[0], 3, axis=1)
            r_z, r_r, r_h = np.split(h @ recurrent + bias[1], 3, axis=1)
            z, r = sigmoid(x_z + r_z), sigmoid(x_r + r_r)
            return (z * h + (1 - z) * np.tanh(x_h + r * r_h),)

        return step

    def simple(activation):
        return lambda kernel, recurrent, bias=0: (
            lambda x, state: (activation(x @ kernel + bias + state[0] @ recurrent),)
        )

    cells = {"lstm": lstm, "gru": gru, "rnn_tanh": simple(np.tanh)}
    return cells.get(mode) or simple(lambda a: np.maximum(a, 0))


def onnx(mode):
    """ONNX, one direction: W [G*H, I], R [G*H, H], B [2*G*H]; W[iofc], W[zrh], Wb then Rb."""

    def lstm(w, r, b):
        wb, rb = np.split(b, 2)

        def step(x, state):
            h, c = state
            i, o, f, g = np.split(x @ w.T + h @ r.T + wb + rb, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            return sigmoid(o) * np.tanh(c), c

        return step

    def gru(w, r, b):
        w_z, w_r, w_h = np.split(w, 3)
        r_z, r_r, r_h = np.split(r, 3)
        wb_z, wb_r, wb_h, rb_z, rb_r, rb_h = np.split(b, 6)

        def step(x, state):
            h = state[0]
            z = sigmoid(x @ w_z.T + h @ r_z.T + wb_z + rb_z)
            reset = sigmoid(x @ w_r.T + h @ r_r.T + wb_r + rb_r)
            new = np.tanh(x @ w_h.T + reset * (h @ r_h.T + rb_h) + wb_h)  # linear_before_reset
            return ((1 - z) * new + z * h,)

        return step

    def rnn(activation):
        return lambda w, r, b: (
            lambda x, state: (activation(x @ w.T + state[0] @ r.T + sum(np.split(b, 2))),)
        )

    cells = {"lstm": lstm, "gru": gru, "rnn_tanh": rnn(np.tanh)}
    return cells.get(mode) or rnn(lambda a: np.maximum(a, 0))


def dense(layer, x):
    """A dense layer of Flax: x @ kernel + bias."""
    return x @ layer["kernel"] + layer.get("bias", 0)


def flax_split_lstm(p):
    """LSTMCell: a dense layer for each gate, of x and of h. nnx calls the forget gate if_."""

    def step(x, state):
        h, c = state
        i = sigmoid(dense(p["ii"], x) + dense(p["hi"], h))
        f = sigmoid(dense(p["if"] if "if" in p else p["if_"], x) + dense(p["hf"], h))
        g = np.tanh(dense(p["ig"], x) + dense(p["hg"], h))
        o = sigmoid(dense(p["io"], x) + dense(p["ho"], h))
        c = f * c + i * g
        return o * np.tanh(c), c

    return step


def flax_fused_lstm(p):
    """OptimizedLSTMCell of nnx: i f g o in one dense layer of x and one of h."""

    def step(x, state):
        i, f, g, o = np.split(dense(p["dense_i"], x) + dense(p["dense_h"], state[0]), 4, axis=1)
        c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c

    return step


def flax_split_gru(p):
    """GRUCell of linen: r = s(ir + hr), z = s(iz + hz), n = tanh(in + r * hn)."""

    def step(x, state):
        h = state[0]
        r = sigmoid(dense(p["ir"], x) + dense(p["hr"], h))
        z = sigmoid(dense(p["iz"], x) + dense(p["hz"], h))
        n = np.tanh(dense(p["in"], x) + r * dense(p["hn"], h))
        return ((1 - z) * n + z * h,)

    return step


def flax_fused_gru(p):
    """GRUCell of nnx: r z n in one dense layer of x and one of h."""

    def step(x, state):
        h = state[0]
        x_r, x_z, x_n = np.split(dense(p["dense_i"], x), 3, axis=1)
        h_r, h_z, h_n = np.split(dense(p["dense_h"], h), 3, axis=1)
        r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
        return ((1 - z) * np.tanh(x_n + r * h_n) + z * h,)

    return step


def flax_simple(of_x, of_h):
    """SimpleCell: tanh of the sum of two dense layers."""
    return lambda p: lambda x, state: (np.tanh(dense(p[of_x], x) + dense(p[of_h], state[0])),)


def equinox(mode):
    """Equinox: weight_ih, weight_hh, one bias; a GRU's bias_n is within the reset."""

    def lstm(p):
        def step(x, state):
            h, c = state
            i, f, g, o = np.split(
                x @ p["weight_ih"].T + h @ p["weight_hh"].T + p.get("bias", 0), 4, axis=1
            )
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            return sigmoid(o) * np.tanh(c), c

        return step

    def gru(p):
        def step(x, state):
            h = state[0]
            x_r, x_z, x_n = np.split(x @ p["weight_ih"].T + p.get("bias", 0), 3, axis=1)
            h_r, h_z, h_n = np.split(h @ p["weight_hh"].T, 3, axis=1)
            reset, keep = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
            new = np.tanh(x_n + reset * (h_n + p.get("bias_n", 0)))
            return (new + keep * (h - new),)

        return step

    return {"lstm": lstm, "gru": gru}[mode]
