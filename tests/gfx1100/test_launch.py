"""Launches of a kernel assembled here: the checks of the device, and the kernel's arguments."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
from gfx1100.conftest import milliseconds, violations

from simulators.gfx1100 import joint
from simulators.gfx1100.interpreter.code import assemble, llvm

INVALID_VALUE, INVALID_CONFIGURATION, NOT_FOUND, NOT_SUPPORTED = 1, 9, 500, 801
LAUNCH_FAILED, ENDED = 719, 3

KERNEL = """
    .amdgcn_target "amdgcn-amd-amdhsa--gfx1100"
    .text
    .globl scale
    .p2align 8
    .type scale,@function
scale: ; out[i] = factor * i for the first count work-items, in groups of 64 at most
    s_load_b64 s[4:5], s[0:1], 0x0
    s_load_b64 s[6:7], s[0:1], 0x8
    s_waitcnt lgkmcnt(0)
    v_and_b32 v0, 0x3ff, v0
    s_load_b32 s8, s[0:1], 0x10
    s_and_b32 s8, s8, 0xffff
    s_mul_i32 s8, s8, s2
    v_add_nc_u32 v0, v0, s8
    v_cmp_gt_u32 vcc_lo, s7, v0
    s_and_saveexec_b32 s9, vcc_lo
    v_mul_lo_u32 v1, v0, s6
    v_lshlrev_b32 v0, 2, v0
    global_store_b32 v0, v1, s[4:5]
    s_endpgm
.Lend:
    .size scale, .Lend-scale
    .rodata
    .p2align 6
    .amdhsa_kernel scale
        .amdhsa_user_sgpr_kernarg_segment_ptr 1
        .amdhsa_system_sgpr_workgroup_id_x 1
        .amdhsa_next_free_vgpr 4
        .amdhsa_next_free_sgpr 16
        .amdhsa_wavefront_size32 1
    .end_amdhsa_kernel
    .amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--gfx1100
amdhsa.kernels:
  - .name: scale
    .symbol: scale.kd
    .kernarg_segment_size: 18
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 32
    .sgpr_count: 16
    .vgpr_count: 4
    .max_flat_workgroup_size: 64
    .args:
      - {.name: out, .offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: factor, .offset: 8, .size: 4, .value_kind: by_value}
      - {.name: count, .offset: 12, .size: 4, .value_kind: by_value}
      - {.offset: 16, .size: 2, .value_kind: hidden_group_size_x}
...
    .end_amdgpu_metadata
