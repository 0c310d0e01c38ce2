"""Train a residual block to do what another one does.

    python examples/resnet_block.py --steps 100

A block of two convolutions with a shortcut connection,

    h = relu(conv(x, w1) + b1)
    y = relu(conv(h, w2) + x + b2)

learns the outputs of a block with other weights ("the teacher") from random pictures. The forward
pass is two calls, with bias, residual and ReLU; the gradients are written out below. It runs on
cuDNN and CuPy arrays if a GPU is found, else on the reference and NumPy.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from command_line import count  # examples/command_line.py
from threadpoolctl import threadpool_limits

import dnnffi

SIZES = {"steps": 100, "channels": 16, "size": 16, "batch": 16}
SIZES_ON_NUMPY = {"steps": 60, "channels": 8, "size": 12, "batch": 8}


class Block:
    """Weights w1, w2 [C, C, 3, 3] and biases b1, b2 [C]; x and y are [N, C, H, W]."""

    def __init__(self, xp, channels, rng):
        shape = (channels, channels, 3, 3)
        scale = (2 / (channels * 9)) ** 0.5  # keeps the variance after a ReLU
        self.w1, self.w2 = (
            xp.asarray((rng.standard_normal(shape) * scale).astype("float32")) for _ in range(2)
        )
        self.b1, self.b2 = (xp.zeros(channels, "float32") for _ in range(2))

    @property
    def parameters(self):
        return [self.w1, self.b1, self.w2, self.b2]

    def forward(self, x):
        """Return the output, and what lies between: (y, h)."""
        h = dnnffi.conv(x, self.w1, self.b1, padding=1, activation="relu")
        y = dnnffi.conv(h, self.w2, self.b2, padding=1, residual=x, activation="relu")
        return y, h

    def gradients(self, x, h, y, dy):
        """Gradients of sum(dy * y): of x, and of the parameters in their order."""
        weights = self.w2.shape
        # ReLU lets the gradient pass where its output is positive.
        dy = dy * (y > 0)
        dw2 = dnnffi.conv_backward_weights(dy, h, weights, padding=1)
        dh = dnnffi.conv_backward_data(dy, self.w2, h.shape, padding=1)
        dh = dh * (h > 0)
        dw1 = dnnffi.conv_backward_weights(dh, x, weights, padding=1)
        dx = dnnffi.conv_backward_data(dh, self.w1, x.shape, padding=1)
        db1, db2 = dnnffi.conv_backward_bias(dh), dnnffi.conv_backward_bias(dy)
        return dx + dy, [dw1, db1, dw2, db2]  # dy: what came by the way around


def train(xp, steps, channels=16, size=16, batch=16, rate=0.02, momentum=0.9, seed=0):
    """Train for ``steps`` steps; yields the loss, half the mean squared error, of each."""
    rng = np.random.default_rng(seed)
    teacher, student = Block(xp, channels, rng), Block(xp, channels, rng)
    speeds = [xp.zeros_like(parameter) for parameter in student.parameters]
    for _ in range(steps):
        pictures = rng.standard_normal((batch, channels, size, size)).astype("float32")
        x = xp.asarray(pictures)
        target, _ = teacher.forward(x)
        y, h = student.forward(x)
        error = y - target
        _, gradients = student.gradients(x, h, y, error / (batch * size * size))
        for parameter, speed, gradient in zip(student.parameters, speeds, gradients, strict=True):
            speed *= momentum
            speed -= rate * gradient
            parameter += speed
        yield float((error * error).mean()) / 2


def arrays():
    """CuPy where it sees a GPU, else NumPy."""
    try:
        import cupy
    except ImportError:
        return np
    return cupy if cupy.cuda.is_available() else np


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    xp = arrays()
    sizes = dict(SIZES_ON_NUMPY if xp is np else SIZES)
    words = "number of training steps"
    parser.add_argument("--steps", type=count, default=sizes.pop("steps"), help=words)
    steps, size = parser.parse_args().steps, sizes["size"]
    print(
        f"A residual block of {sizes['channels']} channels, {sizes['batch']} pictures of {size} x "
        f"{size} a step, {steps} steps, on {xp.__name__}"
    )
    start = time.perf_counter()
    try:
        for step, loss in enumerate(train(xp, steps, **sizes), 1):
            if step == 1 or step % 20 == 0 or step == steps:
                print(f"step {step:4}  loss {loss:.5f}  {time.perf_counter() - start:5.1f} s")
    except KeyboardInterrupt:
        print("stopped")


if __name__ == "__main__":
    with threadpool_limits(limits=1):  # small products are faster on one thread
        main()
