"""Public calls on small arrays, with results on the host that can be compared."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
from numpy.testing import assert_allclose

import dnnffi
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.rnn import RNNSpec

STEPS, BATCH = 3, 2
SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=2, num_layers=2, dtype="float64")
CONV = ConvSpec(in_channels=2, out_channels=3, kernel=(2, 2), dtype="float32")
X_SHAPE = (1, 2, 4, 3)


class Calls:
    """Calls on one backend. ``asarray`` makes its arrays, ``options`` go to every function."""

    def __init__(self, backend, asarray=np.asarray, options=None):
        self.backend, self.asarray = backend, asarray
        self.options = {} if options is None else options
        rng = np.random.default_rng(0)
        layout = "torch" if backend == "reference" else backend
        flat = rng.uniform(-0.5, 0.5, dnnffi.weight_layout(SPEC, layout).size)
        self.weights = dnnffi.RNNWeights(asarray(flat), SPEC, backend=layout)
        x, dy = (rng.standard_normal(s) for s in (SPEC.x_shape(STEPS, BATCH), (STEPS, BATCH, 2)))
        states = (rng.standard_normal(SPEC.h_shape(BATCH)) for _ in range(2))
        self.x, self.dy = asarray(x), asarray(dy)
        self.hx = tuple(asarray(state) for state in states)
        image, w = (rng.standard_normal(s).astype("f4") for s in (X_SHAPE, CONV.weight_shape))
        self.image, self.w = asarray(image), asarray(w)
        self.bias = asarray(np.ones(3, "f4"))
        self.dy_image = asarray(np.ones((1, 3, 3, 2), "f4"))

    # Networks

    def lstm(self, **options):
        y, (h_n, c_n) = dnnffi.lstm(
            self.x, self.hx, self.weights, backend=self.backend, options=self.options | options
        )
        return y, h_n, c_n

    def lstm_forward(self, dropout=0.0, state=None, **options):
        y, (h_n, c_n), context = dnnffi.lstm_forward(
            *(self.x, self.hx, self.weights),
            backend=self.backend,
            dropout=dropout,
            dropout_state=state,
            options=self.options | options,
        )
        return (y, h_n, c_n), context

    def backward(self, context, **keywords):
        grads = context.backward(self.dy, **keywords)
        return grads.x, *grads.hx, grads.weights.flat

    def train(self, dropout=0.0, state=None, **options):
        results, context = self.lstm_forward(dropout, state, **options)
        return *results, *self.backward(context)

    def train_with_dropout(self, **options):
        return self.train(0.5, dnnffi.DropoutState(1), **options)

    def plan(self, **keywords):
        return dnnffi.RNNPlan(
            SPEC, batch=BATCH, steps=STEPS, training=True, backend=self.backend, **keywords
        )

    def plan_forward(self, plan, out=None):
        y, (h_n, c_n) = plan.forward(self.x, self.hx, self.weights, out)
        return y, h_n, c_n

    def plan_backward(self, plan):
        (dx, (dh_0, dc_0)), dweights = plan.backward(self.dy)
        return dx, dh_0, dc_0, dweights.flat

    def plan_backward_data(self, plan):
        dx, (dh_0, dc_0) = plan.backward_data(self.dy)
        return dx, dh_0, dc_0

    def plan_backward_weights(self, plan):
        return (plan.backward_weights().flat,)

    def plan_step(self):
        with self.plan() as plan:
            results = (*self.plan_forward(plan), *self.plan_backward(plan))
            return *results, *self.plan_forward(plan), *self.plan_backward_data(plan)

    # Convolutions

    def conv(self, **options):
        call = partial(dnnffi.conv, activation="relu", backend=self.backend)
        return (call(self.image, self.w, self.bias, options=self.options | options),)

    def conv_padded(self):
        """On cuDNN and MIOpen a padded copy of the image is in the workspace."""
        return (
            dnnffi.conv(
                *(self.image, self.w),
                padding=((2, 0), (0, 1)),
                backend=self.backend,
                options=self.options or None,
            ),
        )

    def conv_backward_data(self):
        return (
            dnnffi.conv_backward_data(
                self.dy_image, self.w, X_SHAPE, backend=self.backend, options=self.options or None
            ),
        )

    def conv_backward_weights(self):
        return (
            dnnffi.conv_backward_weights(
                *(self.dy_image, self.image, CONV.weight_shape),
                backend=self.backend,
                options=self.options or None,
            ),
        )

    def conv_backward_bias(self):
        return (dnnffi.conv_backward_bias(self.dy_image, backend=self.backend),)

    def conv_plan(self):
        with dnnffi.ConvPlan(CONV, X_SHAPE, bias=True, backend=self.backend) as plan:
            return plan.run(self.image, self.w, self.bias), plan.run(self.image, self.w, self.bias)


def on_host(results):
    """Copies of results as NumPy arrays."""
    return [np.array(one) for one in results]


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert_allclose(np.array(one), other, rtol=1e-5, atol=1e-6)


def is_equal(found, expected):
    return all(np.allclose(one, other) for one, other in zip(found, expected, strict=True))


def in_a_thread(call):
    """The results of a call in another thread, which waits for what the first one has locked."""
    found = []
    thread = threading.Thread(target=lambda: found.extend(on_host(call())), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "something is locked"
    return found