"""


@pytest.fixture(scope="session")
def image(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "kernel.o").write_bytes(assemble(KERNEL))
    command = [llvm("ld.lld"), "-shared", "-o", folder / "kernel.co", folder / "kernel.o"]
    subprocess.run(command, check=True)
    return (folder / "kernel.co").read_bytes()


@pytest.fixture
def kernel(hip, image):
    joint.install()
    joint.failures.clear()
    modules = hip.gfx1100_live_modules()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert hip.hipModuleLoadData(ctypes.byref(module), image) == 0
    assert hip.hipModuleGetFunction(ctypes.byref(function), module, b"scale") == 0
    assert hip.hipModuleGetFunction(ctypes.byref(ctypes.c_void_p()), module, b"none") == NOT_FOUND
    yield function
    assert hip.hipModuleUnload(module) == 0
    assert hip.gfx1100_live_modules() == modules


@pytest.fixture
def out(hip):
    address = ctypes.c_void_p()
    assert hip.hipMalloc(ctypes.byref(address), ctypes.c_size_t(400)) == 0
    yield address
    hip.hipFree(address)


def launch(hip, kernel, out, *, factor=3, count=100, grid=2, group=64, stream=None):
    values = [ctypes.c_void_p(getattr(out, "value", out)), ctypes.c_uint(factor)]
    values.append(ctypes.c_uint(count))
    pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
    return hip.hipModuleLaunchKernel(
        kernel, grid, 1, 1, group, 1, 1, 0, ctypes.c_void_p(stream), pointers, None
    )


def packed_launch(hip, kernel, packed):
    size = ctypes.c_size_t(len(packed))
    data = ctypes.create_string_buffer(packed, len(packed))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(data), 2, ctypes.addressof(size), ENDED)
    return hip.hipModuleLaunchKernel(kernel, 2, 1, 1, 64, 1, 1, 0, None, None, extra)


def read(hip, out, count=100):
    found = np.zeros(count, "uint32")
    assert (
        hip.hipMemcpy(ctypes.c_void_p(found.ctypes.data), out, ctypes.c_size_t(4 * count), 2) == 0
    )
    return found.tolist()


def test_a_kernel_runs_with_its_arguments(hip, kernel, out):
    assert launch(hip, kernel, out) == 0
    assert read(hip, out) == [3 * i for i in range(100)]


def test_arguments_may_come_packed(hip, kernel, out):
    packed = out.value.to_bytes(8, "little") + (5).to_bytes(4, "little") + (9).to_bytes(4, "little")
    assert packed_launch(hip, kernel, packed) == 0
    assert read(hip, out, 9) == [5 * i for i in range(9)]


def test_events_count_the_work_of_kernels_and_not_the_time_of_the_host(hip, kernel, out):
    def launches(count):
        return lambda: [launch(hip, kernel, out) for _ in range(count)]

    once = milliseconds(hip, launches(100))
    assert milliseconds(hip, launches(100)) == pytest.approx(once, rel=1e-6)
    assert milliseconds(hip, launches(200)) == pytest.approx(2 * once, rel=1e-6)


def test_too_few_arguments_are_refused(hip, kernel, out):
    assert packed_launch(hip, kernel, out.value.to_bytes(8, "little")) == INVALID_VALUE
    assert violations(hip) == ["kernel scale: 8 bytes of arguments end before factor"]


@pytest.mark.parametrize(("grid", "group"), [(1, 65), (1, 0), (0, 64)])
def test_a_grid_that_the_kernel_does_not_allow_is_refused(hip, kernel, out, grid, group):
    assert launch(hip, kernel, out, grid=grid, group=group) == INVALID_CONFIGURATION
    assert len(violations(hip)) == 1


def test_an_argument_that_is_no_device_memory_is_refused(hip, kernel):
    host = ctypes.create_string_buffer(400)
    assert launch(hip, kernel, ctypes.addressof(host)) == INVALID_VALUE
    (text,) = violations(hip)
    assert "argument out" in text


def test_a_destroyed_stream_is_refused(hip, kernel, out):
    stream = ctypes.c_void_p()
    assert hip.hipStreamCreate(ctypes.byref(stream)) == 0
    assert launch(hip, kernel, out, stream=stream.value) == 0
    assert hip.hipStreamDestroy(stream) == 0
    assert launch(hip, kernel, out, stream=stream.value) == 400
    assert len(violations(hip)) == 1


def test_a_kernel_that_writes_past_a_buffer_is_found(hip, kernel, out):
    assert launch(hip, kernel, out, count=101) == 0
    assert read(hip, out) == [3 * i for i in range(100)]
    found = violations(hip)
    assert "after an allocation of 400 bytes" in found[0]
    ctypes.memset(out.value + 400, 0xA5, 4)  # so that it is not found again


def test_a_launch_fails_on_demand_and_does_nothing(hip, kernel, out):
    hip.gfx1100_fail(b"launch", 1, LAUNCH_FAILED)
    assert launch(hip, kernel, out) == LAUNCH_FAILED
    assert read(hip, out) == [0xFFFFFFFF] * 100
    assert launch(hip, kernel, out) == 0


def test_without_an_executor_nothing_is_launched(hip, kernel, out):
    hip.gfx1100_set_executor(None)
    assert launch(hip, kernel, out) == NOT_SUPPORTED
    assert len(violations(hip)) == 1


def test_a_kernel_that_cannot_be_executed_is_a_failed_launch(hip, kernel, out, monkeypatch):
    def refuse(_):
        raise joint.ExecutionError("some reason")

    monkeypatch.setattr(joint, "execute", refuse)
    assert launch(hip, kernel, out) == LAUNCH_FAILED
    assert joint.failures == ["scale: some reason"]
    assert violations(hip) == ["kernel scale could not be executed"]
