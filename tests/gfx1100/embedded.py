"""dnnffi on the real libMIOpen and arrays that it does not know; what tests ask of it."""

from __future__ import annotations

import gc
from contextlib import contextmanager

from gfx1100 import joint
from gfx1100.hip_arrays import DlpackArray

from dnnffi.backends.handle import close_handles
from dnnffi.backends.miopen.library import load
from dnnffi.foreign import device_array, using


class Embedded:
    """The library over `dnnffi.foreign`, an allocator, and the device's controls."""

    def __init__(self, hip):
        self.hip = hip
        self.library = load().without_cupy()
        self.asarray = DlpackArray.of
        self.options = {"allocator": DlpackArray.empty}

    def device_array(self, values):
        """An array as executors take it."""
        return device_array("a test's array", self.asarray(values))

    def forget(self):
        """Let go of everything that is only cached, the thread's handle too."""
        if self.library.engine is not None:
            self.library.engine.plans.clear()
            self.library.engine._default_states.clear()
        gc.collect()
        close_handles(self.library)
        gc.collect()


@contextmanager
def opened(hip):
    joint.install()
    joint.failures.clear()
    embedded = Embedded(hip)
    with using(embedded.options["allocator"]):
        yield embedded
    embedded.forget()
    assert joint.failures == []
