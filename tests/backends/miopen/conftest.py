"""The real libMIOpen, which some of these tests need; its descriptors need no device."""

from __future__ import annotations

import pytest

from dnnffi.backends.miopen.handle import Handle
from dnnffi.backends.miopen.library import load
from dnnffi.errors import LibraryNotFoundError, MiopenError


@pytest.fixture(scope="session")
def library():
    """Skips where there is none."""
    try:
        return load()
    except LibraryNotFoundError:
        pytest.skip("there is no libMIOpen: it is not tested here")


@pytest.fixture(scope="session")
def handle(library):
    """A handle, which needs a device; skips where there is none."""
    try:
        made = Handle(library)
    except MiopenError as error:
        pytest.skip(f"there is no device: {error}")
    with made:
        yield made
