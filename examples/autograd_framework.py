"""Embed dnnffi in a framework with arrays and automatic differentiation of its own.

    python examples/autograd_framework.py                 # on the CPU: NumPy, dnnffi's reference
    python examples/autograd_framework.py --device gpu    # on an NVIDIA GPU: own kernels, cuDNN

The framework needs neither CuPy nor PyTorch. What it asks of dnnffi is in `Tape.lstm`:

- Its arrays show their memory, by ``__array_interface__`` on the CPU and by
  ``__cuda_array_interface__`` on a GPU. dnnffi takes them as they are.
- ``device.empty`` is the allocator: each result of dnnffi is an `Array` of the framework.
- The weights are one flat array, which dnnffi reads and the optimizer writes.
- ``ctx.backward`` gives the gradients, which are arrays of the framework too.

The network learns to remember: x is a sequence of random numbers, and the target is the first one.
On the CPU it needs no GPU, so that tests of a framework can run anywhere.
"""

from __future__ import annotations

import argparse
from math import prod

import numpy as np
from command_line import count  # examples/command_line.py
from threadpoolctl import threadpool_limits

import dnnffi

KERNELS = r"""
#define INDEX (blockIdx.x * (long long)blockDim.x + threadIdx.x)

// out = alpha * a + beta * b; b of size_b elements is repeated
extern "C" __global__ void combine(float *out, const float *a, const float *b, double alpha,
                                   double beta, long long size, long long size_b)
{
    long long i = INDEX;
    if (i < size) out[i] = (float)(alpha * a[i] + beta * b[i % size_b]);
}

// out = a * b, element by element
extern "C" __global__ void multiply(float *out, const float *a, const float *b, long long size)
{
    long long i = INDEX;
    if (i < size) out[i] = a[i] * b[i];
}

// out [M, N] = sum over k of a[m, k] * b[k, n], each by its strides in elements
extern "C" __global__ void matmul(float *out, const float *a, const float *b, long long M,
                                  long long N, long long K, long long a_m, long long a_k,
                                  long long b_k, long long b_n)
{
    long long i = INDEX;
    if (i >= M * N) return;
    double sum = 0;
    for (long long k = 0; k < K; k++) sum += a[i / N * a_m + k * a_k] * b[k * b_k + i % N * b_n];
    out[i] = (float)sum;
}
"""


class Array:
    """Memory of a device with a shape and a dtype. It owns the memory, or shares it with a view."""

    def __init__(self, device, memory, shape, dtype):
        self.device, self.memory, self.shape, self.dtype = device, memory, shape, dtype
        self.size = prod(shape)

    def reshape(self, *shape):
        """Return a view of the same memory."""
        return type(self)(self.device, self.memory, shape, self.dtype)

    def _interface(self):
        typestr = np.dtype(self.dtype).str
        data = self.memory.address, False  # not read-only
        return {"shape": self.shape, "typestr": typestr, "data": data, "version": 3}


class CpuArray(Array):
    """An array on the host."""

    @property
    def __array_interface__(self):
        return self._interface()


class GpuArray(Array):
    """An array in device memory."""

    @property
    def __cuda_array_interface__(self):
        return self._interface()


class CpuMemory:
    """Memory of the host."""

    def __init__(self, nbytes):
        self._bytes = np.empty(max(nbytes, 1), np.uint8)
        self.address = self._bytes.ctypes.data


class GpuMemory:
    """Memory of a device, freed with this object, in the order of the stream."""

    def __init__(self, driver, nbytes):
        self._driver = driver
        self.address = driver.allocate(nbytes)

    def __del__(self):
        if hasattr(self, "address"):
            self._driver.free(self.address)


class Cpu:
    """Arrays on the host, computed by NumPy."""

    backend = "reference"

    def empty(self, shape, dtype="float32"):
        """Return a new array: the allocator that dnnffi is given."""
        memory = CpuMemory(prod(shape) * np.dtype(dtype).itemsize)
        return CpuArray(self, memory, tuple(shape), dtype)

    def array(self, values):
        """Return a copy of a NumPy array."""
        made = self.empty(values.shape, values.dtype.name)
        np.asarray(made)[...] = values
        return made

    def numpy(self, array):
        """Return a copy of an array as one of NumPy."""
        return np.array(array)

    def combine(self, out, a, b, alpha=1.0, beta=1.0):
        """Write alpha * a + beta * b to ``out``; b is repeated over the first dimensions of a."""
        rows = np.asarray(a).reshape(-1, b.size)
        np.asarray(out).reshape(-1, b.size)[...] = alpha * rows + beta * np.asarray(b).reshape(-1)

    def multiply(self, out, a, b):
        """Write a * b to ``out``."""
        np.multiply(a, b, out=np.asarray(out))

    def matmul(self, out, a, b, transpose_a=False, transpose_b=False):
        """Write the product of two matrices, each transposed or not, to ``out``."""
        left, right = np.asarray(a), np.asarray(b)
        np.matmul(
            left.T if transpose_a else left,
            right.T if transpose_b else right,
            out=np.asarray(out),
        )


