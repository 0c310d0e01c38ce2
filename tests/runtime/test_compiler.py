"""Tests of the real NVRTC, which compiles without a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import needs
import pytest

from dnnffi.backends.own import image_copy
from dnnffi.backends.own.recurrent import kernels
from dnnffi.errors import CompileError, LibraryNotFoundError
from dnnffi.runtime.kernels import OPTIONS
from dnnffi.runtime.nvrtc import compiler as module
from dnnffi.runtime.nvrtc.compiler import Target, load_compiler


@pytest.fixture
def compiler(pytestconfig):
    try:
        return load_compiler()
    except LibraryNotFoundError as error:
        needs.missing(pytestconfig, "libnvrtc", error)


def test_a_library_of_a_cuda_before_11_2_is_passed_over(monkeypatch):
    older = SimpleNamespace(nvrtcVersion=int, nvrtcCompileProgram=int)
    monkeypatch.setattr(module, "ffi", SimpleNamespace(dlopen=lambda name: older))
    monkeypatch.setenv(module.ENVIRONMENT_VARIABLE, "libnvrtc.so.10.1")
    with pytest.raises(LibraryNotFoundError, match=r"10\.1 \(not NVRTC: no nvrtcGetSupportedArchs"):
        load_compiler.__wrapped__()


def test_machine_code_is_for_the_device(compiler):
    target = compiler.target((9, 0))
    assert target == Target("sm_90", False)
    assert compiler.compile("__global__ void f() {}", "f.cu", target, OPTIONS)[:4] == b"\177ELF"


def test_a_device_that_is_newer_than_the_compiler_gets_ptx(compiler):
    target = compiler.target((99, 0))
    assert target == Target(f"compute_{compiler.architectures[-1]}", True)
    ptx = compiler.compile('extern "C" __global__ void f() {}', "f.cu", target, OPTIONS)
    assert b".visible .entry f(" in ptx


def test_a_device_that_is_older_than_the_compiler_knows_is_refused(compiler):
    with pytest.raises(CompileError, match=r"compute capability 1\.0"):
        compiler.target((1, 0))


def test_headers_are_found_as_texts_and_not_as_files(compiler, monkeypatch, tmp_path):
    """A file of the same name in the current folder is not read: others may have written it."""
    (tmp_path / "number.cuh").write_text("an error\n")
    monkeypatch.chdir(tmp_path)
    headers = (
        ("number.cuh", "#pragma once\nconstexpr int NUMBER = 12345;\n"),
        ("other.cuh", '#pragma once\n#include "number.cuh"\n'),
    )
    source = (
        '#include "other.cuh"\n#include "number.cuh"\n'
        'extern "C" __global__ void f(int *to) { *to = NUMBER; }\n'
    )
    target = Target("compute_90", True)
    ptx, log = compiler.compile_with_log(source, "f.cu", target, OPTIONS, headers)
    assert b"12345" in ptx
    assert log == ""


def test_the_log_of_the_compiler_is_in_the_error(compiler):
    with pytest.raises(CompileError, match=r"wrong\.cu\(2\): error: .*unknown_name") as raised:
        compiler.compile(
            "__global__ void f() {\nunknown_name();\n}", "wrong.cu", Target("sm_90", False), OPTIONS
        )
    assert raised.value.status_name == "NVRTC_ERROR_COMPILATION"


@pytest.mark.parametrize(
    "made",
    [
        *kernels.dropout_kernels("bfloat16"),
        *kernels.row_kernels(2).values(),
        kernels.narrow_kernel(),
        kernels.bias_kernel("float16"),
        kernels.finish_kernel("float16"),
    ],
    ids=lambda made: made[1],
)
def test_kernels_beside_the_recurrence_compile(compiler, made):
    source, name, headers = made
    target = compiler.target((8, 0))
    assert name.encode() in compiler.compile(source, name, target, OPTIONS, headers)


@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_the_kernel_that_copies_images_compiles(compiler, itemsize, is_small):
    source = image_copy.copy_kernel(itemsize, is_small=is_small)
    target = Target("sm_90", False)
    compiler.compile(source.text, "copy_image.cu", target, OPTIONS, source.headers)
