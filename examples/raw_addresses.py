"""Train an LSTM on raw addresses: device memory of the program's own, and an executor of dnnffi.

    python examples/raw_addresses.py      # needs an NVIDIA GPU, but neither CuPy nor PyTorch

The program allocates all memory itself and knows it by its addresses, as a program does that calls
CUDA's driver. dnnffi's executor tells how many bytes it needs, and fills arrays at these
addresses: it allocates nothing, waits for nothing, and makes the calls of cuDNN. The results are
compared with dnnffi's reference on the host.
"""

from __future__ import annotations

import argparse
from math import prod

import numpy as np

import dnnffi
from dnnffi.backends.cudnn.library import load
from dnnffi.foreign import array_at, using
from dnnffi.rnn.executor import RNNExecutor


class Buffers:
    """Device memory of the program, by name: freed all at once."""

    def __init__(self, driver):
        self._driver = driver
        self._addresses = []

    def empty(self, shape, dtype="float32"):
        """Return new memory as an array that executors take."""
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        self._addresses.append(self._driver.allocate(nbytes))
        return array_at(self._addresses[-1], shape, dtype, kind="cuda")

    def upload(self, values):
        """Return a copy of a NumPy array in device memory."""
        array = self.empty(values.shape, values.dtype.name)
        self._driver.upload(array.data.ptr, np.ascontiguousarray(values))
        return array

    def download(self, array):
        """Return a copy of an array as one of NumPy. Waits for the work that was queued."""
        return self._driver.download(array.data.ptr, array.shape, array.dtype.name)

    def free(self):
        """Free all memory, in the order of the stream."""
        while self._addresses:
            self._driver.free(self._addresses.pop())


def training_step(driver, library, problem, values, stream=0):
    """Run forward, backward data and backward weights: y, h_n, dx and dweights, on the host.

    ``values`` are x, the flat weights and dy on the host; ``library`` is a libcudnn without CuPy,
    and ``stream`` the address of the stream to run on.
    """
    buffers = Buffers(driver)
    with using(stream=stream), RNNExecutor(problem, library=library) as executor:
        x, weights, dy = map(buffers.upload, values)
        y, dx = buffers.empty(problem.y_shape), buffers.empty(problem.x_shape)
        h_n, c_n = buffers.empty(problem.h_shape), buffers.empty(problem.c_shape)
        dweights = buffers.empty((executor.weight_size,))
        workspace = buffers.empty((executor.workspace_bytes,), "uint8")
        context = executor.context(buffers.empty((executor.reserve_bytes,), "uint8"))
        # h_0 and c_0 are None, for zeros.
        executor.forward(
            *(x, None, None, weights),
            out=(y, h_n, c_n),
            workspace=workspace,
            context=context,
        )
        # The gradients of h_n and c_n are zeros; those of h_0 and c_0 are not wanted.
        executor.backward_data(
            *(context, y, dy, None, None, None, None, weights),
            out=(dx, None, None),
            workspace=workspace,
        )
        executor.backward_weights(context, x, None, y, out=dweights, workspace=workspace)
        results = list(map(buffers.download, (y, h_n, dx, dweights)))
    buffers.free()
    return results


def drawn(spec, steps, batch):
    """Random x, flat weights and dy."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(spec.x_shape(steps, batch)).astype(spec.dtype)
    dy = rng.standard_normal(spec.y_shape(steps, batch)).astype(spec.dtype)
    return x, dnnffi.RNNWeights.random(spec, rng).flat, dy


def by_reference(spec, values):
    """Return the same results of the functions, on the host."""
    x, flat, dy = values
    y, (h_n, _), ctx = dnnffi.lstm_forward(x, None, dnnffi.RNNWeights(flat, spec))
    gradients = ctx.backward(dy)
    return y, h_n, gradients.x, gradients.weights.flat


def relative_errors(found, expected):
    """Return the norm of each difference in that of the expected array."""
    return [
        float(np.linalg.norm(one - other) / np.linalg.norm(other))
        for one, other in zip(found, expected, strict=True)
    ]


def main():
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    from cuda_driver import CudaDriver  # examples/cuda_driver.py

    spec = dnnffi.RNNSpec(mode="lstm", input_size=64, hidden_size=128, num_layers=2)
    problem = dnnffi.RNNProblem.dense(spec, steps=20, batch=16, training=True)
    values = drawn(spec, 20, 16)
    found = training_step(CudaDriver(), load().without_cupy(), problem, values)
    errors = relative_errors(found, by_reference(spec, values))
    for name, error in zip(("y", "h_n", "dx", "dweights"), errors, strict=True):
        print(f"{name}: relative difference from the reference {error:.1e}")
    # cuDNN may use TF32 for float32.
    if max(errors) > 1e-2:
        raise SystemExit("the results differ by more than rounding")


if __name__ == "__main__":
    main()
