"""Convolutions with an allocator, on the host: the path of a call to a backend, and back."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from stress import user_arrays
from stress.user_arrays import UserArray

import dnnffi
from dnnffi.backends import registry
from dnnffi.backends.conv_interface import SearchedSource
from dnnffi.backends.vendor.handle import close_handles
from dnnffi.convolution.reference_plan import ReferenceConvPlan
from dnnffi.device.external import DeviceArray
from dnnffi.device.external.use import current_allocator, current_stream
from dnnffi.reference import conv as reference

RANDOM = np.random.default_rng(0)
X, W, BIAS = (RANDOM.standard_normal(shape) for shape in ((2, 4, 5, 5), (6, 2, 3, 3), (6,)))
DY = RANDOM.standard_normal((2, 6, 3, 3))
CALLS = {
    "conv": (dnnffi.conv, (X, W, BIAS), {"residual": DY, "alpha": 0.5, "activation": "relu"}),
    "conv, nothing fused": (dnnffi.conv, (X, W), {}),
    "conv_backward_data": (dnnffi.conv_backward_data, (DY, W, X.shape), {}),
    "conv_backward_weights": (dnnffi.conv_backward_weights, (DY, X, W.shape), {}),
    "conv_transpose": (dnnffi.conv_transpose, (DY, W), {}),
    "conv_backward_bias": (dnnffi.conv_backward_bias, (DY,), {}),
}
GROUPS = {name: {} if name == "conv_backward_bias" else {"groups": 2} for name in CALLS}


class Executor:
    """The reference on a device that is the host."""

    workspace_bytes, fused, choice = 0, True, "the reference"

    def __init__(self, problem):
        self._problem = problem

    def run(self, launch, at):
        problem = self._problem
        dtype = np.dtype(problem.spec.dtype)

        def view(address, shape):
            size = int(np.prod(shape)) * dtype.itemsize
            data = np.frombuffer((ctypes.c_byte * size).from_address(address), dtype)
            return np.lib.stride_tricks.as_strided(data, shape, problem.strides(shape))

        shapes = zip(at, problem.argument_shapes, strict=False)
        arrays = [view(address, shape) if address else None for address, shape in shapes]
        view(at.result, problem.result_shape)[...] = ReferenceConvPlan(problem).run(*arrays)

    def close(self):
        pass


class Executors:
    """One executor."""

    def __init__(self, problem):
        self.problem = problem
        self._executors = iter([Executor(problem)])

    def __next__(self):
        return next(self._executors)

    def smaller(self, nbytes):
        return iter(())

    def close(self):
        pass


class Source(SearchedSource):
    """A source of these executors; ``streams`` are the current streams of the calls."""

    failures = ()

    def __init__(self, resources):
        self.resources = resources
        self.streams = []

    def executors(self, problem, launch):
        self.streams.append(current_stream())
        return Executors(problem)

    def search(self, problem, launch, scratch):
        raise NotImplementedError

    def backward_bias(self, dy, device):
        self.streams.append(current_stream())
        return moved(reference.backward_bias(dy.get()), self.resources.memory)

    def clear(self):
        pass


def moved(values, memory):
    made = memory.empty(values.shape, values.dtype)
    made.set(np.ascontiguousarray(values))
    return made


@pytest.fixture(autouse=True)
def arrays_of_users(monkeypatch):
    user_arrays.install(monkeypatch)


@pytest.fixture
def sources(simulator, monkeypatch):
    """The sources that were made: of a backend that takes an allocator, as MIOpen's does."""
    made = []

    def source(resources):
        made.append(Source(resources))
        return made[-1]

    record = registry.BACKENDS["cudnn"]._replace(convolutions=source)
    monkeypatch.setitem(registry.BACKENDS, "cudnn", record)
    monkeypatch.setitem(registry._BY_KIND, "cuda", record)
    yield made
    close_handles(simulator.library.without_cupy())


class Allocator:
    """A user's allocator; ``made`` are the arrays that it returned."""

    def __init__(self, simulator):
        self._allocate = simulator.memory._allocate
        self.made = []

    def __call__(self, shape, dtype):
        self.made.append(UserArray(self._allocate, shape, dtype))
        return self.made[-1]

    def array(self, value):
        """An argument in the user's memory."""
        return UserArray.of(self._allocate, value) if isinstance(value, np.ndarray) else value


