"""Threads, signals, forks and interrupts at once: ``python storm.py BACKEND SEED OPERATIONS``.

The threads first make the process's first calls while the main thread forks. Then each thread
makes a number of calls drawn from a seed, and compares their results. Some send signals, whose
handlers make calls in the main thread, interrupt another thread by a KeyboardInterrupt wherever it
is, or fork a child that makes calls. Ends well if all ends.

Signals and interrupts begin after the first calls: Python itself may leave a module half imported,
or its lock locked, where an exception ends its import.
"""

from __future__ import annotations

import ctypes
import faulthandler
import random
import signal
import sys
import threading
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

if __name__ == "__main__":
    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests), str(tests.parent)]

import numpy.random  # noqa: F401 - NumPy imports it at its first use, which Calls makes
import pytest
from stress.bounds import in_child
from stress.calls import Calls, assert_equal, on_host

import dnnffi
from dnnffi.errors import DnnffiError

THREADS = 3  # besides the main one
SECONDS = 120  # after which the stacks of a storm that hangs are shown


class Storm:
    """The state that threads share: random numbers, expected results, and the operations done."""

    def __init__(self, calls, seed):
        self.calls = calls
        self.seed = seed
        self.state = dnnffi.DropoutState(seed)
        self.names = ["lstm", "train", "plan_step", "conv", "conv_backward_weights", "conv_plan"]
        self.expected = {name: on_host(getattr(calls, name)()) for name in self.names}
        self.workers: list[threading.Thread] = []
        self.failed: list[BaseException] = []
        self.done = Counter()
        self.handler_draws = random.Random(seed)

    # The operations of a thread

    def call(self, rng):
        name = rng.choice(self.names)
        assert_equal(getattr(self.calls, name)(), self.expected[name])

    def train_on_the_state(self, rng):
        assert len(self.calls.train(0.5, self.state)) == 7

    def use_a_restored_state(self, rng):
        saved = self.state.save()
        assert saved["seed"] == self.seed
        first, second = (dnnffi.DropoutState.restore(saved) for _ in range(2))
        assert_equal(self.calls.train(0.5, first), on_host(self.calls.train(0.5, second)))

    def look(self, rng):
        assert all(min(held) >= 0 for held in dnnffi.held_memory().values())
        assert all(plan.report() for plan in dnnffi.cached_plans())

    def clear(self, rng):
        dnnffi.clear_plans()

    def signal(self, rng):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    def interrupt(self, rng):
        thread = rng.choice(self.workers)
        if thread.is_alive():
            interrupt = ctypes.py_object(KeyboardInterrupt)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), interrupt)

    def fork(self, rng):
        in_child(self.in_child)

    def in_child(self):
        """Check that the reference still works in the child, and that GPU calls raise an error."""
        dnnffi.held_memory()
        dnnffi.clear_plans()
        for name in self.names:
            if self.calls.backend == "reference":
                assert_equal(getattr(self.calls, name)(), self.expected[name])
            else:
                with pytest.raises(DnnffiError, match="forked"):
                    getattr(self.calls, name)()
        if self.calls.backend == "reference":
            assert len(self.calls.train(0.5, self.state)) == 7
            self.use_a_restored_state(None)

    USUAL = ("call", "train_on_the_state", "use_a_restored_state", "look", "clear")
    WEIGHTS = (8, 4, 2, 2, 1)

    def usual(self, rng):
        (what,) = rng.choices(self.USUAL, self.WEIGHTS)
        getattr(self, what)(rng)
        return what

    # The threads and handlers that run operations

    def work(self, rng, operations):
        for _ in operations:
            rare = rng.random()
            if rare < 0.08:
                self.signal(rng)
            elif rare < 0.16:
                self.interrupt(rng)
            else:
                self.done[self.usual(rng)] += 1

    def work_or_fail(self, number, operations):
        rng, left = random.Random(f"{self.seed} {number}"), iter(range(operations))
        while True:
            try:
                self.work(rng, left)
                return
            except KeyboardInterrupt:
                self.done["interrupted"] += 1
            except BaseException as error:
                self.failed.append(error)
                raise

    def handle(self, number, frame):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # not without end
        try:
            self.done[f"{self.usual(self.handler_draws)} in a handler"] += 1
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])

    def run(self, operations):
        signal.signal(signal.SIGUSR1, self.handle)
        rng = random.Random(self.seed)
        self.workers = [
            threading.Thread(target=self.work_or_fail, args=(number, operations), daemon=True)
            for number in range(THREADS)
        ]
        for thread in self.workers:
            thread.start()
        for number in range(operations):
            if number % 20 == 10:
                self.fork(rng)
                self.done["fork"] += 1
            else:
                self.done[self.usual(rng)] += 1
        for thread in self.workers:
            thread.join()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert not self.failed, self.failed
        dnnffi.clear_plans()
        for name, expected in self.expected.items():
            assert_equal(getattr(self.calls, name)(), expected)


def keeping(control):
    """Return an allocator that never frees.

    The stand-in would treat memory that an interrupted thread released as in use.
    """
    kept = []

    def allocate(nbytes):
        raw = (ctypes.c_char * nbytes)()
        kept.append(raw)
        control.standin_register(ctypes.addressof(raw), nbytes)
        return raw

    return allocate


def refuse_capture(record):
    raise RuntimeError("the stand-in's memory can record the calls of one thread only")


def call_on_the_reference(rng):
    """A call of a thread or child that may be the first of its process."""
    getattr(Calls("reference"), rng.choice(["lstm", "train_with_dropout", "plan_step", "conv"]))()


def first_calls(seed):
    """Fork from when threads begin with their first calls until they are done."""
    failed = []

    def work(number):
        try:
            call_on_the_reference(random.Random(f"{seed} {number}"))
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    forks = 0
    while forks == 0 or any(thread.is_alive() for thread in threads):
        in_child(lambda: call_on_the_reference(random.Random(seed)))
        forks += 1
    for thread in threads:
        thread.join()
    assert not failed, failed
    return forks


def main(backend, seed, operations):
    imported = [name for name in sys.modules if name.startswith("dnnffi.")]
    assert "dnnffi.rnn.functions" not in imported, "the first calls are to import it"
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    sys.setswitchinterval(1e-6)
    print(first_calls(seed), "fork in first calls")
    for name in dnnffi.__all__:
        getattr(dnnffi, name)
    if backend == "reference":
        storm = Storm(Calls("reference"), seed)
        storm.run(operations)
    else:
        from dnnffi.backends.cudnn import library
        from simulators.cudnn import build
        from simulators.cudnn.library import Simulator

        simulator = Simulator(build.build())
        simulator.memory._allocate = keeping(simulator.control)
        simulator.memory.capture = refuse_capture
        simulator.memory.scratch = nullcontext  # which counts the arrays of all threads
        with library.using(simulator.library):
            storm = Storm(Calls("cudnn", simulator.asarray), seed)
            storm.run(operations)
            assert simulator.violation == "", simulator.violation
    print(*(f"{count} {what}" for what, count in sorted(storm.done.items())), sep=", ")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