class Gpu:
    """Arrays in the memory of an NVIDIA GPU, computed by kernels of the framework."""

    backend = "cudnn"

    def __init__(self, driver):
        self._driver = driver
        self._kernels = driver.kernels(KERNELS, ("combine", "multiply", "matmul"))

    def empty(self, shape, dtype="float32"):
        """Return a new array: the allocator that dnnffi is given."""
        memory = GpuMemory(self._driver, prod(shape) * np.dtype(dtype).itemsize)
        return GpuArray(self, memory, tuple(shape), dtype)

    def array(self, values):
        """Return a copy of a NumPy array."""
        made = self.empty(values.shape, values.dtype.name)
        self._driver.upload(made.memory.address, np.ascontiguousarray(values))
        return made

    def numpy(self, array):
        """Return a copy of an array as one of NumPy."""
        return self._driver.download(array.memory.address, array.shape, array.dtype)

    def combine(self, out, a, b, alpha=1.0, beta=1.0):
        """Write alpha * a + beta * b to ``out``; b is repeated over the first dimensions of a."""
        self._launch("combine", out, a, b, float(alpha), float(beta), a.size, b.size)

    def multiply(self, out, a, b):
        """Write a * b to ``out``."""
        self._launch("multiply", out, a, b, a.size)

    def matmul(self, out, a, b, transpose_a=False, transpose_b=False):
        """Write the product of two matrices, each transposed or not, to ``out``."""
        (M, N), K = out.shape, a.shape[0 if transpose_a else 1]
        strides_a = (1, a.shape[1]) if transpose_a else (a.shape[1], 1)
        strides_b = (1, b.shape[1]) if transpose_b else (b.shape[1], 1)
        self._launch("matmul", out, a, b, M, N, K, *strides_a, *strides_b)

    def _launch(self, name, out, a, b, *numbers):
        addresses = (array.memory.address for array in (out, a, b))
        self._kernels[name](out.size, *addresses, *numbers)


class Tape:
    """Operations in the order in which they ran, and the way back through them."""

    def __init__(self, device):
        self._device = device
        self._steps = []  # (results, inputs, function of the results' gradients)

    def add(self, a, b):
        """Return a + b; b is repeated over the first dimensions of a."""
        out = self._device.empty(a.shape)
        self._device.combine(out, a, b)
        return self._record(out, (a, b), lambda d: (d, self._column_sums(d, b)))

    def scale(self, a, factor):
        """factor * a."""
        out = self._scaled(a, factor)
        return self._record(out, (a,), lambda d: (self._scaled(d, factor),))

    def multiply(self, a, b):
        """Return a * b, element by element."""
        return self._record(
            self._product(a, b), (a, b), lambda d: (self._product(d, b), self._product(d, a))
        )

    def matmul(self, a, b):
        """Return a [M, K] @ b [K, N]."""
        (M, K), N = a.shape, b.shape[1]

        def backward(d):
            da = self._matmul((M, K), d, b, transpose_b=True)
            return da, self._matmul((K, N), a, d, transpose_a=True)

        return self._record(self._matmul((M, N), a, b), (a, b), backward)

    def sum(self, a):
        """Return the sum of all elements, [1, 1]."""
        ones = self._ones(a.size)
        flat = self.reshape(a, 1, a.size)
        return self.matmul(flat, ones)

    def reshape(self, a, *shape):
        """Return the same elements in another shape."""
        return self._record(a.reshape(*shape), (a,), lambda d: (d.reshape(*a.shape),))

    def lstm(self, x, weights, spec):
        """y and h_n of an LSTM over x [T, B, I], by dnnffi.

        ``weights`` is the flat array of the network ``spec``, in cuDNN's layout.
        """
        device = self._device
        y, (h_n, _), ctx = dnnffi.lstm_forward(
            x,
            None,
            dnnffi.RNNWeights(weights, spec),
            backend=device.backend,
            options={"allocator": device.empty},
        )

        def backward(dy, dh_n):
            gradients = ctx.backward(dy, (dh_n, None), need=("x", "weights"))
            return gradients.x, gradients.weights.flat

        return self._record((y, h_n), (x, weights), backward)

    def gradients(self, loss, parameters):
        """Return the gradients of ``loss``, one element, by each of ``parameters``.

        The tape is spent: each step is dropped as soon as its gradients are known, so that its
        memory can be used again.
        """
        found = {id(loss): self._ones(1)}
        while self._steps:
            results, inputs, backward = self._steps.pop()
            given = [found.pop(id(result), None) for result in results]
            if all(gradient is None for gradient in given):
                continue
            for array, gradient in zip(inputs, backward(*given), strict=True):
                before = found.get(id(array))
                if before is not None:
                    gradient = self._sum_of(before, gradient)
                found[id(array)] = gradient
        return [found[id(parameter)] for parameter in parameters]

    def _record(self, results, inputs, backward):
        outputs = results if isinstance(results, tuple) else (results,)
        self._steps.append((outputs, inputs, backward))
        return results

    def _ones(self, size):
        return self._device.array(np.ones((size, 1), "float32"))

    def _sum_of(self, a, b):
        out = self._device.empty(a.shape)
        self._device.combine(out, a, b)
        return out

    def _scaled(self, a, factor):
        out = self._device.empty(a.shape)
        self._device.combine(out, a, a, factor, 0.0)
        return out

    def _product(self, a, b):
        out = self._device.empty(a.shape)
        self._device.multiply(out, a, b)
        return out

    def _matmul(self, shape, a, b, **transposed):
        out = self._device.empty(shape)
        self._device.matmul(out, a, b, **transposed)
        return out

    def _column_sums(self, d, like):
        """Return the gradient of an array ``like`` that was repeated to the shape of d."""
        if d.size == like.size:
            return d
        rows = d.size // like.size
        matrix, ones = d.reshape(rows, like.size), self._ones(rows)
        return self._matmul((1, like.size), ones, matrix, transpose_a=True).reshape(*like.shape)


