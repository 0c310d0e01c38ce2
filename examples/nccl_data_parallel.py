"""Train the character model of ``python -m dnnffi demo`` on several GPUs, with one process each.

    python examples/nccl_data_parallel.py             # on all GPUs; on NumPy if none is found
    python examples/nccl_data_parallel.py --gpus 1    # on one: the same losses

The rows of text are divided among the processes, which begin with the same weights. Each computes
the gradients of its rows into one flat array, followed by its loss. One all-reduce through
CuPy's NCCL makes that the gradient and the loss of all rows, and each process takes the same step.
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
SIZES = {"steps": 200, "batch": 256, "window": 100, "hidden": 512, "layers": 2}
SIZES_ON_NUMPY = {"steps": 40, "batch": 16, "window": 32, "hidden": 64, "layers": 1}


class Replica:
    """The model of one process, and the flat array that is summed over all of them.

    ``all_reduce(flat)`` puts the sum over the processes in the place of an array.
    """

    def __init__(self, xp, backend, spec, processes, all_reduce):
        self.model = CharModel(xp, spec, backend, np.random.default_rng(0))
        self.processes, self.all_reduce = processes, all_reduce
        parameters = self.model.parameters
        ends = np.cumsum([parameter.size for parameter in parameters])
        self.flat = xp.zeros(int(ends[-1]) + 1, spec.dtype)
        self.gradients = [
            self.flat[end - parameter.size : end].reshape(parameter.shape)
            for parameter, end in zip(parameters, map(int, ends), strict=True)
        ]
        self.adam = Adam(parameters, RATE)
        self.state = None

    def step(self, inputs, targets, anew):
        """Train on rows of a window [T, B / processes]; the loss of all rows, an array."""
        state = None if anew else self.state
        loss, gradients, self.state = self.model.loss_and_gradients(inputs, targets, state)
        for mine, gradient in zip(self.gradients, gradients, strict=True):
            mine[...] = gradient
        self.flat[-1] = loss
        self.flat /= self.processes
        self.all_reduce(self.flat)
        clip_by_norm(self.gradients, 1.0)
        self.adam.step(self.gradients)
        return self.flat[-1].copy()


def rows_of(rank, processes, batch):
    """The rows of a batch that a process has."""
    share = batch // processes
    return slice(rank * share, (rank + 1) * share)


def train(replica, walk, rows, steps):
    """Return the losses of all steps, and the steps per second after the first `WARM_UP`."""
    losses, warm_up = [], min(WARM_UP, steps - 1)
    for turn, (inputs, targets, anew) in enumerate(islice(walk, steps)):
        if turn == warm_up:
            started = _waited(losses)
        losses.append(replica.step(inputs[:, rows], targets[:, rows], anew))
    return [float(loss) for loss in losses], (steps - warm_up) / (_waited(losses) - started)


def _waited(losses):
    """The time when the last of ``losses`` is there."""
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
    alphabet = Alphabet.of(text)
    spec = dnnffi.RNNSpec(
        mode="lstm",
        input_size=len(alphabet),
        hidden_size=options.hidden,
        num_layers=options.layers,
    )
    if options.gpus:
        xp, backend = import_cupy(), "cudnn"
        xp.cuda.Device(rank).use()
    else:
        xp, backend = np, "reference"
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
    """Wait for all of them; where one fails, end the others, which would wait for it for ever."""
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
    parser.add_argument("--gpus", type=int, help="how many; by default all")
    parser.add_argument("--steps", type=COUNT)
    parser.add_argument("--batch", type=COUNT, help="rows of text on all GPUs")
    for name in ("window", "hidden", "layers"):
        parser.add_argument(f"--{name}", type=COUNT)
    parser.add_argument("--text", type=Path, help="text to learn; else Python's standard library")
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
    problem = probe.cudnn_problem()
    present = 0 if problem else import_cupy().cuda.runtime.getDeviceCount()
    options = parsed(arguments, present)
    if problem:
        print(f"On NumPy, because there is no GPU that cuDNN can use: {problem}.")
    processes = max(options.gpus, 1)
    if processes == 1:
        work(0, 1, None, options)
        return 0
    from cupy.cuda import nccl

    if not hasattr(nccl, "get_unique_id"):  # the module is there, and empty
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
