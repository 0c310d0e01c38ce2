"""Tests of the sums over the parts that backward kernels leave for the gradients of biases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnffi.backends.own.recurrent.bias_gradients import THREADS, BiasGradients, BiasSums
from dnnffi.backends.own.recurrent.kernels import bias_kernel
from dnnffi.backends.own.recurrent.layout import layer_weights
from dnnffi.device.interface import Launch, StreamAt
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import weight_layout
from simulators.cuda.emulator import EmulatedKernel


@pytest.fixture(scope="module")
def kernel():
    return EmulatedKernel(*bias_kernel("float32"), cooperative=False)


class OneKernel:
    """Memory that compiles nothing: it has one kernel."""

    def __init__(self, kernel):
        self.kernel = lambda *source: kernel


@given(
    st.sampled_from(["gru", "lstm", "rnn_tanh"]),
    st.integers(1, 300),
    st.integers(1, 2),
    st.booleans(),
    st.integers(1, 70),
    st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_gradients_are_the_sums_of_all_parts(
    kernel, mode, hidden, layers, bidirectional, parts, accumulate
):
    spec = RNNSpec(
        mode=mode, input_size=3, hidden_size=hidden, num_layers=layers, bidirectional=bidirectional
    )
    gates = spec.num_gates
    columns, padded = gates + (mode == "gru"), -(-hidden // 8) * 8
    shape = layers, spec.num_directions, parts, columns, padded
    rng = np.random.default_rng(parts)
    sums = rng.integers(-9, 10, shape).astype("f4")  # whose sums are exact
    size = weight_layout(spec, "cudnn").size
    dweights = rng.integers(-9, 10, size).astype("f4")
    before = dweights.copy()

    gradients = BiasGradients(spec, layer_weights(spec), columns, gates, padded, OneKernel(kernel))
    of_layers = BiasSums.of([layer * sums[0].nbytes for layer in range(layers)], parts)
    launch = Launch(StreamAt(0), 0)
    gradients.run(launch, of_layers, sums.ctypes.data, dweights.ctypes.data, accumulate)

    total = sums.sum(axis=2)[..., :hidden]
    of_input = total[:, :, :gates]
    of_recurrent = of_input if mode != "gru" else total[:, :, [0, 1, 3]]
    expected = before.copy()
    for layer, weights in enumerate(layer_weights(spec)):
        for direction in range(spec.num_directions):
            for at, found in ((weights.b_ih, of_input), (weights.b_hh, of_recurrent)):
                first = (at + direction * weights.bias_stride) // 4
                one = found[layer, direction].ravel()
                expected[first : first + one.size] = one
                if accumulate:
                    expected[first : first + one.size] += before[first : first + one.size]
    np.testing.assert_array_equal(dweights, expected)


@pytest.mark.parametrize(("parts", "shares"), [(1, 1), (7, 1), (8, 2), (31, 4), (32, 8), (999, 8)])
def test_warps_share_many_parts(parts, shares):
    assert BiasSums.of([0], parts).shares == shares
    assert THREADS % (32 * shares) == 0
