"""Run thinc's LSTM on dnnffi: its weights, its packed batches, its functions.

    python examples/thinc_lstm.py                 # checked against a loop, with the time of both
    python examples/thinc_lstm.py --rows 64 --steps 50 --hidden 256

`lstm_forward_inference`, `lstm_forward_training` and `backprop_lstm` have the arguments and results
of the methods of that name of ``thinc.api.Ops``. They run on cuDNN for CuPy arrays, and on the
reference for NumPy arrays. In a program with thinc they take their place:

    import thinc_lstm
    from thinc.api import CupyOps

    for name in ("lstm_forward_inference", "lstm_forward_training", "backprop_lstm"):
        setattr(CupyOps, name, staticmethod(getattr(thinc_lstm, name)))

What differs between thinc and dnnffi:

- thinc has the gates in the order f i o c, dnnffi i f g o as PyTorch. thinc's one buffer holds, for
  each layer, for each direction, W_x [4H, I], b_x [4H], W_h [4H, H], b_h [4H].
- Batches are packed: thinc's ``size_at_t`` counts the rows at each step, as ``batch_sizes`` do.
- The first states are [L, D, H] in thinc, the same for all rows, and get no gradient. Its methods
  take (H0, C0) and hand them to functions that take (c_init, h_init); that shows where they are not
  zero. Here H0 is the first h.
- The results are thinc's. The gradients are those of finite differences, which thinc 9.1.1's are
  not: its compiled backward leaves out the first step and adds params to dparams, and the array
  code of ``Ops``, which ``CupyOps`` has, computes the first row of a batch alone.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from command_line import count  # examples/command_line.py
from threadpoolctl import threadpool_limits

import dnnffi

GATES = (1, 0, 3, 2)  # of thinc's f i o c those of PyTorch's i f g o; and the other way round
SIZES = {"rows": 8, "steps": 20, "hidden": 64}
SIZES_ON_NUMPY = {"rows": 8, "steps": 20, "hidden": 32}


def spec_of(params, states, x):
    """Return the network that ``params`` [size] are of, by first states [L, D, H] and x [N, I]."""
    layers, directions, hidden = states.shape
    return dnnffi.RNNSpec(
        mode="lstm",
        input_size=x.shape[1],
        hidden_size=hidden,
        num_layers=layers,
        bidirectional=directions == 2,
        dtype=params.dtype,
    )


def other_order(array):
    """Return the blocks of the gates in the order of the other library."""
    return array.reshape(4, -1, *array.shape[1:])[list(GATES)].reshape(array.shape)


def from_thinc(params, spec):
    """`RNNWeights` with the values of thinc's buffer."""
    arrays, start = [], 0
    shapes = [parameter.shape for parameter in spec.parameter_shapes()]
    expected = sum(int(np.prod(shape)) for shape in shapes)
    if params.shape != (expected,):
        raise ValueError(f"params must have shape ({expected},); got {params.shape}")
    for at in range(0, len(shapes), 4):
        w_x, w_h, b_x, b_h = shapes[at : at + 4]
        found = []
        for shape in (w_x, b_x, w_h, b_h):
            size = int(np.prod(shape))
            found.append(other_order(params[start : start + size].reshape(shape)))
            start += size
        arrays += [found[0], found[2], found[1], found[3]]
    return dnnffi.RNNWeights.pack(arrays, spec)


def to_thinc(weights, out):
    """Write weights, or their gradient, into a buffer in thinc's order; returns it."""
    arrays, start = list(weights.arrays()), 0
    for at in range(0, len(arrays), 4):
        w_x, w_h, b_x, b_h = arrays[at : at + 4]
        for array in (w_x, b_x, w_h, b_h):
            out[start : start + array.size] = other_order(array).ravel()
            start += array.size
    return out


def arguments_of(params, H0, C0, X, size_at_t):
    """Return the arguments of a call of dnnffi: x, hx, weights and the batch sizes, on the host."""
    spec = spec_of(params, H0, X)
    sizes = [int(size) for size in size_at_t]
    shape = spec.h_shape(sizes[0])
    hx = tuple(states.reshape(-1, 1, shape[2]).repeat(sizes[0], axis=1) for states in (H0, C0))
    return X, hx, from_thinc(params, spec), sizes


def lstm_forward_inference(params, H0, C0, X, size_at_t):
    """Y [N, D*H] of X [N, I], packed."""
    x, hx, weights, sizes = arguments_of(params, H0, C0, X, size_at_t)
    return dnnffi.lstm(x, hx, weights, batch_sizes=sizes)[0]


def lstm_forward_training(params, H0, C0, X, size_at_t):
    """Y, and what `backprop_lstm` takes as ``fwd_state``."""
    x, hx, weights, sizes = arguments_of(params, H0, C0, X, size_at_t)
    y, _, context = dnnffi.lstm_forward(x, hx, weights, batch_sizes=sizes)
    return y, (context,)


