"""A character-level LSTM, which three examples train. Not a program.

An LSTM reads one-hot characters [T, B, V], and a matrix computes scores of the next character from
its outputs. dnnffi computes the LSTM and its gradient; the rest is array code for NumPy and CuPy.

Symbols: T steps of a window, B rows of text, V characters of the alphabet, H hidden size.
"""

from __future__ import annotations

import sysconfig
from math import log
from operator import matmul
from pathlib import Path

import numpy as np

import dnnffi


def read_text(path, limit):
    """Return at most ``limit`` characters of a file, and its name.

    Without a file, the text is the source of Python's standard library.
    """
    if path is not None:
        try:
            return path.read_text(encoding="utf-8", errors="replace")[:limit], str(path)
        except OSError as error:
            raise SystemExit(f"The text {path} cannot be read: {error.strerror}") from None
    text = ""
    for source in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += source.read_text(encoding="utf-8", errors="replace")
        if len(text) >= limit:
            break
    return text[:limit], "Python's standard library"


class Alphabet:
    """The most frequent characters of a text, at most 127; number 0 stands for all others."""

    def __init__(self, text):
        characters, counts = np.unique(list(text), return_counts=True)
        known = np.sort(characters[np.argsort(-counts, kind="stable")[:127]])
        self.numbers = {character: number for number, character in enumerate(known, 1)}

    def __len__(self):
        """Return V."""
        return 1 + len(self.numbers)

    def encode(self, text):
        """Return the number of each character."""
        return np.array([self.numbers.get(character, 0) for character in text], "int32")


def windows(numbers, rows, steps):
    """Yield windows of a text without end: inputs [T, B], targets [T, B], and whether rows restart.

    The text is divided into rows. A window continues where the window before it ended, so the state
    is carried over; where the rows restart, the state is zero again.
    """
    length = (len(numbers) - 1) // rows
    if length < steps:
        raise SystemExit(f"The text is too short for {rows} rows of {steps} characters.")
    inputs, targets = (
        numbers[shift : shift + rows * length].reshape(rows, length).T.copy() for shift in (0, 1)
    )
    while True:
        for start in range(0, length - steps + 1, steps):
            window = slice(start, start + steps)
            yield inputs[window], targets[window], start == 0


class CharLSTM:
    """The model. ``parameters``: the flat weights of the LSTM, w_out [V, H] and b_out [V]."""

    def __init__(self, xp, spec, backend, seed=0):
        self.xp, self.spec, self.backend = xp, spec, backend
        # Drawn on the host, so that a seed gives the same weights on each backend.
        rng = np.random.default_rng(seed)
        drawn = dnnffi.RNNWeights.random(spec, rng, like="torch").arrays()
        layout = "cudnn" if backend == "cudnn" else "torch"
        self.rnn = dnnffi.RNNWeights.pack([xp.asarray(a) for a in drawn], spec, backend=layout)
        bound = spec.hidden_size**-0.5
        shape = spec.input_size, spec.hidden_size
        self.w_out = xp.asarray(rng.uniform(-bound, bound, shape).astype(spec.dtype))
        self.b_out = xp.zeros(spec.input_size, spec.dtype)
        self.parameters = [self.rnn.flat, self.w_out, self.b_out]
        self._one_hot = xp.eye(spec.input_size, dtype=spec.dtype)

    def embed(self, inputs):
        """Return one-hot characters [T, B, V], the LSTM's input."""
        return self._one_hot[inputs]

    def head(self, y, targets, product=matmul):
        """Return the loss in bits per character, and the gradients of y and of (w_out, b_out).

        The gradients are those of the loss in nats. ``product`` multiplies two matrices.
        """
        xp = self.xp
        outputs = y.reshape(-1, self.spec.hidden_size)  # [T*B, H]
        scores = product(outputs, self.w_out.T) + self.b_out  # [T*B, V]
        scores = scores - scores.max(axis=1, keepdims=True)
        exponentials = xp.exp(scores)
        sums = exponentials.sum(axis=1, keepdims=True)
        rows, right = xp.arange(targets.size), targets.reshape(-1)
        nats = (xp.log(sums[:, 0]) - scores[rows, right]).mean()
        d_scores = exponentials / sums  # (softmax - one-hot) / rows
        d_scores[rows, right] -= 1
        d_scores /= targets.size
        dy = product(d_scores, self.w_out).reshape(y.shape)
        return nats / log(2), dy, [product(d_scores.T, outputs), d_scores.sum(axis=0)]

    def loss_and_gradients(self, inputs, targets, state):
        """Return loss, gradients in the order of ``parameters``, and the state after the window."""
        y, state, ctx = dnnffi.lstm_forward(
            self.embed(inputs),
            state,
            self.rnn,
            num_layers=self.spec.num_layers,
            backend=self.backend,
        )
        loss, dy, gradients = self.head(y, targets)
        return loss, [ctx.backward(dy, need="weights").weights.flat, *gradients], state


class Adam:
    """Adam (Kingma and Ba, 2015), which changes the parameters in place."""

    def __init__(self, xp, parameters, rate, decays=(0.9, 0.99)):
        self.xp, self.parameters, self.rate, self.decays = xp, parameters, rate, decays
        # An array also counts in a CUDA graph, which repeats Python numbers of its capture.
        self._steps = xp.zeros((), "float32")
        self._means = [xp.zeros_like(parameter) for parameter in parameters]
        self._squares = [xp.zeros_like(parameter) for parameter in parameters]

    def step(self, gradients):
        """Change the parameters by one step."""
        first, second = self.decays
        self._steps += 1
        root = self.xp.sqrt(1 - second**self._steps)  # bias correction
        rate = self.rate * root / (1 - first**self._steps)
        for parameter, gradient, mean, square in zip(
            self.parameters, gradients, self._means, self._squares, strict=True
        ):
            mean += (1 - first) * (gradient - mean)
            square += (1 - second) * (gradient * gradient - square)
            parameter -= rate * mean / (self.xp.sqrt(square) + 1e-8)


def clip_by_norm(xp, gradients, limit):
    """Scale the gradients in place so that their joint norm is at most ``limit``."""
    norm = xp.sqrt(sum((gradient * gradient).sum() for gradient in gradients))
    scale = xp.minimum(1, limit / (norm + 1e-12))
    for gradient in gradients:
        gradient *= scale.astype(gradient.dtype)
