"""The real libcudnn, which these tests need; its descriptors work without a GPU."""

from __future__ import annotations

import needs
import pytest

from dnnffi.backends.cudnn.library import load
from dnnffi.errors import LibraryNotFoundError


@pytest.fixture(scope="session")
def library(pytestconfig):
    try:
        return load()
    except LibraryNotFoundError as error:
        needs.missing(pytestconfig, "libcudnn", error)
