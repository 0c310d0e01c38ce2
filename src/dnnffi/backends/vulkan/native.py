"""Record commands and wait for results at little cost, by wgpu's C functions.

wgpu-py checks for an error after each function, which takes longer than most of them do. Nothing is
checked here: a command that is not valid makes wgpu-py's ``finish`` fail, which does check.
wgpu-py also waits in a thread of its own, and the caller for that thread. Here the caller waits.
"""

from __future__ import annotations

from importlib import import_module
from itertools import count
from threading import Lock
from typing import Any

import numpy as np

from dnnffi.device.interface import NDArray
from dnnffi.errors import VulkanError

SECONDS = 0.1
"""Seconds until a thread polls again for what another one has polled, and is about to report."""

READ, WRITE = "read", "write"


class Functions:
    """wgpu's C functions, on wgpu-py's objects; `VulkanError` if wgpu-py has other ones."""

    def __init__(self, version: str) -> None:
        native = import_module("wgpu.backends.wgpu_native")
        try:
            self._ffi, lib = native.ffi, native.lib
            self._begin_pass = lib.wgpuCommandEncoderBeginComputePass
            self._release_pass = lib.wgpuComputePassEncoderRelease
            self.set_pipeline = lib.wgpuComputePassEncoderSetPipeline
            self.set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
            self.dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
            self.end_pass = lib.wgpuComputePassEncoderEnd
            self._copy = lib.wgpuCommandEncoderCopyBufferToBuffer
            self._poll = lib.wgpuDevicePoll
            self._map, self._unmap = lib.wgpuBufferMapAsync, lib.wgpuBufferUnmap
            self._modes = {READ: lib.WGPUMapMode_Read, WRITE: lib.WGPUMapMode_Write}
            self._ranges = {
                READ: lib.wgpuBufferGetConstMappedRange,
                WRITE: lib.wgpuBufferGetMappedRange,
            }
            self._success = lib.WGPUMapAsyncStatus_Success
            self._moment = lib.WGPUCallbackMode_AllowProcessEvents
            self._callback = self._ffi.callback(
                "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", self._on_mapped
            )
        except AttributeError as error:
            raise VulkanError(
                f"wgpu {version} lacks what this backend calls, which was seen working with 0.32: "
                f"{error}"
            ) from error
        self.null = self._ffi.NULL
        self._numbers = count(1)
        self._waiters: dict[int, _Waiter] = {}

    def offsets(self, values: list[int]) -> Any:
        """Return dynamic offsets for `set_bind_group`; that of number n is at ``offsets + n``."""
        return self._ffi.new("uint32_t[]", values)

    def begin_pass(self, encoder: Any) -> Any:
        """Begin a compute pass, which is released with the returned object."""
        return self._ffi.gc(self._begin_pass(encoder._internal, self.null), self._release_pass)

    def copy(
        self, encoder: Any, source: Any, target: Any, at: int, nbytes: int, begin: int = 0
    ) -> None:
        """Record a copy of ``nbytes`` from ``begin`` in ``source`` to ``at`` in ``target``."""
        self._copy(encoder._internal, source._internal, begin, target._internal, at, nbytes)

    def map(self, device: Any, buffers: list[tuple[Any, str]], polls: int) -> None:
        """Wait for what was submitted, and map each buffer, to `READ` or `WRITE`.

        At most ``polls`` times this asks whether it is done, then it sleeps until it is. Other
        threads may wait too: one that polls notifies all.
        """
        waiters = [self._ask(buffer, mode) for buffer, mode in buffers]
        for _ in range(polls):
            self._poll(device._internal, False, self.null)
            if not any(waiter.lock.locked() for waiter in waiters):
                break
        else:
            self._poll(device._internal, True, self.null)
        for waiter in waiters:
            # Another thread that has polled this one's needs the GIL to say so, and gets it here.
            while not waiter.lock.acquire(timeout=SECONDS):
                self._poll(device._internal, True, self.null)
            if waiter.failure is not None:
                raise RuntimeError(f"a buffer was not mapped: {waiter.failure}")

    def _ask(self, buffer: Any, mode: str) -> _Waiter:
        number, waiter = next(self._numbers), _Waiter()
        self._waiters[number] = waiter
        ask = self._ffi.new("WGPUBufferMapCallbackInfo *")
        ask.mode, ask.callback = self._moment, self._callback
        ask.userdata1 = self._ffi.cast("void *", number)
        self._map(buffer._internal, self._modes[mode], 0, buffer.size, ask[0])
        return waiter

    def _on_mapped(self, status: int, message: Any, number: Any, _: Any) -> None:
        waiter = self._waiters.pop(int(self._ffi.cast("uintptr_t", number)))
        if status != self._success:
            waiter.failure = self._ffi.string(message.data, message.length).decode(errors="replace")
        waiter.lock.release()

    def view(self, buffer: Any, mode: str, nbytes: int) -> NDArray:
        """Return the first bytes of a mapped buffer as float32, valid until it is unmapped."""
        address = self._ranges[mode](buffer._internal, 0, nbytes)
        return np.frombuffer(self._ffi.buffer(address, nbytes), np.float32)

    def unmap(self, buffer: Any) -> None:
        """Give a mapped buffer back to the device."""
        self._unmap(buffer._internal)


class _Waiter:
    """A wait for a buffer: a lock that is free once it is mapped, or the failure is known."""

    __slots__ = ("failure", "lock")

    def __init__(self) -> None:
        self.lock = Lock()
        self.lock.acquire()
        self.failure: str | None = None
