"""Train the character model of ``python -m dnnffi demo`` with each step as one CUDA graph.

    python examples/char_graph.py            # on a GPU: the same training, eager and as a graph
    python examples/char_graph.py --eager    # without a graph; on NumPy if no GPU is found

A step consists of one-hot characters, the forward pass of the LSTM, softmax cross-entropy, the
backward pass, clipping and Adam. `RNNPlan.capture` records the work that a step enqueues, and a
launch enqueues all of it again. So a step reads and writes the same arrays every time, and decides
nothing on the host:

- A new window is copied into the arrays that the step reads, before the launch.
- The step copies the state after its window into the array from which the next step reads it.
- Adam counts its steps in an array: a Python number would keep its value of the capture.
- CuPy's own products refuse to run while a graph is captured, so `dnnffi.matmul` multiplies.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import dnnffi
from dnnffi.cli import probe
from dnnffi.cli.charmodel import Alphabet, CharModel, windows
from dnnffi.cli.command import COUNT
from dnnffi.cli.demo import read_text
from dnnffi.cli.learning import Adam, clip_by_norm
from dnnffi.device.cupy import import_cupy

RATE = 4e-3
CHARACTERS = 2_000_000
WARM_UP = 10
SIZES = {"steps": 500, "hidden": 256, "layers": 2, "batch": 32, "window": 64}
SIZES_ON_NUMPY = {"steps": 40, "hidden": 64, "layers": 1, "batch": 16, "window": 32}


class Training:
    """The model, and every array that a step reads or writes from one step to the next."""

    def __init__(self, xp, backend, alphabet, options):
        spec = dnnffi.RNNSpec(
            mode="lstm",
            input_size=len(alphabet),
            hidden_size=options.hidden,
            num_layers=options.layers,
        )
        self.model = CharModel(xp, spec, backend, np.random.default_rng(0))
        # Measured now: a capture is to record the candidate that is fastest in a graph.
        self.plan = dnnffi.RNNPlan(
            *(spec, options.batch, options.window),
            training=True,
            options={"tune": "now"},
        )
        self.adam = Adam(self.model.parameters, RATE)
        self.inputs, self.targets = xp.zeros((2, options.window, options.batch), "int32")
        self.state = tuple(xp.zeros((2, *spec.h_shape(options.batch)), spec.dtype))

    def load(self, inputs, targets, anew):
        """Put the next window where the step reads it."""
        self.inputs[...] = inputs
        self.targets[...] = targets
        if anew:
            for state in self.state:
                state.fill(0)

    def step(self):
        """Train on the window that was loaded; its loss in bits per character."""
        model, plan = self.model, self.plan
        y, state = plan.forward(model.embed(self.inputs), self.state, model.rnn)
        loss, dy, gradients = model.head(y, self.targets, dnnffi.matmul)
        plan.backward_data(dy)
        gradients = [plan.backward_weights().flat, *gradients]
        clip_by_norm(gradients, 1.0)
        self.adam.step(gradients)
        for old, new in zip(self.state, state, strict=True):
            old[...] = new
        return loss


def train(training, walk, steps, as_graph):
    """Return the losses of all steps, and the steps per second after the first `WARM_UP`."""
    step, losses = training.step, []
    if as_graph:
        training.load(*next(walk))
        step = training.plan.capture(step).launch  # has trained on that window once
    warm_up = min(WARM_UP, steps)
    for turn in range(warm_up + steps):
        if turn == warm_up:
            float(losses[-1])  # waits for the device
            start = time.perf_counter()
        training.load(*next(walk))
        losses.append(step().copy())
    float(losses[-1])
    seconds = time.perf_counter() - start
    return [float(loss) for loss in losses], steps / seconds


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--eager", action="store_true", help="step by step, without a graph")
    parser.add_argument("--steps", type=COUNT, help="steps that are timed")
    parser.add_argument("--text", type=Path, help="text to learn; else Python's standard library")
    for name in ("hidden", "layers", "batch", "window"):
        parser.add_argument(f"--{name}", type=COUNT)
    problem = probe.cudnn_problem()
    sizes = SIZES_ON_NUMPY if problem else SIZES
    parser.set_defaults(**sizes)
    options = parser.parse_args(arguments)

    if problem and not options.eager:
        print(f"A CUDA graph needs a GPU that cuDNN can use: {problem}. Try --eager.")
        return 1
    xp, backend = (np, "reference") if problem else (import_cupy(), "cudnn")
    text, source = read_text(options.text, CHARACTERS)
    alphabet = Alphabet.of(text)
    numbers = xp.asarray(alphabet.encode(text))
    print(f"{source}: {len(text):,} characters; {backend} on {xp.__name__}")
    print("Sizes:", ", ".join(f"--{name} {getattr(options, name)}" for name in sizes))
    for as_graph in (False,) if options.eager else (False, True):
        training = Training(xp, backend, alphabet, options)
        walk = windows(numbers, options.batch, options.window)
        losses, speed = train(training, walk, options.steps, as_graph)
        print(
            f"{'graph' if as_graph else 'eager'}: {len(losses)} steps, {losses[0]:.3f} -> "
            f"{np.mean(losses[-20:]):.3f} bits per character, {speed:,.1f} steps/s"
        )
        training.plan.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