def run(allocator, name, **options):
    """A call on the user's arrays."""
    function, arrays, keywords = CALLS[name]
    return function(
        *map(allocator.array, arrays),
        **{key: allocator.array(value) for key, value in keywords.items()},
        **GROUPS[name],
        backend="cudnn",
        options={"allocator": allocator, **options},
    )


@pytest.mark.parametrize("name", CALLS)
def test_the_result_is_what_the_allocator_made(simulator, sources, name):
    allocator = Allocator(simulator)
    function, arrays, keywords = CALLS[name]
    result = run(allocator, name)
    assert result is allocator.made[-1]
    np.testing.assert_allclose(result, function(*arrays, **keywords, **GROUPS[name]), rtol=1e-12)
    assert current_allocator() is None


def test_arrays_on_a_device_name_their_backend(simulator, sources):
    allocator = Allocator(simulator)
    x, w = allocator.array(X), allocator.array(W)
    x = DeviceArray(x, "cuda", 0, x.__cuda_array_interface__["data"][0], X.shape, X.dtype)
    result = dnnffi.conv(x, w, groups=2, options={"allocator": allocator})
    np.testing.assert_allclose(result, dnnffi.conv(X, W, groups=2), rtol=1e-12)


@pytest.mark.parametrize("name", ["conv", "conv_backward_bias"])
def test_a_call_runs_on_the_stream_of_the_options(simulator, sources, name):
    run(Allocator(simulator), name, stream=16)
    (source,) = sources
    assert source.streams == [16]


def test_without_a_batch_the_result_is_the_allocators(simulator, sources):
    allocator = Allocator(simulator)
    x, dy = allocator.array(X[:0]), allocator.array(DY[:0])
    options = {"groups": 2, "backend": "cudnn", "options": {"allocator": allocator}}
    assert dnnffi.conv(x, allocator.array(W), **options) is allocator.made[-1]
    assert allocator.made[-1].shape == (0, 6, 3, 3)
    gradient = dnnffi.conv_backward_weights(dy, x, W.shape, **options)
    assert gradient is allocator.made[-1]
    np.testing.assert_array_equal(gradient, np.zeros(W.shape))


@pytest.mark.parametrize("name", ["conv", "conv_backward_data", "conv_backward_bias"])
@pytest.mark.parametrize("option", [{"math": "exact"}, {"unknown": 1}], ids=["math", "unknown"])
def test_the_other_options_are_checked(simulator, sources, name, option):
    with pytest.raises(ValueError, match=rf"^options.*{next(iter(option))}"):
        run(Allocator(simulator), name, **option)


def test_the_gradient_of_the_bias_is_of_an_array_with_channels(simulator, sources):
    allocator = Allocator(simulator)
    options = {"backend": "cudnn", "options": {"allocator": allocator}}
    with pytest.raises(ValueError, match=r"^dy must have 3, 4 or 5 dimensions"):
        dnnffi.conv_backward_bias(allocator.array(BIAS), **options)
    with pytest.raises(TypeError, match=r"^dy must have one of the dtypes .*; got int64; "):
        dnnffi.conv_backward_bias(allocator.array(DY.astype(int)), **options)


@pytest.mark.parametrize("name", ["x", "w"])
def test_a_backend_that_takes_contiguous_arrays_refuses_others(simulator, sources, name):
    allocator = Allocator(simulator)
    given = {"x": X, "w": W}
    arrays = {one: allocator.array(values) for one, values in given.items()}
    values = given[name]
    interface = arrays[name].__cuda_array_interface__
    at, strides = interface["data"][0], values.transpose(3, 2, 1, 0).strides
    kind, where = "cuda", (0, at)
    arrays[name] = DeviceArray(
        arrays[name], kind, *where, values.shape, values.dtype, strides=strides
    )
    options = {"groups": 2, "backend": "cudnn", "options": {"allocator": allocator}}
    with pytest.raises(ValueError, match=rf"^{name} must be contiguous; its strides are"):
        dnnffi.conv(arrays["x"], arrays["w"], **options)


def test_an_array_of_the_host_beside_one_of_the_device(simulator, sources):
    allocator = Allocator(simulator)
    options = {"groups": 2, "backend": "cudnn", "options": {"allocator": allocator}}
    with pytest.raises(TypeError, match=r"^w must be .* device memory.*ndarray"):
        dnnffi.conv(allocator.array(X), W, **options)
