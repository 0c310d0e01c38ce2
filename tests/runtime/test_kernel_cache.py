"""Tests of compiled kernels on disk: accepted and refused files, and the size of the folder."""

from __future__ import annotations

import os
import stat
import warnings

import pytest

from dnnffi.errors import PerformanceWarning
from dnnffi.runtime import kernel_cache
from dnnffi.runtime.kernel_cache import KernelCache, KernelKey

KEY = KernelKey("source", (("a.cuh", "header"),), ("-std=c++17",), (13, 0), "sm_90")
IMAGE = b"\177ELF" + bytes(range(256))


@pytest.fixture
def cache(folder):
    return KernelCache(lambda: folder)


def only_file(folder):
    (found,) = folder.iterdir()
    return found


def test_what_was_kept_is_read(cache):
    assert cache.read(KEY) is None
    cache.write(KEY, IMAGE)
    assert cache.read(KEY) == IMAGE


@pytest.mark.parametrize(
    "other",
    [
        KEY._replace(source="sourc e"),
        KEY._replace(headers=()),
        KEY._replace(headers=(("a.cuh", "another header"),)),
        KEY._replace(headers=(("b.cuh", "header"),)),
        KEY._replace(options=("-std=c++17", "-ftz=true")),
        KEY._replace(compiler_version=(13, 1)),
        KEY._replace(arch="sm_90a"),
    ],
)
def test_every_part_of_the_key_counts(cache, other):
    cache.write(KEY, IMAGE)
    assert cache.read(other) is None


def test_folder_and_files_are_private(cache, folder):
    cache.write(KEY, IMAGE)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(only_file(folder).stat().st_mode) == 0o600


@pytest.mark.parametrize("at", [0, 20, 60, -1])
def test_a_damaged_file_is_not_used(cache, folder, at):
    cache.write(KEY, IMAGE)
    path = only_file(folder)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.warns(PerformanceWarning, match="damaged"):
        assert cache.read(KEY) is None


@pytest.mark.parametrize("content", [b"", b"garbage", IMAGE])
def test_garbage_is_not_used(cache, folder, content):
    cache.write(KEY, IMAGE)
    only_file(folder).write_bytes(content)
    with pytest.warns(PerformanceWarning, match="damaged"):
        assert cache.read(KEY) is None


def test_the_file_of_another_key_is_not_used(cache, folder):
    cache.write(KEY, IMAGE)
    path = only_file(folder)
    other = KEY._replace(arch="sm_100")
    cache.write(other, IMAGE[:10])
    path.replace(next(one for one in folder.iterdir() if one != path))
    with pytest.warns(PerformanceWarning, match="damaged"):
        assert cache.read(other) is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no modes of files")
@pytest.mark.parametrize("what", ["folder above", "folder", "file"])
def test_what_others_may_write_is_not_used(cache, folder, what):
    cache.write(KEY, IMAGE)
    path = {"folder above": folder.parent, "folder": folder, "file": only_file(folder)}[what]
    path.chmod(path.stat().st_mode | stat.S_IWOTH)
    with pytest.warns(PerformanceWarning, match="not trusted"):
        assert cache.read(KEY) is None


def test_trouble_is_said_once_and_fails_nothing(cache, folder):
    folder.parent.mkdir()
    folder.write_text("in the way")
    with pytest.warns(PerformanceWarning, match="DNNFFI_CACHE_DIR"):
        assert cache.read(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.write(KEY, IMAGE)


def test_nothing_is_kept_without_a_folder():
    cache = KernelCache(lambda: None)
    cache.write(KEY, IMAGE)
    assert cache.read(KEY) is None


def test_the_files_used_least_recently_are_removed(cache, folder, monkeypatch):
    keys = [KEY._replace(source=str(number)) for number in range(4)]
    for age, key in enumerate(keys[:3]):
        cache.write(key, IMAGE)
        written = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(written, (1000 + age, 1000 + age))
    assert cache.read(keys[0]) == IMAGE  # now the newest of the three
    size = written.stat().st_size
    monkeypatch.setattr(kernel_cache, "MAX_CACHE_BYTES", 3 * size)
    cache.write(keys[3], IMAGE)
    assert [cache.read(key) is not None for key in keys] == [True, False, True, True]
