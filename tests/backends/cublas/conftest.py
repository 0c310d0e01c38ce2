"""The real libcublasLt."""

from __future__ import annotations

import needs
import pytest

from dnnffi.backends.cublas import library
from dnnffi.errors import LibraryNotFoundError


@pytest.fixture(scope="session")
def real(pytestconfig):
    try:
        return library.load()
    except LibraryNotFoundError as error:
        needs.missing(pytestconfig, "libcublasLt", error)
