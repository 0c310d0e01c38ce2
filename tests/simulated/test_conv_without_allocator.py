"""The gradient of a bias of an array on a device, without CuPy and without an allocator."""

from __future__ import annotations

import ctypes

import pytest
from stress import user_arrays
from stress.user_arrays import UserArray

import dnnffi


@pytest.mark.parametrize("backend", [None, "reference", "cudnn"])
def test_a_device_array_needs_cupy_or_an_allocator(backend, monkeypatch):
    user_arrays.install(monkeypatch)
    dy = UserArray(lambda nbytes: (ctypes.c_char * nbytes)(), (1, 2, 3), "f4")
    with pytest.raises(ImportError, match=r"^CuPy is needed .* unless options\['allocator'\]"):
        dnnffi.conv_backward_bias(dy, backend=backend)
