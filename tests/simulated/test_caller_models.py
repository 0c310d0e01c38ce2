"""The benchmark's model of an allocator, on the stand-in."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from bench import bench_models
from stress import user_arrays
from stress.user_arrays import UserArray

import dnnffi
from dnnffi.backends.vendor.handle import close_handles
from dnnffi.bench import array_models
from dnnffi.bench.callers.array_models import ArrayLibrary, embedded

EQUAL = sorted(name for name, shape in bench_models.SHAPES.items() if not shape.lengths)


@pytest.fixture
def library(simulator, monkeypatch):
    """A function from the place to a library with arrays of its own; it notes its results."""
    user_arrays.install(monkeypatch)
    allocate = simulator.memory._allocate
    made = []

    def new(shape, dtype):
        made.append(UserArray(allocate, shape, dtype))
        return made[-1]

    yield lambda place: ArrayLibrary(partial(UserArray.of, allocate), new, None), made
    made.clear()  # pytest keeps it for longer than the stand-in
    dnnffi.clear_plans()
    close_handles(simulator.library.without_cupy())


def arrays(results):
    """The numbers of nested results as NumPy arrays."""
    if isinstance(results, tuple | list):
        return [array for part in results for array in arrays(part)]
    return [np.array(results)]


@pytest.mark.parametrize("name", EQUAL)
def test_an_allocator_gives_what_the_reference_gives(library, name):
    find_library, made = library
    shape = replace(bench_models.SHAPES[name], dtype="float64")
    for training in (False, True):
        create = partial(embedded, library=find_library)
        outputs, gradients = bench_models.run(create, shape, place="gpu", training=training)
        expected, wanted = bench_models.run(array_models.functional, shape, training=training)
        for one, other in zip(arrays(outputs[:2]), arrays(expected[:2]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
        assert any(outputs[0] is one for one in made)
        if training:
            pairs = zip(arrays(list(gradients[:2])), arrays(list(wanted[:2])), strict=True)
            for one, other in pairs:
                np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
