"""The kernels are compiled for the host."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def compilers(compiler, cxx_compiler):
    """Both are needed, for the device and for what runs on it."""
