"""Arrays on the host of libraries that dnnffi does not know, and an allocator of each."""

from __future__ import annotations

import numpy as np


class ByInterface:
    """An array that shows its memory by ``__array_interface__`` alone."""

    def __init__(self, values):
        self.values = np.array(values, order="C")

    @property
    def __array_interface__(self):
        return self.values.__array_interface__


class ByDLPack:
    """An array that shows its memory by DLPack alone."""

    def __init__(self, values):
        self.values = np.array(values, order="C")

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __dlpack__(self, *, stream=None):
        assert stream is None  # the host has none
        return self.values.__dlpack__()


LIBRARIES = {"numpy": np.array, "interface": ByInterface, "dlpack": ByDLPack}


def values_of(array):
    """A NumPy array over the memory of one of these arrays."""
    return getattr(array, "values", array)


class Allocator:
    """An allocator of one of the libraries; ``made`` are its arrays, filled with NaN."""

    def __init__(self, library):
        self.array = LIBRARIES[library]
        self.made = []

    def __call__(self, shape, dtype):
        self.made.append(self.array(np.full(shape, np.nan, dtype)))
        return self.made[-1]

    def has_made(self, array):
        """Return whether ``array`` is one of the very objects that this allocator returned."""
        return any(array is made for made in self.made)