class SGD:
    """Gradient descent with momentum, in place."""

    def __init__(self, device, parameters, rate, momentum=0.9):
        self._device, self._parameters = device, parameters
        self._rate, self._momentum = rate, momentum
        self._speeds = [device.array(np.zeros(p.shape, "float32")) for p in parameters]

    def step(self, gradients):
        """Change the parameters along their gradients."""
        for parameter, speed, gradient in zip(
            self._parameters, self._speeds, gradients, strict=True
        ):
            self._device.combine(speed, speed, gradient, self._momentum, 1.0)
            self._device.combine(parameter, parameter, speed, 1.0, -self._rate)


class Model:
    """An LSTM and a linear layer on its last state: [T, B, 1] to [B, 1]."""

    def __init__(self, device, hidden, rng):
        self.spec = dnnffi.RNNSpec(mode="lstm", input_size=1, hidden_size=hidden)
        flat = dnnffi.RNNWeights.random(self.spec, rng).flat
        linear = rng.uniform(-1, 1, (hidden, 1)).astype("float32") / hidden**0.5
        self.parameters = [
            device.array(values) for values in (flat, linear, np.zeros((1, 1), "float32"))
        ]

    def loss(self, tape, x, target):
        """Return the mean squared error, [1, 1]."""
        weights, linear, bias = self.parameters
        _, h_n = tape.lstm(x, weights, self.spec)  # h_n is [1, B, H]
        last = tape.reshape(h_n, *h_n.shape[1:])
        found = tape.add(tape.matmul(last, linear), bias)
        error = tape.add(found, tape.scale(target, -1.0))
        return tape.scale(tape.sum(tape.multiply(error, error)), 1 / target.size)


def train(device, steps, hidden=16, batch=32, length=6, rate=0.05, seed=0):
    """Train for ``steps`` steps; yields the loss of each."""
    rng = np.random.default_rng(seed)
    model = Model(device, hidden, rng)
    optimizer = SGD(device, model.parameters, rate)
    for _ in range(steps):
        values = rng.uniform(-1, 1, (length, batch, 1)).astype("float32")
        tape = Tape(device)
        loss = model.loss(tape, device.array(values), device.array(values[0]))
        optimizer.step(tape.gradients(loss, model.parameters))
        yield device.numpy(loss).item()


def open_device(name):
    """Return the device of this name."""
    if name == "cpu":
        return Cpu()
    from cuda_driver import CudaDriver  # examples/cuda_driver.py

    return Gpu(CudaDriver())


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="default: cpu")
    parser.add_argument("--steps", type=count, default=400, help="number of training steps")
    options = parser.parse_args()
    losses = list(train(open_device(options.device), options.steps))
    first, last = np.mean(losses[:10]), np.mean(losses[-10:])
    print(f"{options.steps} steps on the {options.device}")
    print(f"loss {first:.4f} in the first 10 steps, {last:.4f} in the last 10")
    if not last < 0.2 * first:
        raise SystemExit("the loss did not fall to a fifth")


if __name__ == "__main__":
    with threadpool_limits(limits=1):  # small products are faster on one thread
        main()
