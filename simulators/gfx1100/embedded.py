"""dnnffi on the real libMIOpen with arrays that dnnffi does not know, and helpers for tests."""

from __future__ import annotations

import gc
import re
from collections import Counter
from contextlib import contextmanager

from dnnffi.backends.miopen import library as miopen
from dnnffi.backends.vendor.handle import close_handles
from dnnffi.foreign import device_array, using
from simulators.gfx1100 import joint
from simulators.gfx1100.hip_arrays import DlpackArray
from simulators.used_backends import UsedBackends

LAUNCHES = b"launch"
_ON_ARRAYS = (
    *("miopenRNN", "miopenConvolution", "miopenFind", "miopenExecute", "miopenActivationForward"),
    *("miopenSetTensor", "miopenOpTensor"),
)
"""Prefixes of functions that take arrays, except those whose name ends with ``Descriptor``."""


class Watched:
    """Wrapper of libMIOpen that counts calls, and can fail one call instead of making it.

    Functions that destroy objects never fail, because dnnffi cannot raise for them.
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
        """Return the number of live handles, descriptors and plans by kind."""
        kinds = {name.removeprefix("miopenCreate") for name in self.calls if "Create" in name}
        kinds = {kind for kind in kinds if not re.match("Op[A-Z]", kind)}  # of a fusion plan
        alive = {
            kind or "Handle": self.calls[f"miopenCreate{kind}"] - self.calls[f"miopenDestroy{kind}"]
            for kind in kinds
        }
        return {kind: count for kind, count in alive.items() if count}


class Embedded(UsedBackends):
    """The library over `dnnffi.foreign`, an allocator, and the device's controls."""

    def __init__(self, hip, real):
        self.hip = hip
        self.watched = Watched(real.lib)
        self.base = miopen.Library(self.watched, real.path, real.found_via)
        self.library = self.base.without_cupy()
        self.asarray = DlpackArray.of
        self.options = {"allocator": DlpackArray.empty}

    def device_array(self, values):
        """Return a new device array of ``values``, in the form that executors take."""
        return device_array("a test's array", self.asarray(values))

    def reached(self):
        """Return the numbers of library calls with arrays, by function, and of kernel launches."""
        with_arrays = {
            name: count
            for name, count in self.watched.calls.items()
            if name.startswith(_ON_ARRAYS) and not name.endswith("Descriptor")
        }
        return with_arrays, self.hip.gfx1100_calls(LAUNCHES)

    def forget(self):
        """Release all cached objects, including the thread's handle."""
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
    """Open a new `Embedded`. At the end it must have no live object and no failed launch."""
    joint.install()
    joint.failures.clear()
    embedded = Embedded(hip, miopen.load())
    gc.freeze()  # tests collect garbage many times, and need not traverse imported modules
    try:
        with miopen.using(embedded.base), using(embedded.options["allocator"]):
            yield embedded
            embedded.forget()
    finally:
        gc.unfreeze()
    assert embedded.watched.live() == {}
    assert joint.failures == []
