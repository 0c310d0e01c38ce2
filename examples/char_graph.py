"""Train a character-level LSTM with each training step as one CUDA graph.

    python examples/char_graph.py            # on a GPU: the same training, eager and as a graph
    python examples/char_graph.py --eager    # without a graph; on NumPy if no GPU is found

A step consists of one-hot characters, the forward pass of the LSTM, softmax cross-entropy, the
backward pass, clipping and Adam. `RNNPlan.capture` records the work that a step enqueues, and a
launch enqueues all of it again. So a step reads and writes the same arrays each time, and decides
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
from char_lstm import (  # examples/char_lstm.py
    Adam,
    Alphabet,
    CharLSTM,
    clip_by_norm,
    read_text,
    windows,
)
from command_line import HELP, count, gpu_problem  # examples/command_line.py

import dnnffi

RATE = 4e-3
CHARACTERS = 2_000_000
WARM_UP = 10
SIZES = {"steps": 500, "hidden": 256, "layers": 2, "batch": 32, "window": 64}
SIZES_ON_NUMPY = {"steps": 40, "hidden": 64, "layers": 1, "batch": 16, "window": 32}


class Training:
    """The model and all arrays that a step reads or writes."""

    def __init__(self, xp, backend, alphabet, options):
        spec = dnnffi.RNNSpec(
            mode="lstm",
            input_size=len(alphabet),
            hidden_size=options.hidden,
            num_layers=options.layers,
        )
        self.model = CharLSTM(xp, spec, backend)
        # Tuned now, so that the capture records the candidate that is fastest in a graph.
        self.plan = dnnffi.RNNPlan(
            spec,
            batch=options.batch,
            steps=options.window,
            training=True,
            options={"tune": "now"},
        )
        self.adam = Adam(xp, self.model.parameters, RATE)
        self.inputs, self.targets = xp.zeros((2, options.window, options.batch), "int32")
        self.state = tuple(xp.zeros((2, *spec.h_shape(options.batch)), spec.dtype))

    def load(self, inputs, targets, restarts):
        """Copy the next window into the arrays that the step reads."""
        self.inputs[...] = inputs
        self.targets[...] = targets
        if restarts:
            for state in self.state:
                state.fill(0)

    def step(self):
        """Train on the loaded window and return its loss in bits per character."""
        model, plan = self.model, self.plan
        y, state = plan.forward(model.embed(self.inputs), self.state, model.rnn)
        loss, dy, gradients = model.head(y, self.targets, dnnffi.matmul)
        plan.backward_data(dy)
        gradients = [plan.backward_weights().flat, *gradients]
        clip_by_norm(model.xp, gradients, 1.0)
        self.adam.step(gradients)
        for old, new in zip(self.state, state, strict=True):
            old[...] = new
        return loss


def train(training, walk, steps, as_graph):
    """Return the losses of all steps, and the steps per second after the first `WARM_UP`."""
    step, losses = training.step, []
    if as_graph:
        training.load(*next(walk))
        step = training.plan.capture(step).launch  # the capture trains on this window once
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
    parser.add_argument(
        "--eager", action="store_true", help="run the steps one by one, without a graph"
    )
    parser.add_argument("--steps", type=count, help="number of steps that are timed")
    parser.add_argument("--text", type=Path, help="text to train on (default: Python's source)")
    for name in ("hidden", "layers", "batch", "window"):
        parser.add_argument(f"--{name}", type=count, help=HELP[name])
    problem = gpu_problem()
    sizes = SIZES_ON_NUMPY if problem else SIZES
    parser.set_defaults(**sizes)
    options = parser.parse_args(arguments)

    if problem and not options.eager:
        print(f"A CUDA graph needs a GPU that cuDNN can use: {problem}. Try --eager.")
        return 1
    xp, backend = np, "reference"
    if not problem:
        import cupy as xp

        backend = "cudnn"
    text, source = read_text(options.text, CHARACTERS)
    alphabet = Alphabet(text)
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
