"""First calls of a process that has only imported dnnffi: ``python first_calls.py TASK ...``.

``points`` prints the modules that a first call imports, one per line. ``fork MODULE`` forks in the
main thread while another thread, in its first call, imports MODULE; the child makes a first call.
``unguarded BACKEND`` prints the modules that calls import without holding the lock that fork waits
for.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

if __name__ == "__main__":
    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests), str(tests.parent)]

import numpy as np
from stress.bounds import in_child

import dnnffi
from dnnffi.errors import DnnffiError


def first_call():
    """A network with dropout forward and backward, and a convolution, on the reference."""
    spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=2, num_layers=2)
    weights = dnnffi.RNNWeights(
        np.ones(dnnffi.weight_layout(spec, "torch").size, "f4"), spec, backend="torch"
    )
    y, _, context = dnnffi.gru_forward(
        *(np.ones((2, 2, 3), "f4"), None, weights),
        dropout=0.5,
        dropout_state=dnnffi.DropoutState(1),
    )
    context.backward(y)
    dnnffi.conv(np.ones((1, 2, 4)), np.ones((3, 2, 2)))


class Finder:
    """A finder of modules that finds none, and tells which ones are looked for."""

    def __init__(self, tell):
        self.tell = tell

    def find_spec(self, name, path=None, target=None):
        self.tell(name)


def points():
    found = []
    sys.meta_path.insert(0, Finder(found.append))
    first_call()
    print(*dict.fromkeys(found), sep="\n")


def fork(module):
    importing = threading.Event()
    sys.meta_path.insert(0, Finder(lambda name: name == module and importing.set()))
    thread = threading.Thread(target=first_call)
    thread.start()
    assert importing.wait(60)
    in_child(first_call)
    thread.join()


def unguarded(backend):
    from dnnffi.importing import import_lock

    found = []

    def hook(event, arguments):
        if event == "import" and not import_lock._is_owned():
            found.append(arguments[0])

    def make_calls(calls):
        for name in dnnffi.__all__:
            getattr(dnnffi, name)
        for name in ("lstm", "train_with_dropout", "plan_step", "conv", "conv_plan"):
            getattr(calls, name)()
        for name in ("conv_backward_data", "conv_backward_weights", "conv_backward_bias"):
            getattr(calls, name)()
        dnnffi.matmul(np.ones((2, 3)), np.ones((3, 2)))
        spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=2, dtype="bfloat16")
        weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        with TemporaryDirectory() as folder:
            for name in ("net.npz", "net.safetensors"):
                weights.save(f"{folder}/{name}")
                dnnffi.RNNWeights.load(f"{folder}/{name}")
        dnnffi.gru(np.ones((2, 2, 3), weights.flat.dtype), None, weights)
        spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=2)
        weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        for name in ("cudnn", "miopen", "vulkan"):
            with suppress(ImportError, TypeError, DnnffiError):  # there may be no library or device
                dnnffi.gru(np.ones((2, 2, 3), "f4"), None, weights, backend=name)
        dnnffi.cached_plans(), dnnffi.held_memory(), dnnffi.clear_plans()

    from stress.calls import Calls

    if backend == "reference":
        calls = Calls(backend)
        sys.addaudithook(hook)
        make_calls(calls)
    else:
        from simulators.cudnn import build
        from simulators.cudnn.library import open_simulator

        with open_simulator(build.build()) as simulator:
            calls = Calls(backend, simulator.asarray)
            sys.addaudithook(hook)
            make_calls(calls)
            vars(calls).clear()
    print(*found, sep="\n")


if __name__ == "__main__":
    os.environ["DNNFFI_CACHE_DIR"] = "off"
    {"points": points, "fork": fork, "unguarded": unguarded}[sys.argv[1]](*sys.argv[2:])
