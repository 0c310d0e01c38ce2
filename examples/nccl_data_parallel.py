"""Train a character-level LSTM on several GPUs, with one process for each.

    python examples/nccl_data_parallel.py             # on all GPUs; on NumPy if none is found
    python examples/nccl_data_parallel.py --gpus 1    # on one: the same losses

The rows of text are divided among the processes, which start with the same weights. Each computes
the gradients of its rows into one flat array, followed by its loss. One all-reduce through CuPy's
NCCL sums these arrays over all processes, and each process makes the same step.
NCCL is needed for more than one GPU: ``pip install nvidia-nccl-cu13`` (CUDA 12: nvidia-nccl-cu12).
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from itertools import islice
from multiprocessing.connection import wait
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
SIZES = {"steps": 200, "batch": 256, "window": 100, "hidden": 512, "layers": 2}
SIZES_ON_NUMPY = {"steps": 40, "batch": 16, "window": 32, "hidden": 64, "layers": 1}


class Replica:
    """The model of one process, and the flat array that is summed over all processes.

    ``all_reduce(flat)`` replaces an array by its sum over the processes.
    """

    def __init__(self, xp, backend, spec, processes, all_reduce):
        self.model = CharLSTM(xp, spec, backend)
        self.processes, self.all_reduce = processes, all_reduce
        parameters = self.model.parameters
        ends = np.cumsum([parameter.size for parameter in parameters])
        self.flat = xp.zeros(int(ends[-1]) + 1, spec.dtype)
        self.gradients = [
            self.flat[end - parameter.size : end].reshape(parameter.shape)
            for parameter, end in zip(parameters, map(int, ends), strict=True)
        ]
        self.adam = Adam(xp, parameters, RATE)
        self.state = None

    def step(self, inputs, targets, restarts):
        """Train on rows of a window [T, B / processes]; return the loss of all rows, an array."""
        state = None if restarts else self.state
        loss, gradients, self.state = self.model.loss_and_gradients(inputs, targets, state)
        for mine, gradient in zip(self.gradients, gradients, strict=True):
            mine[...] = gradient
        self.flat[-1] = loss
        self.flat /= self.processes
        self.all_reduce(self.flat)
        clip_by_norm(self.model.xp, self.gradients, 1.0)
        self.adam.step(self.gradients)
        return self.flat[-1].copy()


def rows_of(rank, processes, batch):
    """Return the rows of a batch that a process trains on."""
    share = batch // processes
    return slice(rank * share, (rank + 1) * share)


def train(replica, walk, rows, steps):
    """Return the losses of all steps, and the steps per second after the first `WARM_UP`."""
    losses, warm_up = [], min(WARM_UP, steps - 1)
    for turn, (inputs, targets, restarts) in enumerate(islice(walk, steps)):
        if turn == warm_up:
            started = _waited(losses)
        losses.append(replica.step(inputs[:, rows], targets[:, rows], restarts))
    return [float(loss) for loss in losses], (steps - warm_up) / (_waited(losses) - started)


def _waited(losses):
    """Wait until the last of ``losses`` is computed and return the time."""
    if losses:
        float(losses[-1])
    return time.perf_counter()


def nccl_sum(rank, processes, identity):
    """Return a function that sums an array over the processes, in place, on CuPy's current stream.

    ``identity`` is the result of `cupy.cuda.nccl.get_unique_id` in one of the processes.
    """
    import cupy
    from cupy.cuda import nccl

    communicator = nccl.NcclCommunicator(processes, identity, rank)
    kinds = {"float32": nccl.NCCL_FLOAT32, "float16": nccl.NCCL_FLOAT16}

    def all_reduce(flat):
        at, stream = flat.data.ptr, cupy.cuda.get_current_stream().ptr
        kind = kinds[flat.dtype.name]
        communicator.allReduce(at, at, flat.size, kind, nccl.NCCL_SUM, stream)

    return all_reduce


def work(rank, processes, identity, options):
    """Train in one process of several; the first process prints the results."""
    text, origin = read_text(options.text, CHARACTERS)
    alphabet = Alphabet(text)
    spec = dnnffi.RNNSpec(
        mode="lstm",
        input_size=len(alphabet),
        hidden_size=options.hidden,
        num_layers=options.layers,
    )
    xp, backend = np, "reference"
    if options.gpus:
        import cupy as xp

        backend = "cudnn"
        xp.cuda.Device(rank).use()
    all_reduce = nccl_sum(rank, processes, identity) if processes > 1 else lambda flat: None
    replica = Replica(xp, backend, spec, processes, all_reduce)
    walk = windows(xp.asarray(alphabet.encode(text)), options.batch, options.window)
    rows = rows_of(rank, processes, options.batch)
    losses, rate = train(replica, walk, rows, options.steps)
    if rank == 0:
        where = f"{processes} GPU{'s' * (processes > 1)}" if options.gpus else "NumPy"
        print(f"{origin}; {where}; sizes: {options.sizes}")
        print(f"bits per character: {losses[0]:.4f} at first, {losses[-1]:.4f} after {len(losses)}")
        print(f"{rate:.1f} steps/s, {rate * options.batch:,.0f} sequences/s", flush=True)
    return losses


def follow(processes):
    """Wait for all processes; if one fails, end the others, which would wait for it forever."""
    running = {process.sentinel: process for process in processes}
    while running:
        for sentinel in wait(list(running)):
            done = running.pop(sentinel)
            done.join()
            if done.exitcode:
                for process in running.values():
                    process.terminate()
                return done.exitcode
    return 0


def parsed(arguments, present):
    """Return the options of the command line on a machine with ``present`` GPUs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, help="number of GPUs; default: all")
    parser.add_argument("--steps", type=count, help="number of training steps")
    parser.add_argument("--batch", type=count, help="rows of text on all GPUs")
    for name in ("window", "hidden", "layers"):
        parser.add_argument(f"--{name}", type=count, help=HELP[name])
    parser.add_argument("--text", type=Path, help="text to train on (default: Python's source)")
    sizes = SIZES if present else SIZES_ON_NUMPY
    parser.set_defaults(**sizes)
    options = parser.parse_args(arguments)
    if options.gpus is None:
        options.gpus = present
    elif not 0 < options.gpus <= present:
        parser.error(f"--gpus is {options.gpus}; {present} are present")
    options.sizes = ", ".join(f"--{name} {getattr(options, name)}" for name in sizes)
    if options.gpus and options.batch % options.gpus:
        parser.error(f"{options.batch} rows cannot be divided among {options.gpus} GPUs")
    return options


def main(arguments=None):
    problem = gpu_problem()
    present = 0
    if not problem:
        import cupy

        present = cupy.cuda.runtime.getDeviceCount()
    options = parsed(arguments, present)
    if problem:
        print(f"On NumPy, because there is no GPU that cuDNN can use: {problem}.")
    processes = max(options.gpus, 1)
    if processes == 1:
        work(0, 1, None, options)
        return 0
    from cupy.cuda import nccl

    if not hasattr(nccl, "get_unique_id"):  # CuPy has an empty module without NCCL
        print("CuPy finds no NCCL: pip install nvidia-nccl-cu13 (CUDA 12: nvidia-nccl-cu12)")
        return 1
    identity = nccl.get_unique_id()
    context = multiprocessing.get_context("spawn")
    started = []
    for rank in range(processes):
        process = context.Process(target=work, args=(rank, processes, identity, options))
        process.start()
        started.append(process)
    return follow(started)


if __name__ == "__main__":
    raise SystemExit(main())
