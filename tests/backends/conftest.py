"""A libcublasLt of our own that computes on the host, also for who stands on it."""

from __future__ import annotations

import cublas_host
import pytest


@pytest.fixture(scope="session")
def standin_path(compiler, tmp_path_factory):
    return cublas_host.build_standin(compiler, tmp_path_factory.mktemp("cublas"))


@pytest.fixture(scope="session")
def standin_ffi():
    return cublas_host.control_ffi()


@pytest.fixture
def standin(standin_path, standin_ffi):
    """What `control.h` declares, as it is at first."""
    return cublas_host.fresh_control(standin_path, standin_ffi)


@pytest.fixture
def cublas(standin, standin_path):
    """dnnffi's library over the stand-in; at the end nothing is left of it."""
    with cublas_host.open_cublas(standin_path, standin) as made:
        yield made
