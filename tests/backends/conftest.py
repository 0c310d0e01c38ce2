"""A stand-in of libcublasLt that computes on the host, for tests of all backends that use it."""

from __future__ import annotations

import pytest

from simulators.cublas import library as simulator


@pytest.fixture(scope="session")
def standin_path(compiler, tmp_path_factory):
    return simulator.build_standin(compiler, tmp_path_factory.mktemp("cublas"))


@pytest.fixture(scope="session")
def standin_ffi():
    return simulator.control_ffi()


@pytest.fixture
def standin(standin_path, standin_ffi):
    """The control functions of the stand-in, in their initial state."""
    return simulator.fresh_control(standin_path, standin_ffi)


@pytest.fixture
def cublas(standin, standin_path):
    """dnnffi's library object over the stand-in. The test fails if an object is not destroyed."""
    with simulator.open_cublas(standin_path, standin) as made:
        yield made
