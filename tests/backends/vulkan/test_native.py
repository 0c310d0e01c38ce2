"""Tests of C functions that wgpu-py does not check: recording commands and mapping buffers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import numpy as np
import pytest

import dnnffi
from dnnffi.backends.vulkan import native
from dnnffi.backends.vulkan.native import READ, WRITE, Functions


def test_a_wgpu_without_these_functions_is_named(monkeypatch):
    other = SimpleNamespace(ffi=None, lib=SimpleNamespace())
    monkeypatch.setattr(native, "import_module", lambda name: other)
    with pytest.raises(
        dnnffi.VulkanError, match=r"^wgpu 9\.9 lacks what .*wgpuCommandEncoderBegin"
    ):
        Functions("9.9")


@pytest.fixture
def buffers(device):
    """A buffer that the host writes, and one that it reads."""
    usage = device.usage
    up = device.buffer("up", 1024, usage.COPY_SRC | usage.MAP_WRITE, mapped=True)
    down = device.buffer("down", 1024, usage.COPY_DST | usage.MAP_READ)
    return up, down


def test_an_invalid_command_is_said_by_finish(device, buffers):
    up, down = buffers
    encoder = device.native.create_command_encoder()
    device.functions.copy(encoder, down, up, 0, 1024)
    with (
        pytest.raises(dnnffi.VulkanError, match=r"copying: .*Usage flags"),
        device.errors("copying"),
    ):
        encoder.finish()


def test_an_invalid_dispatch_is_said_by_finish(device):
    encoder, functions = device.native.create_command_encoder(), device.functions
    run = functions.begin_pass(encoder)
    functions.dispatch(run, 1, 1, 1)
    functions.end_pass(run)
    with pytest.raises(dnnffi.VulkanError, match="pipeline must be set"), device.errors("running"):
        encoder.finish()


def test_a_buffer_that_cannot_be_mapped_is_said(device, buffers):
    _, down = buffers
    down.destroy()
    with pytest.raises(RuntimeError, match="a buffer was not mapped"):
        device.functions.map(device.native, [(down, READ)], 0)
    assert not device.functions._waiters


def through(device, up, down, number, polls=0):
    functions = device.functions
    functions.view(up, WRITE, 1024)[:] = number
    functions.unmap(up)
    encoder = device.native.create_command_encoder()
    functions.copy(encoder, up, down, 0, 1024)
    device.queue.submit([encoder.finish()])
    functions.map(device.native, [(down, READ), (up, WRITE)], polls)
    found = functions.view(down, READ, 1024).copy()
    functions.unmap(down)
    return found


@pytest.mark.parametrize("polls", [0, 1, 100_000])
def test_what_is_written_is_read(device, buffers, polls):
    for number in range(5):
        found = through(device, *buffers, number, polls)
        np.testing.assert_array_equal(found, np.full(256, number, "f4"))


@pytest.mark.parametrize("polls", [0, 100])
def test_threads_wait_for_their_own_buffers(device, polls):
    usage, barrier = device.usage, Barrier(6)

    def run(one):
        up = device.buffer("up", 1024, usage.COPY_SRC | usage.MAP_WRITE, mapped=True)
        down = device.buffer("down", 1024, usage.COPY_DST | usage.MAP_READ)
        barrier.wait(30)
        return all((through(device, up, down, one + n, polls) == one + n).all() for n in range(100))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(run, range(6)))
    assert not device.functions._waiters


def test_a_thread_waits_for_what_another_has_polled(device, buffers, monkeypatch):
    # The other thread's poll takes the result, and reports it after this thread has polled.
    functions, (up, down) = device.functions, buffers
    poll, polled = functions._poll, []

    def late(*arguments):
        polled.append(arguments)
        if len(polled) > 1:
            poll(*arguments)

    monkeypatch.setattr(functions, "_poll", late)
    monkeypatch.setattr(native, "SECONDS", 0.001)
    assert (through(device, up, down, 3) == 3).all()
    assert len(polled) == 2
