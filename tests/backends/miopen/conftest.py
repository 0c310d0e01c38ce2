"""The real libMIOpen and a device; tests of descriptors need only the library."""

from __future__ import annotations

import os

import pytest

from dnnffi.backends.miopen.library import load
from dnnffi.backends.vendor.handle import Handle
from dnnffi.errors import LibraryNotFoundError
from dnnffi.runtime.devices import device_runtime
from dnnffi.runtime.hip import RuntimeCallError

MUST_RUN = "GFX1100" in os.environ
"""Set by ``simulators/gfx1100/run.py``: a missing library or device is an error, not a skip."""


@pytest.fixture(scope="session")
def library():
    """The real libMIOpen; skip the test if it is not installed."""
    try:
        return load()
    except LibraryNotFoundError:
        if MUST_RUN:
            raise
        pytest.skip("there is no libMIOpen: it is not tested here")


@pytest.fixture(scope="session")
def device(library):
    """The number of the first device; skip the test if the HIP runtime has no device."""
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
