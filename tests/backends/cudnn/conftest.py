"""The real libcudnn, which these tests need; its descriptors work without a GPU."""

from __future__ import annotations

import os

import pytest

from dnnffi.backends.cudnn.library import load
from dnnffi.errors import LibraryNotFoundError


@pytest.fixture(scope="session")
def library():
    """Skips where there is none, except in continuous integration, which must have one."""
    try:
        return load()
    except LibraryNotFoundError as error:
        if os.environ.get("CI"):
            pytest.fail(f"continuous integration needs a libcudnn. {error}")
        pytest.skip(f"descriptors are not tested. {error}")
