"""Compilers, which all these tests need because the kernels are compiled for the host."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def compilers(compiler, cxx_compiler):
    """Require a C compiler for the emulated device and a C++ compiler for the kernels."""
