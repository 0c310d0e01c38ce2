"""dnnffi on the real libMIOpen and arrays that it does not know; what tests ask of it."""

from __future__ import annotations

import gc
import re
from collections import Counter
from contextlib import contextmanager

from gfx1100 import joint
from gfx1100.hip_arrays import DlpackArray

from dnnffi.backends.miopen import library as miopen
from dnnffi.backends.vendor.handle import close_handles
from dnnffi.convolution.backend import conv_backends
from dnnffi.foreign import device_array, using
from dnnffi.rnn.backend import rnn_backends

LAUNCHES = b"launch"
_ON_ARRAYS = (
    *("miopenRNN", "miopenConvolution", "miopenFind", "miopenExecute", "miopenActivationForward"),
    *("miopenSetTensor", "miopenOpTensor"),
)
"""How the names of functions begin that take arrays; those of descriptors end with that word."""


class Watched:
    """libMIOpen's functions, counted; one call can be made to fail without being made.

    Functions that destroy never fail: who calls them has nobody to tell.
    """

    def __init__(self, lib):
        self._lib = lib
        self._functions = {}
        self.calls = Counter()
        self.fault = None

    def fail(self, nth, status):
        """Let the n-th call from now return ``status``."""
        self.fault, self.failed = [nth, status], None

    def __getattr__(self, name):
        if name not in self._functions:
            self._functions[name] = self._watched(name, getattr(self._lib, name))
        return self._functions[name]

    def _watched(self, name, function):
        if name == "miopenGetErrorString":
            return function

        def call(*arguments):
            if self.fault and "Destroy" not in name:
                self.fault[0] -= 1
                if self.fault[0] == 0:
                    status, self.fault, self.failed = self.fault[1], None, name
                    return status
            self.calls[name] += 1
            return function(*arguments)

        return call

    def live(self):
        """Handles, descriptors and plans that were made and not destroyed, by kind."""
        kinds = {name.removeprefix("miopenCreate") for name in self.calls if "Create" in name}
        kinds = {kind for kind in kinds if not re.match("Op[A-Z]", kind)}  # of a fusion plan
        alive = {
            kind or "Handle": self.calls[f"miopenCreate{kind}"] - self.calls[f"miopenDestroy{kind}"]
            for kind in kinds
        }
        return {kind: count for kind, count in alive.items() if count}


class Embedded:
    """The library over `dnnffi.foreign`, an allocator, and the device's controls."""

    def __init__(self, hip, real):
        self.hip = hip
        self.watched = Watched(real.lib)
        self.base = miopen.Library(self.watched, real.path, real.found_via)
        self.library = self.base.without_cupy()
        self.asarray = DlpackArray.of
        self.options = {"allocator": DlpackArray.empty}

    @property
    def rnn(self):
        """What the backend does for networks; None before its first use."""
        return self._used(rnn_backends.used())

    @property
    def conv(self):
        """What the backend does for convolutions, likewise."""
        return self._used(conv_backends.used())

    def _used(self, backends):
        found = (one for one in backends if getattr(one, "library", None) is self.library)
        return next(found, None)

    def device_array(self, values):
        """An array as executors take it."""
        return device_array("a test's array", self.asarray(values))

    def reached(self):
        """How often the library was called with arrays, and the device launched anything."""
        with_arrays = {
            name: count
            for name, count in self.watched.calls.items()
            if name.startswith(_ON_ARRAYS) and not name.endswith("Descriptor")
        }
        return with_arrays, self.hip.gfx1100_calls(LAUNCHES)

    def forget(self):
        """Let go of everything that is only cached, the thread's handle too."""
        if self.rnn is not None:
            self.rnn.plans.clear()
            self.rnn._default_states.clear()
            self.rnn.resources.workspaces.clear()
        if self.conv is not None:
            self.conv.clear()
        gc.collect()
        close_handles(self.library)
        gc.collect()


@contextmanager
def opened(hip):
    """A fresh library; at the end nothing is left of it."""
    joint.install()
    joint.failures.clear()
    embedded = Embedded(hip, miopen.load())
    gc.freeze()  # tests collect garbage many times, and need not go through all that is imported
    try:
        with miopen.using(embedded.base), using(embedded.options["allocator"]):
            yield embedded
            embedded.forget()
    finally:
        gc.unfreeze()
    assert embedded.watched.live() == {}
    assert joint.failures == []
