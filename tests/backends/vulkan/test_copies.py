"""Tests of copies of large arrays to and from mapped memory by several threads."""

from __future__ import annotations

import os
from threading import Event, get_ident
from weakref import ref

import numpy as np
import pytest

from dnnffi.backends.vulkan import copies
from dnnffi.backends.vulkan.copies import Copy


@pytest.fixture
def many(monkeypatch):
    """Copy in small parts with three helper threads, as for large arrays on many cores."""
    monkeypatch.setattr(copies, "PART", 64)
    monkeypatch.setattr(copies, "helpers", lambda: 3)


class Owner:
    """An object that owns the copied memory."""


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_all_parts_are_copied_and_converted(many, steps):
    source = np.arange(steps * 6 * 5, dtype="f2").reshape(steps, 6, 5)
    target = np.full((steps, 6, 5), -1, "f4")
    Copy(target, source, None).finish()
    np.testing.assert_array_equal(target, source)


def test_strided_arrays_are_copied(many):
    source = np.arange(6 * 40 * 5, dtype="f4").reshape(6, 40, 5).swapaxes(0, 1)
    whole = np.zeros((40, 6, 8), "f4")
    Copy(whole[..., :5], source, None).finish()
    np.testing.assert_array_equal(whole[..., :5], source)
    assert not whole[..., 5:].any()


def test_small_arrays_are_copied_by_the_caller_alone(monkeypatch):
    monkeypatch.setattr(copies, "helpers", lambda: 3)
    source = np.ones((2 * copies.PART // 4 - 1, 1), "f4")
    copy = Copy(np.empty_like(source), source, None)
    assert copy._futures == []


def test_one_or_two_cores_have_no_helpers(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(2), raising=False)
    assert copies.helpers() == 0
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(64), raising=False)
    assert copies.helpers() == copies.MAX_THREADS - 1


def test_without_new_threads_the_caller_copies(many, monkeypatch):
    class Closed:
        def submit(self, function):
            raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(copies, "_pools", copies.OnceCell())
    copies._pools.get(None, Closed)
    source = np.arange(200, dtype="f4").reshape(100, 2)
    target = np.zeros_like(source)
    Copy(target, source, None).finish()
    np.testing.assert_array_equal(target, source)


def test_an_error_of_a_helper_is_raised(many, monkeypatch):
    caller, helping = get_ident(), Event()
    copyto = np.copyto

    def fail(*arguments, **keywords):
        if get_ident() != caller:
            helping.set()
            raise MemoryError("no more")
        assert helping.wait(30)
        copyto(*arguments, **keywords)

    monkeypatch.setattr(copies.np, "copyto", fail)
    source = np.ones((100, 16), "f4")
    with pytest.raises(MemoryError, match="no more"):
        Copy(np.empty_like(source), source, None).finish()


def test_the_memory_is_kept_while_a_helper_copies(many, monkeypatch):
    begun, resume, done = Event(), Event(), Event()

    def wait(*arguments, **keywords):
        begun.set()
        assert resume.wait(30)
        done.set()

    monkeypatch.setattr(copies.np, "copyto", wait)
    owner = Owner()
    alive = ref(owner)
    source = np.ones((100, 16), "f4")
    copy = Copy(np.empty_like(source), source, owner)
    futures = copy._futures
    assert begun.wait(30)
    del copy, owner  # the caller was interrupted
    assert alive() is not None
    resume.set()
    for future in futures:
        future.result(30)
    assert done.is_set()
