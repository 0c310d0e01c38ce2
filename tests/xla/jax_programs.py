"""Helpers of the JAX tests: networks with their arrays, comparisons, cuDNN's stand-in."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import conformance
import jax
import jax.numpy as jnp
import numpy as np
from comparison import TOLERANCES, assert_near

import dnnffi
from dnnffi import jax as djax
from dnnffi.backends.cudnn.record import CUDNN
from dnnffi.jax.convolution.call import in_memory
from dnnffi.jax.convolution.engine import CudnnEngine
from dnnffi.jax.convolution.handlers import Handlers as ConvHandlers
from dnnffi.jax.rnn.engine import VendorEngine
from dnnffi.jax.rnn.handlers import Handlers
from dnnffi.spec.problem import BATCH_MAJOR
from dnnffi.testing import conv_inputs, conv_keywords
from dnnffi.testing.rnn import inputs

__all__ = ["TOLERANCES"]

ITEMS = {6: 1, 10: 2, 11: 4, 12: 8, 16: 2}  # XLA_FFI_DataType: bytes of an element


class Told:
    """Handlers over cuDNN's stand-in, which is told of the buffers of each call."""

    numbers = itertools.count()

    def __init__(self, host, make_engine):
        self.host, self.lock, self.users = host, threading.Lock(), Counter()
        # A name of XLA's is registered once in a process.
        super().__init__(f"dnnffi_standin{next(self.numbers)}", "cpu", make_engine)

    def _handler(self, kind):
        handle, control = super()._handler(kind), self.host.control

        def registered(frame):
            found = {}
            for block, name in ((frame.call_frame.args, "args"), (frame.call_frame.rets, "rets")):
                for n in range(block.size):
                    buffer = getattr(block, name)[n]
                    size = ITEMS[buffer.dtype]
                    for axis in range(buffer.rank):
                        size *= buffer.dims[axis]
                    found[buffer.data] = size
            with self.lock:  # calls of several devices, or threads, may share a buffer
                for address, size in found.items():
                    self.users[address] += 1
                    if self.users[address] == 1:
                        control.standin_register(address, size)
            try:
                handle(frame)
            finally:
                with self.lock:
                    for address in found:
                        self.users[address] -= 1
                        if not self.users[address]:
                            control.standin_unregister(address)

        return registered

    def close(self):
        for executor in self.executors():
            executor.close()
        for handles in self.engine._handles.values():
            for handle in handles:
                handle.close()


class StandinHandlers(Told, Handlers):
    """Those of networks."""

    def __init__(self, host):
        super().__init__(host, lambda: VendorEngine(CUDNN, host.library))

    def executors(self):
        return self._executors.values()


class StandinConvHandlers(Told, ConvHandlers):
    """Those of convolutions; with a tuner where one is given."""

    def __init__(self, host, library=None, tuner=None):
        super().__init__(host, lambda: CudnnEngine(library or host.library, tuner))

    def executors(self):
        return self.engine._made.values()


class Network(NamedTuple):
    """A network as functions of x, states and weights, with their arrays."""

    problem: dnnffi.RNNProblem
    function: object
    loss: object
    arrays: tuple

    @property
    def x(self):
        return self.arrays[0]


def network(problem, implementation, *, seed=0, flat=True, with_states=True, **keywords):
    """The network of a problem by an implementation."""
    spec = problem.spec
    found = inputs(problem, seed)
    weights = [jnp.asarray(array) for array in found.weights]
    given = {
        "batch_first": problem.layout == BATCH_MAJOR,
        "lengths": problem.lengths,
        "options": problem.options,
        "implementation": implementation,
    }
    if flat:
        weights = djax.pack(weights, spec).flat
        given |= {"spec": spec, "layout": "cudnn"}
    else:
        given |= {"num_layers": spec.num_layers, "bidirectional": spec.bidirectional}
    function = partial(getattr(djax, spec.mode), **given | keywords)

    def loss(x, hx, weights):
        """Something that depends on every element of every result."""
        y, last = function(x, hx, weights)
        total = (y.astype("float32") * jnp.cos(jnp.arange(y.size).reshape(y.shape))).sum()
        for number, state in enumerate(jax.tree.leaves(last)):
            total += (
                state.astype("float32")
                * jnp.sin(number + jnp.arange(state.size)).reshape(state.shape)
            ).sum()
        return total

    hx = jax.tree.map(jnp.asarray, found.hx) if with_states else None
    return Network(problem, function, loss, (jnp.asarray(found.x), hx, weights))


class Convolution(NamedTuple):
    """A convolution as functions of x, w, then bias and residual where it has them."""

    problem: dnnffi.ConvProblem
    function: object
    loss: object
    arrays: tuple


def convolution(problem, implementation, *, seed=0, **more):
    """The forward of a problem by an implementation."""
    found = conv_inputs(problem, seed)
    given = conv_keywords(problem) | {"layout": problem.layout, "options": problem.options}
    given |= {"implementation": implementation} | more
    names = [name for name in found._fields[:4] if getattr(found, name) is not None]

    def as_is(array):
        """As JAX has it, whose arrays are dense."""
        last = problem.channels_last and array.ndim > 1
        return jnp.asarray(np.moveaxis(array, 1, -1) if last else array)

    def function(*arrays):
        return djax.conv(**dict(zip(names, arrays, strict=True)), **given)

    def loss(*arrays):
        # Squared: where ReLU's gradient jumps, that of the loss is 0.
        y = function(*arrays).astype("float32")
        assert y.shape == in_memory(problem.y_shape, problem)
        return (y * y * jnp.cos(jnp.arange(y.size).reshape(y.shape))).sum()

    return Convolution(
        problem, function, loss, tuple(as_is(getattr(found, name)) for name in names)
    )


def training_step(case, implementation):
    """A compiled function that gives all results of a case, as `conformance.Results`."""
    problem, arrays = case.problem, conformance.arrays_of(case)
    spec = problem.spec
    function = partial(
        getattr(djax, spec.mode),
        num_layers=spec.num_layers,
        bidirectional=spec.bidirectional,
        batch_first=problem.layout == BATCH_MAJOR,
        lengths=problem.lengths,
        options=problem.options,
        implementation=implementation,
    )

    def pair(h, c):
        return (h, c) if spec.has_cell else h

    @jax.jit
    def step(given):
        (y, last), pull = jax.vjp(
            function, given.x, pair(given.h_0, given.c_0), list(given.weights)
        )
        dx, dhx, dweights = pull((given.dy, pair(given.dh_n, given.dc_n)))
        h_n, c_n = last if spec.has_cell else (last, None)
        dh_0, dc_0 = dhx if spec.has_cell else (dhx, None)
        return conformance.Results(y, h_n, c_n, dx, dh_0, dc_0, dweights)

    given = jax.tree.map(jnp.asarray, arrays)
    return lambda: jax.tree.map(np.asarray, step(given))


def assert_close(found, expected, tolerance=TOLERANCES["float32"], *, terms=0.0):
    """The same tree of arrays, each as near as `assert_near` says."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_near(one, other, tolerance, terms=terms)


def in_two_threads(call, times):
    """What ``call()`` gives so many times in each of two threads at once."""
    with ThreadPoolExecutor(2) as pool:
        threads = [pool.submit(lambda: [call() for _ in range(times)]) for _ in range(2)]
        return [result for thread in threads for result in thread.result()]
