"""Compiled kernels on disk: CuPy's folder of them is used only if nobody else could write it."""

from __future__ import annotations

import os
import re
import sys
import warnings
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from dnnffi.device import cupy as cupy_device
from dnnffi.device.cupy import CupyMemory
from dnnffi.errors import PerformanceWarning

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders have no modes here")

IN_MEMORY = "CUPY_CACHE_IN_MEMORY"


@pytest.fixture
def compile_kernel(monkeypatch):
    """Compile a kernel by a CuPy that only notes where it would keep it: "memory" or "disk"."""
    kept = []

    def compiled():
        kept.append("memory" if os.environ.get(IN_MEMORY) == "1" else "disk")

    cupy = MagicMock()
    cupy.RawKernel = lambda *given, **more: SimpleNamespace(compile=compiled)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setenv(IN_MEMORY, "")  # what the product sets is undone
    monkeypatch.delenv(IN_MEMORY)
    cupy_device.check_kernel_folder.cache_clear()
    cupy_device._raw_kernel.cache_clear()
    memory = CupyMemory()

    def compile_kernel(source="a"):
        memory.kernel(source, "name")
        return kept[-1]

    yield compile_kernel
    cupy_device.check_kernel_folder.cache_clear()
    cupy_device._raw_kernel.cache_clear()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = tmp_path / "kernels"
    monkeypatch.setenv("CUPY_CACHE_DIR", str(path))
    return path


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_kernels_are_kept_in_a_folder_of_this_user(compile_kernel, folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    assert compile_kernel() == "disk"


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_kernels_that_others_may_write_are_not_used_and_it_is_said_once(
    compile_kernel, folder, mode
):
    folder.mkdir()
    folder.chmod(mode)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert compile_kernel("a") == compile_kernel("b") == "memory"
    (warning,) = said
    assert warning.category is PerformanceWarning
    words = f"kernels in {folder} are not used: .*mode {mode:04o}.*CUPY_CACHE_DIR"
    assert re.search(words, str(warning.message))
    assert warning.filename == __file__


def test_the_folder_of_the_user_is_created_for_this_user_alone(
    compile_kernel, tmp_path, monkeypatch
):
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = os.umask(0o002)
    try:
        assert compile_kernel() == "disk"
    finally:
        os.umask(before)
    made = tmp_path / ".cupy" / "kernel_cache"
    assert made.stat().st_mode & 0o777 == made.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_had_is_left_to_cupy(compile_kernel, folder):
    folder.write_text("in the way")
    assert compile_kernel() == "disk"


def test_kernels_in_memory_need_no_folder(compile_kernel, folder, monkeypatch):
    monkeypatch.setenv(IN_MEMORY, "1")
    assert compile_kernel() == "memory"
    assert not folder.exists()
