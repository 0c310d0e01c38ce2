"""dnnffi's libcudnn over the stand-in, on host memory that looks like CuPy's."""

from __future__ import annotations

import gc
from contextlib import contextmanager

from dnnffi.backends.cudnn import library
from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.vendor.handle import close_handles
from dnnffi.convolution.backend import conv_backends
from dnnffi.rnn.backend import rnn_backends
from simulators.cuda.memory import RecordedLibrary, SimulatedMemory
from simulators.cudnn import build
from simulators.used_backends import UsedBackends


class Simulator(UsedBackends):
    """dnnffi's library object over the stand-in, its memory, and what tests ask of it."""

    def __init__(self, path):
        self.control_ffi, self.control = build.control(path)
        self.memory = SimulatedMemory(self.control)
        self.control.standin_reset()
        lib = RecordedLibrary(ffi.dlopen(str(path)), self.memory)
        self.library = library.Library(lib, str(path), "tests", memory=self.memory)

    def asarray(self, values):
        return self.memory.array(values)

    def live(self, kind="*"):
        return self.control.standin_live(kind.encode())

    def calls(self, function):
        return self.control.standin_calls(function.encode())

    @property
    def violation(self):
        return self.control_ffi.string(self.control.standin_last_violation()).decode()

    def forget_plans(self):
        """Release everything that is only cached."""
        for backend in (*rnn_backends.used(), *conv_backends.used()):
            if getattr(backend, "library", None) is self.library:
                backend.clear()
                backend.resources.graphs.user_captures.clear()
        if self.rnn is not None:
            self.rnn._default_states.clear()
        gc.collect()


@contextmanager
def open_simulator(path):
    """Yield a fresh library; at the end nothing is left of it, and no argument was wrong."""
    simulator = Simulator(path)
    with library.using(simulator.library):
        yield simulator
        violation = simulator.violation
        simulator.forget_plans()
        close_handles(simulator.library)
        gc.collect()
    assert violation == ""
    assert simulator.live() == 0
    assert simulator.control.standin_registered() == 0
