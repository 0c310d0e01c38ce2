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
from dnnffi.backends.cudnn.entry import CUDNN
from dnnffi.jax.convolution.call import in_memory
from dnnffi.jax.convolution.engine import CudnnEngine
from dnnffi.jax.convolution.handlers import Handlers as ConvHandlers
from dnnffi.jax.rnn.engine import VendorEngine
from dnnffi.jax.rnn.handlers import Handlers
from dnnffi.spec.problem import BATCH_MAJOR
from dnnffi.testing import conv_inputs, conv_keywords
from dnnffi.testing.rnn import inputs

__all__ = ["TOLERANCES"]

ITEMS = {4: 4, 6: 1, 10: 2, 11: 4, 12: 8, 16: 2}  # XLA_FFI_DataType: bytes of an element


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
    """The handlers of networks, on the stand-in."""

    def __init__(self, host):
        super().__init__(host, lambda: VendorEngine(CUDNN, host.library))

    def executors(self):
        return self._executors.values()


class OwnHandlers(Told, Handlers):
    """Handlers of networks on dnnffi's own kernels, which the memory of the stand-in emulates."""

    def __init__(self, host):
        super().__init__(host, lambda: EmulatedEngine(CUDNN, host.library))

    def executors(self):
        return self._executors.values()

    def close(self):
        super().close()
        for kept in (self._executors, *self._prepared.values()):
            kept.clear()
        self.engine._candidates.clear()


class EmulatedEngine(VendorEngine):
    """An engine whose executors run under the limits of the emulation."""

    def make(self, problem, candidate):
        return EmulatedExecutor(super().make(problem, candidate))


class EmulatedExecutor:
    """An executor that runs one call at a time, with an aligned workspace.

    XLA has several threads, the emulated device one. cuBLASLt's stand-in takes a workspace at a
    multiple of 256 bytes, and XLA on the host aligns to less.
    """

    lock = threading.Lock()

    def __init__(self, executor):
        self.executor = executor
        self.workspace_bytes = executor.workspace_bytes + 256

    def __getattr__(self, name):
        return getattr(self.executor, name)

    def forward(self, launch, at):
        with self.lock:
            self.executor.forward(launch, _aligned(at))

    def backward_data(self, launch, at):
        with self.lock:
            self.executor.backward_data(launch, _aligned(at))

    def backward(self, launch, data, weights):
        with self.lock:
            self.executor.backward(launch, _aligned(data), _aligned(weights))


def _aligned(at):
    return at._replace(workspace=-(-at.workspace // 256) * 256)


class StandinConvHandlers(Told, ConvHandlers):
    """The handlers of convolutions, on the stand-in, with a tuner if one is given."""

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


class ResetNetwork(NamedTuple):
    """A network with resets, as functions of its arrays."""

    problem: dnnffi.RNNProblem
    resets: object
    arrays: tuple  # x, hx, weights, reset_to

    @property
    def spec(self):
        return self.problem.spec

    def run(self, implementation, x, hx, weights, reset_to, resets=None, **keywords):
        """Return y and the last states by an implementation."""
        given = {
            "batch_first": self.problem.layout == BATCH_MAJOR,
            "lengths": self.problem.lengths,
            "options": self.problem.options,
            "resets": self.resets if resets is None else resets,
        }
        function = getattr(djax, self.spec.mode)
        given |= {"spec": self.spec, "layout": "cudnn", "reset_to": reset_to}
        return function(x, hx, weights, implementation=implementation, **given | keywords)

    def loss(self, implementation, *arrays, **keywords):
        """Return a value that depends on every element of every result."""
        total = 0.0
        for number, one in enumerate(
            jax.tree.leaves(self.run(implementation, *arrays, **keywords))
        ):
            waves = jnp.cos(number + jnp.arange(one.size)).reshape(one.shape)
            total += (one.astype("float32") * waves).sum()
        return total

    def results(self, implementation, **keywords):
        """Return the results and the gradients of all arrays."""
        loss = partial(self.loss, implementation, **keywords)
        gradients = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*self.arrays)
        return self.run(implementation, *self.arrays, **keywords), gradients


def reset_network(
    mode="lstm",
    *,
    rows=4,
    steps=5,
    batch=4,
    batch_first=False,
    lengths=None,
    seed=0,
    options=None,
    **spec,
):
    """Return a drawn network with resets at a third of the steps.

    ``rows`` is that of the states that replace others; 0 stands for zeros.
    """
    sizes = {"input_size": 3, "hidden_size": 4, "num_layers": 2} | spec
    made = dnnffi.RNNSpec(mode=mode, **sizes)
    problem = dnnffi.RNNProblem.dense(
        made,
        steps=steps,
        batch=batch,
        batch_first=batch_first,
        lengths=lengths,
        options=options or {"tune": "off"},
    )
    found = inputs(problem, seed)
    rng = np.random.default_rng(seed)
    resets = jnp.asarray(rng.random(problem.leading_shape) < 1 / 3)
    shapes = (made.h_shape(rows), made.c_shape(rows))[: 1 + made.has_cell]
    states = tuple(jnp.asarray(rng.standard_normal(shape), made.dtype) for shape in shapes)
    reset_to = (states if made.has_cell else states[0]) if rows else None
    flat = djax.pack([*map(jnp.asarray, found.weights)], made).flat
    hx = jax.tree.map(jnp.asarray, found.hx)
    return ResetNetwork(problem, resets, (jnp.asarray(found.x), hx, flat, reset_to))


class Convolution(NamedTuple):
    """A convolution as functions of x, w, then bias and residual where it has them."""

    problem: dnnffi.ConvProblem
    function: object
    loss: object
    arrays: tuple


def convolution(problem, implementation, *, seed=0, **more):
    """The forward call of a problem by an implementation, as a loss and its arrays."""
    found = conv_inputs(problem, seed)
    given = conv_keywords(problem) | {"layout": problem.layout, "options": problem.options}
    given |= {"implementation": implementation} | more
    names = [name for name in found._fields[:4] if getattr(found, name) is not None]

    def as_is(array):
        """Convert to a dense array of JAX, in the memory order of the problem's layout."""
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
    """Call ``times`` times in each of two threads at once, and return all results."""
    with ThreadPoolExecutor(2) as pool:
        threads = [pool.submit(lambda: [call() for _ in range(times)]) for _ in range(2)]
        return [result for thread in threads for result in thread.result()]
