"""Tests of loading libcublasLt and its version; descriptors of the real library, without a GPU."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from dnnffi.backends.cublas import library
from dnnffi.backends.cublas._cdef import ffi
from dnnffi.backends.cublas.handle import handle_of
from dnnffi.backends.cublas.product import DATA_TYPES, _Descriptor
from dnnffi.errors import CublasError, DnnffiError, LibraryNotFoundError, UnsupportedError
from dnnffi.runtime import loader


def opened(path):
    return library.Library(ffi.dlopen(str(path)), str(path), "a test")


@pytest.mark.parametrize(
    ("number", "version"), [(120001, (12, 0, 1)), (120903, (12, 9, 3)), (131000, (13, 10, 0))]
)
def test_the_version_has_three_parts(cublas, standin, number, version):
    standin.version = number
    assert opened(cublas.path).version == version


def test_a_library_that_is_too_old_says_so(cublas, standin):
    standin.version = 120000
    with pytest.raises(UnsupportedError, match=r"cuBLAS 12\.0\.0: dnnffi needs 12\.0\.1 or newer"):
        opened(cublas.path)


def test_a_library_of_another_cuda_is_refused(cublas, monkeypatch):
    monkeypatch.setattr(library, "cuda_majors", lambda: [12])
    with pytest.raises(UnsupportedError) as caught:
        opened(cublas.path)
    for part in (
        "13.10.0",
        "computes with CUDA 12",
        cublas.path,
        "found via a test",
        "pip install",
    ):
        assert part in str(caught.value)


def test_statuses_become_errors(cublas):
    cublas.check(0, "cublasLtMatmul")
    with pytest.raises(CublasError) as caught:
        cublas.check(7, "cublasLtMatmul", "a product")
    error = caught.value
    assert (error.status, error.status_name) == (7, "CUBLAS_STATUS_INVALID_VALUE")
    assert (error.function, error.problem) == ("cublasLtMatmul", "a product")
    assert error.detail == "an unsupported value or parameter"
    assert isinstance(error, DnnffiError)
    with pytest.raises(UnsupportedError, match="cublasLtMatmul does not support a product"):
        cublas.check(15, "cublasLtMatmul", "a product")


def test_a_handle_is_made_once_for_each_device(cublas, standin):
    first, second = handle_of(cublas, 0), handle_of(cublas, 1)
    assert handle_of(cublas, 0) is first is not second
    assert (standin.live[0], standin.live[4]) == (2, 2)


# Which one


def process(monkeypatch, mapped=(), cupy=None):
    """Pretend that the process has loaded these files, and a CuPy with this runtime version."""
    found = [f"/cuda/lib/{name}" for name in mapped]
    monkeypatch.setattr(loader, "mapped_libraries", lambda pattern: found)
    runtime = SimpleNamespace(runtimeGetVersion=lambda: cupy)
    fake = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", None if cupy is None else fake)


@pytest.mark.parametrize(
    ("mapped", "cupy", "majors"),
    [
        ((), None, []),
        (("libcudart.so.12",), None, [12]),
        (("libcudart.so.12", "libcublasLt.so.13.1.0.3"), None, [12, 13]),
        (("libcudart.so.12",), 13020, [13]),
    ],
)
def test_the_cuda_of_a_process_is_cupys_or_what_it_loaded(monkeypatch, mapped, cupy, majors):
    process(monkeypatch, mapped, cupy)
    assert library.cuda_majors() == majors


def test_the_cuda_of_a_cupy_that_another_thread_is_importing_is_what_is_loaded(monkeypatch):
    process(monkeypatch, ["libcudart.so.13"])
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    assert library.cuda_majors() == [13]


BOTH = ("/a/libcublasLt.so.12", "/b/libcublasLt.so.13.1")


@pytest.mark.parametrize(
    ("majors", "found"), [([], BOTH), ([12], BOTH[:1]), ([13], BOTH[1:]), ([12, 13], BOTH)]
)
def test_a_place_has_what_is_of_the_cuda_of_the_process(monkeypatch, majors, found):
    monkeypatch.setattr(library, "cuda_majors", lambda: majors)
    location = library._of_cuda(loader.Location("somewhere", lambda: iter(BOTH)))
    assert tuple(location.candidates()) == found
    assert location.found_via == "somewhere"


def test_the_name_of_a_dll_has_its_cuda(monkeypatch):
    dlls = ("D:\\bin\\cublasLt64_12.dll", "D:\\x64_1\\bin\\cublasLt64_13.dll")
    monkeypatch.setattr(library, "cuda_majors", lambda: [13])
    location = library._of_cuda(loader.Location("somewhere", lambda: iter(dlls)))
    assert tuple(location.candidates()) == dlls[1:]


def test_what_is_of_another_cuda_is_said_in_the_error(monkeypatch):
    monkeypatch.setattr(library, "cuda_majors", lambda: [14])
    location = library._of_cuda(loader.Location("somewhere", lambda: iter(BOTH)))
    with pytest.raises(LibraryNotFoundError) as caught:
        loader.load("cuBLAS", (location,), ffi.dlopen, "cublasLtGetVersion", library.INSTALL)
    (reason,) = caught.value.searched
    assert reason == f"somewhere: {', '.join(BOTH)}: not of CUDA 14, which this process uses"


def test_an_empty_place_is_not_of_a_wrong_cuda(monkeypatch):
    monkeypatch.setattr(library, "cuda_majors", lambda: [14])
    assert list(library._of_cuda(loader.Location("somewhere", lambda: iter(()))).candidates()) == []


def test_the_environment_variable_names_the_file(cublas, monkeypatch):
    monkeypatch.setenv("DNNFFI_CUBLASLT_LIBRARY", cublas.path)
    monkeypatch.setattr(library._process, "current", None)
    found = library.load()
    assert (found.path, found.found_via) == (
        cublas.path,
        "environment variable DNNFFI_CUBLASLT_LIBRARY",
    )
    assert library.load() is found


# The real library


def test_the_real_one_is_of_a_known_cuda(real):
    assert real.version >= library.OLDEST
    assert real.version[0] in (12, 13)
    assert real.status_name(7) == "CUBLAS_STATUS_INVALID_VALUE"


ATTRIBUTES = {
    ("MatrixLayout", (DATA_TYPES["bfloat16"], 8, 4, 9)): {
        "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT": "int32_t",
        "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET": "int64_t",
    },
    ("MatmulDesc", (77, DATA_TYPES["float32"])): {
        "CUBLASLT_MATMUL_DESC_TRANSA": "int32_t",
        "CUBLASLT_MATMUL_DESC_TRANSB": "int32_t",
    },
    ("MatmulPreference", ()): {
        "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": "uint64_t",
        "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK": "uint32_t",
        **{f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{side}_BYTES": "uint32_t" for side in "ABCD"},
    },
}
OTHER_SIZE = {"int32_t": "int64_t", "uint32_t": "uint64_t"}


@pytest.mark.parametrize(("kind", "arguments"), ATTRIBUTES)
def test_the_real_ones_attributes_have_the_sizes_that_they_are_set_with(real, kind, arguments):
    with _Descriptor(real, kind, *arguments, problem="a test") as descriptor:
        for name, c_type in ATTRIBUTES[kind, arguments].items():
            descriptor.set(name, c_type, 1)
            with pytest.raises(CublasError, match=f"INVALID_VALUE .* for {name}"):
                descriptor.set(name, OTHER_SIZE.get(c_type, "int32_t"), 1)
