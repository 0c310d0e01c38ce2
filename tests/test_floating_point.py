"""Overflow, underflow and NaN are results, whatever ``np.seterr`` says: one rule for all calls."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

import dnnffi
from dnnffi.device.dtypes import dtype_object
from dnnffi.errors import ValidationError

LARGEST = {"float16": 6e4, "bfloat16": 3e38, "float32": 3e38, "float64": 1e308}
SMALLEST = {"float16": 6e-8, "bfloat16": 1e-38, "float32": 1e-44, "float64": 5e-324}
X, W, Y = (1, 2, 4, 3), (3, 2, 2, 2), (1, 3, 3, 2)


class Calls:
    """Calls on arrays that hold one number. A call whose name ends in ``_validated`` may differ."""

    def __init__(self, dtype, value):
        self.dtype, self.value = dtype, value
        self.x, self.w, self.y, self.bias = map(self.full, (X, W, Y, (3,)))

    @np.errstate(all="ignore")
    def full(self, shape):
        return np.full(shape, self.value).astype(dtype_object(self.dtype))

    def matmul(self):
        dnnffi.matmul(self.full((2, 3)), self.full((3, 2)))

    def matmul_into_out(self):
        dnnffi.matmul(self.full((2, 3)), self.full((3, 2)), out=self.full((2, 2)))

    def conv(self):
        options = {"activation": "relu", "residual": self.y, "alpha": 2.5}
        dnnffi.conv(self.x, self.w, self.bias, **options)

    def conv_validated(self):
        dnnffi.conv(self.x, self.w, self.bias, options={"validate": True})

    def conv_transpose(self):
        dnnffi.conv_transpose(self.y, self.w)

    def conv_backward_data(self):
        dnnffi.conv_backward_data(self.y, self.w, X)

    def conv_backward_weights(self):
        dnnffi.conv_backward_weights(self.y, self.x, W)

    def conv_backward_bias(self):
        dnnffi.conv_backward_bias(self.y)

    def conv_plan(self):
        spec = dnnffi.ConvSpec(in_channels=2, out_channels=3, kernel=(2, 2), dtype=self.dtype)
        with dnnffi.ConvPlan(spec, X, backend="reference") as plan:
            plan.run(self.x, self.w, out=self.full(Y))

    def network(self, mode):
        spec = dnnffi.RNNSpec(
            mode=mode, input_size=3, hidden_size=2, num_layers=2, dtype=self.dtype
        )
        flat = self.full((dnnffi.weight_layout(spec, "torch").size,))
        return self.full((2, 2, 3)), dnnffi.RNNWeights(flat, spec, backend="torch")

    def lstm(self, mode="lstm"):
        x, weights = self.network(mode)
        y, _, context = getattr(dnnffi, f"{mode}_forward")(
            x, None, weights, dropout=0.5, dropout_state=dnnffi.DropoutState(1)
        )
        context.backward(y)

    def gru(self):
        self.lstm("gru")

    def rnn_relu(self):
        self.lstm("rnn_relu")

    def rnn_tanh(self):
        self.lstm("rnn_tanh")

    def gru_validated(self):
        x, weights = self.network("gru")
        dnnffi.gru(x, None, weights, options={"validate": True})

    def plan(self):
        x, weights = self.network("rnn_relu")
        with dnnffi.RNNPlan(
            weights.spec, batch=2, steps=2, training=True, backend="reference"
        ) as plan:
            y, _ = plan.forward(x, None, weights)
            plan.backward(y, out_weights=weights.like(self.full(weights.flat.shape)))
            plan.forward(x, None, weights)
            plan.backward_data(y)
            plan.backward_weights(out=weights, accumulate=True)

    def sum_of_gradients(self):
        # Each gradient is finite in every dtype, and the sum is not.
        spec = dnnffi.RNNSpec(mode="rnn_relu", input_size=1, hidden_size=1, dtype=self.dtype)
        one, zero, large = (
            np.full((1, 1, 1), value).astype(dtype_object(self.dtype))
            for value in (1, 0, LARGEST[self.dtype])
        )
        weights = dnnffi.RNNWeights.pack(
            [one[0], zero[0], zero[0, 0], zero[0, 0]], spec, backend="torch"
        )
        total = weights.like(np.full_like(weights.flat, large[0, 0, 0]))
        with dnnffi.RNNPlan(spec, batch=1, steps=1, training=True, backend="reference") as plan:
            plan.forward(one, None, weights)
            plan.backward_data(large)
            plan.backward_weights(out=total, accumulate=True)
        assert np.isinf(total.flat.astype("f8")).any()


NAMES = sorted(name for name in vars(Calls) if name[0] != "_" and name not in ("full", "network"))


@pytest.mark.parametrize("mode", ["raise", "warn"])  # warnings are errors in tests
@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("name", NAMES)
def test_numpy_neither_raises_nor_warns(name, dtype, mode):
    for value in (LARGEST[dtype], -LARGEST[dtype], SMALLEST[dtype], float("inf"), float("nan")):
        calls = Calls(dtype, value)
        allowed = [ValidationError] if name.endswith("_validated") else []
        with np.errstate(all=mode), suppress(*allowed):
            getattr(calls, name)()


def test_a_result_beyond_the_dtype_is_infinite():
    a = np.full((1, 2), 1e308)
    with np.errstate(all="raise"):
        assert dnnffi.matmul(a, a.T) == np.inf
