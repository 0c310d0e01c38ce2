"""A compiler that counts what it compiles, and kernels on the driver of `standin_driver`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dnnffi.runtime.kernel_cache import KernelCache
from dnnffi.runtime.kernels import Kernels
from dnnffi.runtime.nvrtc.compiler import Target
from simulators.cuda.driver import driver, driver_path, runtime, standin  # noqa: F401


class CountingCompiler:
    """A compiler that returns fake device code, the ELF magic and the source, and counts calls."""

    def __init__(self):
        self.version, self.version_text = (13, 0), "13.0"
        self.path, self.found_via = "libnvrtc.so", "a test"
        self.compiled = []
        self.before = lambda: None

    def target(self, compute_capability):
        return Target("sm_{}{}".format(*compute_capability), False)

    def compile(self, source, name, target, options, headers=()):
        self.before()
        self.compiled.append(SimpleNamespace(source=source, name=name, target=target))
        return b"\177ELF" + repr((source, headers)).encode()


@pytest.fixture
def compiler_of_tests():
    return CountingCompiler()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def kernels(driver, compiler_of_tests, folder):  # noqa: F811
    return Kernels(driver, compiler_of_tests, KernelCache(lambda: folder))
