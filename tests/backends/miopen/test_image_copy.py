"""Tests of the padded image of asymmetric padding: copies of rows in host memory."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi import ConvProblem, ConvSpec, testing
from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.miopen.image_copy import ImageCopyByRows
from dnnffi.device.dtypes import dtype_object
from dnnffi.spec.conv_padding import PaddedImage
from dnnffi.spec.conv_problem import FORWARD
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST


class SimulatedMemory:
    """Memory operations on the host; copied rows must not overlap."""

    def __init__(self):
        self.copies = 0

    def clear(self, address, nbytes, stream):
        ctypes.memset(address, 0, nbytes)

    def copy_rows(self, target, target_pitch, source, source_pitch, width, rows, stream):
        assert width <= min(target_pitch, source_pitch)
        self.copies += 1
        for row in range(rows):
            ctypes.memmove(target + row * target_pitch, source + row * source_pitch, width)


def in_memory(array, problem):
    return np.ascontiguousarray(np.moveaxis(array, 1, -1) if problem.channels_last else array)


def run(problem):
    """Return (found, expected, number of copies) of the padded image, or of the image inside it."""
    image, memory = PaddedImage.of(problem), SimulatedMemory()
    rng, dtype = np.random.default_rng(0), dtype_object(problem.spec.dtype)
    values, large = (
        rng.normal(size=shape).astype(dtype) for shape in (image.shape, image.padded_shape)
    )
    pairs = zip(image.offset, image.shape[2:], strict=True)
    inside = (..., *(slice(offset, offset + size) for offset, size in pairs))
    small = in_memory(values, problem)
    guard = 16
    padded = np.concatenate([in_memory(large, problem).reshape(-1), np.ones(guard, dtype)])
    copy = ImageCopyByRows(image, memory)
    assert copy.nbytes == large.nbytes
    at = ConvAddresses(0, 0, 0, 0, 0)._replace(**{image.operand: small.ctypes.data})
    used = copy.before(None, at, padded.ctypes.data)
    assert used == at._replace(**{image.operand: padded.ctypes.data})
    copy.after(None, at, padded.ctypes.data)
    assert (padded[-guard:] == 1).all()
    if image.operand == "result":
        return small, in_memory(large[inside], problem), memory.copies
    expected = np.zeros_like(large)
    expected[inside] = values
    found = padded[:-guard].reshape(in_memory(large, problem).shape)
    return found, in_memory(expected, problem), memory.copies


specs = testing.conv_specs(asymmetric=True, dtypes=("float16", "float32", "float64"))


@given(testing.conv_problems(specs))
def test_an_image_is_copied_into_zeros_or_out_of_a_larger_one(problem):
    found, expected, _ = run(problem)
    np.testing.assert_array_equal(found, expected)


COPIES = {
    # (padding, sizes, layout): copies of an image of 2 x 3 channels
    "columns": (((0, 0), (0, 1)), (4, 5), CHANNELS_FIRST, 1),
    "rows": (((0, 1), (0, 0)), (4, 5), CHANNELS_FIRST, 1),
    "rows and columns": (((0, 1), (2, 0)), (4, 5), CHANNELS_FIRST, 4),
    "many rows and columns": (((0, 1), (2, 0)), (40, 5), CHANNELS_FIRST, 6),
    "channels last": (((0, 1), (2, 0)), (4, 5), CHANNELS_LAST, 2),
    "depth alone": (((0, 1), (0, 0), (0, 0)), (4, 5, 6), CHANNELS_FIRST, 1),
    "all of three": (((0, 1),) * 3, (4, 5, 6), CHANNELS_FIRST, 4 * 5),
}


@pytest.mark.parametrize("name", COPIES)
def test_dimensions_that_lie_together_are_copied_at_once(name):
    padding, sizes, layout, copies = COPIES[name]
    spec = ConvSpec(in_channels=3, out_channels=1, kernel=(2,) * len(sizes), padding=padding)
    found, expected, made = run(ConvProblem.of(FORWARD, spec, (2, 3, *sizes), layout=layout))
    np.testing.assert_array_equal(found, expected)
    assert made == copies


@given(st.integers(0, 2))
def test_an_image_of_one_position(extra):
    spec = ConvSpec(in_channels=1, out_channels=1, kernel=(1, 1), padding=((extra, 1), (1, 3)))
    found, expected, _ = run(ConvProblem.of(FORWARD, spec, (1, 1, 1, 1)))
    np.testing.assert_array_equal(found, expected)
