"""Tests of the device library alone: counters, refusals, and injected faults."""

from __future__ import annotations

import ctypes

import pytest
from gfx1100.conftest import live, violations

OUT_OF_MEMORY, INVALID_VALUE, INVALID_HANDLE, NOT_READY = 2, 1, 400, 600
TO_DEVICE, TO_HOST = 1, 2


def size(value):
    return ctypes.c_size_t(value)


@pytest.fixture
def buffer(hip):
    """64 bytes of device memory."""
    address = allocate(hip, 64)
    yield address
    hip.hipFree(address)


def allocate(hip, count):
    address = ctypes.c_void_p()
    assert hip.hipMalloc(ctypes.byref(address), size(count)) == 0
    return address


def make(hip, name):
    handle = ctypes.c_void_p()
    assert getattr(hip, name)(ctypes.byref(handle)) == 0
    return handle


def test_what_lives_is_counted(hip):
    before = live(hip)
    bytes_before = hip.gfx1100_live_bytes()
    address = allocate(hip, 100)
    stream, event = make(hip, "hipStreamCreate"), make(hip, "hipEventCreate")
    assert live(hip) == {kind: count + 1 for kind, count in before.items()}
    assert hip.gfx1100_live_bytes() == bytes_before + 100
    assert hip.hipFree(address) == hip.hipStreamDestroy(stream) == hip.hipEventDestroy(event) == 0
    assert live(hip) == before


def test_memory_keeps_what_is_copied_to_it(hip, buffer):
    given, found = ctypes.create_string_buffer(b"abcdefgh", 8), ctypes.create_string_buffer(8)
    assert hip.hipMemcpy(buffer, given, size(8), TO_DEVICE) == 0
    assert hip.hipMemset(buffer, 0x7A, size(4)) == 0
    assert hip.hipMemcpy(found, buffer, size(8), TO_HOST) == 0
    assert found.raw == b"zzzzefgh"


def test_fresh_memory_is_not_a_number(hip, buffer):
    found = (ctypes.c_float * 16)()
    assert hip.hipMemcpy(found, buffer, size(64), TO_HOST) == 0
    assert all(value != value for value in found)


def test_fresh_memory_is_filled_as_chosen(hip):
    hip.gfx1100_set_fill(3)
    address = allocate(hip, 4)
    found = ctypes.create_string_buffer(4)
    hip.hipMemcpy(found, address, size(4), TO_HOST)
    hip.hipFree(address)
    assert found.raw == b"\3\3\3\3"


@pytest.mark.parametrize("overrun", [-1, 64])
def test_a_write_beside_an_allocation_is_found(hip, buffer, overrun):
    at = buffer.value + overrun
    original = ctypes.string_at(at, 1)
    ctypes.memset(at, 0, 1)
    hip.gfx1100_check_red_zones()
    ctypes.memmove(at, original, 1)
    (text,) = violations(hip)
    assert f"1 bytes {'before' if overrun < 0 else 'after'} an allocation of 64 bytes" in text


def test_copies_stay_within_allocations(hip, buffer):
    host = ctypes.create_string_buffer(65)
    assert hip.hipMemcpy(buffer, host, size(65), TO_DEVICE) == INVALID_VALUE
    assert hip.hipMemcpy(host, host, size(1), TO_DEVICE) == INVALID_VALUE
    assert hip.hipMemcpy(host, host, size(1), TO_HOST) == INVALID_VALUE
    assert hip.hipMemset(ctypes.c_void_p(buffer.value + 60), 0, size(5)) == INVALID_VALUE
    past, destination, source, memset = violations(hip)
    assert "65 bytes" in past
    assert "the destination" in destination
    assert "the source" in source
    assert "5 bytes" in memset


def test_freed_memory_is_no_longer_memory(hip):
    address = allocate(hip, 8)
    assert hip.hipFree(address) == 0
    assert hip.hipMemset(address, 0, size(1)) == INVALID_VALUE
    assert hip.hipFree(address) == INVALID_VALUE
    assert len(violations(hip)) == 2


@pytest.mark.parametrize(
    ("create", "use", "kind"),
    [
        ("hipStreamCreate", "hipStreamSynchronize", "stream"),
        ("hipStreamCreate", "hipStreamDestroy", "stream"),
        ("hipEventCreate", "hipEventSynchronize", "event"),
        ("hipEventCreate", "hipEventDestroy", "event"),
    ],
)
def test_a_destroyed_object_is_refused(hip, create, use, kind):
    handle = make(hip, create)
    assert getattr(hip, f"hip{kind.title()}Destroy")(handle) == 0
    assert getattr(hip, use)(handle) == INVALID_HANDLE
    (text,) = violations(hip)
    assert f"is not a live {kind}" in text


def test_the_capacity_can_be_used_up(hip):
    hip.gfx1100_set_capacity(hip.gfx1100_live_bytes() + 100)
    first, second = allocate(hip, 60), ctypes.c_void_p()
    assert hip.hipMalloc(ctypes.byref(second), size(41)) == OUT_OF_MEMORY
    assert second.value is None
    assert hip.hipMalloc(ctypes.byref(second), size(40)) == 0
    assert hip.hipFree(first) == hip.hipFree(second) == 0


def test_an_allocation_fails_on_demand_once(hip):
    hip.gfx1100_fail(b"allocation", 2, OUT_OF_MEMORY)
    first, second = allocate(hip, 8), ctypes.c_void_p()
    assert hip.gfx1100_fault_is_armed()
    assert hip.hipMallocAsync(ctypes.byref(second), size(8), None) == OUT_OF_MEMORY
    assert not hip.gfx1100_fault_is_armed()
    assert hip.hipGetLastError() == OUT_OF_MEMORY
    assert hip.hipGetLastError() == 0
    assert hip.hipMalloc(ctypes.byref(second), size(8)) == 0
    assert hip.hipFree(first) == hip.hipFree(second) == 0


def test_copies_and_memsets_fail_on_demand_and_do_nothing(hip, buffer):
    host = ctypes.create_string_buffer(b"12345678", 8)
    hip.gfx1100_fail(b"copy", 1, NOT_READY)
    assert hip.hipMemcpy(host, buffer, size(8), TO_HOST) == NOT_READY
    assert host.raw == b"12345678"
    hip.gfx1100_fail(b"memset", 1, NOT_READY)
    assert hip.hipMemset(buffer, 0, size(8)) == NOT_READY
    assert hip.hipMemcpy(host, buffer, size(8), TO_HOST) == 0
    assert host.raw == b"\xff" * 8


def test_one_function_fails_on_demand(hip):
    hip.gfx1100_fail(b"hipEventCreate", 1, NOT_READY)
    stream = make(hip, "hipStreamCreate")
    assert hip.hipEventCreate(ctypes.byref(ctypes.c_void_p())) == NOT_READY
    assert hip.hipStreamDestroy(stream) == 0


def test_calls_are_counted_by_function_and_topic(hip):
    stream = make(hip, "hipStreamCreate")
    hip.hipStreamSynchronize(stream)
    hip.hipStreamSynchronize(None)
    hip.hipStreamDestroy(stream)
    counts = [hip.gfx1100_calls(what) for what in (b"hipStreamSynchronize", b"stream", b"release")]
    assert counts == [2, 3, 1]


def test_a_file_that_is_no_code_object_is_refused(hip):
    image = ctypes.create_string_buffer(b"\x7fELF but not more than that", 4096)
    module = ctypes.c_void_p()
    assert hip.hipModuleLoadData(ctypes.byref(module), image) == 200  # hipErrorInvalidImage
