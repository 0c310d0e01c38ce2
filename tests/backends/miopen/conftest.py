"""The real libMIOpen, which some of these tests need; its descriptors need no device."""

from __future__ import annotations

import os

import pytest

from dnnffi.backends.miopen.library import load
from dnnffi.backends.vendor.handle import Handle
from dnnffi.errors import LibraryNotFoundError
from dnnffi.runtime.devices import device_runtime
from dnnffi.runtime.hip import RuntimeCallError

MUST_RUN = "GFX1100" in os.environ
"""Said by ``tests/gfx1100/run.py``."""


@pytest.fixture(scope="session")
def library():
    """Skips where there is none."""
    try:
        return load()
    except LibraryNotFoundError:
        if MUST_RUN:
            raise
        pytest.skip("there is no libMIOpen: it is not tested here")


@pytest.fixture(scope="session")
def device(library):
    """A device; skips where the HIP runtime sees none."""
    try:
        count = device_runtime("rocm").device_count()
    except (LibraryNotFoundError, RuntimeCallError):
        count = 0
    if not count and not MUST_RUN:
        pytest.skip("there is no device")
    return 0


@pytest.fixture(scope="session")
def handle(library, device):
    with Handle(library, 0) as made:
        yield made