def backprop_lstm(dY, lengths, params, fwd_state):
    """Return (dX [N, I], dparams [size]) for dY [N, D*H]; ``lengths`` is not needed."""
    (context,) = fwd_state
    gradients = context.backward(dY)
    dparams = params.copy()  # of its kind and dtype
    return gradients.x, to_thinc(gradients.weights, dparams)


def by_loop(params, H0, C0, X, size_at_t):
    """Y by the definition, row by row and step by step, from thinc's buffer as it is."""
    layers, directions, hidden = H0.shape
    starts = np.concatenate([[0], np.cumsum(size_at_t)])
    below, used = X, 0
    for layer in range(layers):
        above = np.zeros((len(X), directions * hidden), X.dtype)
        for direction in range(directions):
            parts = []
            for shape in ((4 * hidden, below.shape[1]), (4 * hidden,), (4 * hidden, hidden)):
                parts.append(params[used : used + np.prod(shape)].reshape(shape))
                used += np.prod(shape)
            b_h = params[used : used + 4 * hidden]
            used += 4 * hidden
            w_x, b_x, w_h = parts
            for row in range(size_at_t[0]):
                length = sum(row < size for size in size_at_t)
                h, c = H0[layer, direction], C0[layer, direction]
                for step in range(length)[:: -1 if direction else 1]:
                    at = starts[step] + row
                    gates = (w_x @ below[at] + b_x + w_h @ h + b_h).reshape(4, hidden)
                    forget, take, give = 1 / (1 + np.exp(-gates[:3]))
                    c = forget * c + take * np.tanh(gates[3])
                    h = give * np.tanh(c)
                    above[at, direction * hidden :][:hidden] = h
        below = above
    return below


def problem(rng, inputs, hidden, layers, directions, lengths):
    """Random params, H0, C0, X and size_at_t, on the host."""
    spec = dnnffi.RNNSpec(
        mode="lstm",
        input_size=inputs,
        hidden_size=hidden,
        num_layers=layers,
        bidirectional=directions == 2,
    )
    size = dnnffi.weight_layout(spec, "torch").size
    sizes = np.array([sum(step < one for one in lengths) for step in range(max(lengths))])
    shapes = (size,), (layers, directions, hidden), (layers, directions, hidden)
    drawn = [rng.uniform(-0.3, 0.3, shape).astype("float32") for shape in shapes]
    return *drawn, rng.standard_normal((sizes.sum(), inputs)).astype("float32"), sizes


def arrays():
    """CuPy where it sees a GPU, else NumPy."""
    try:
        import cupy
    except ImportError:
        return np
    return cupy if cupy.cuda.is_available() else np


def timed(function, *arguments, repeat=5):
    """Return the result, and the milliseconds of the fastest of ``repeat`` later calls."""
    best = float("inf")
    for call in range(1 + repeat):
        start = time.perf_counter()
        result = function(*arguments)
        float(result[0, 0])  # waits for the device
        if call:
            best = min(best, time.perf_counter() - start)
    return result, 1e3 * best


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=count, help="number of rows in addition to the longest")
    parser.add_argument("--steps", type=count, help="number of steps of the longest row")
    parser.add_argument("--hidden", type=count, help="hidden size of a direction")
    xp, rng = arrays(), np.random.default_rng(0)
    parser.set_defaults(**(SIZES_ON_NUMPY if xp is np else SIZES))
    options = parser.parse_args()
    print("Sizes:", ", ".join(f"--{name} {getattr(options, name)}" for name in SIZES))
    lengths = [1 + (options.steps - 1) * row // options.rows for row in range(options.rows)]
    *given, sizes = problem(rng, 32, options.hidden, 2, 2, [*lengths, options.steps])
    there = [xp.asarray(array) for array in given]
    y, own = timed(lstm_forward_inference, *there, sizes)
    expected, other = timed(by_loop, *given, sizes)
    error = abs((y if xp is np else y.get()) - expected).max()
    print(f"Two layers, both directions, {len(expected)} steps of {sizes[0]} rows")
    print(f"dnnffi on {xp.__name__} {own:.1f} ms, a loop over rows {other:.1f} ms")
    print(f"largest difference {error:.1e}")
    # cuDNN may use TF32 unless options={"math": "strict"} forbids it.
    if error > 5e-3:
        raise SystemExit("the results differ by more than rounding")
    y, state = lstm_forward_training(*there, sizes)
    dx, dparams = backprop_lstm(xp.ones_like(y), sizes, there[0], state)
    print(f"gradients: dX {dx.shape}, dparams {dparams.shape}")
    learned = there[0] - 1e-4 * dparams
    less = lstm_forward_inference(learned, *there[1:], sizes)
    print(
        f"a step along them: the sum of Y goes from {float(y.sum()):.3f} to {float(less.sum()):.3f}"
    )


if __name__ == "__main__":
    with threadpool_limits(limits=1):  # small products are faster on one thread
        main()
