"""Tests of finding libraries, of the errors, and of the loader of libcudnn.

The libcudnn here is a stand-in of a few lines of C; test_descriptors.py tests the real one.
"""

from __future__ import annotations

import ctypes.util
import mmap
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import bounded
import irregular
import pytest

import dnnffi
from dnnffi import wheels
from dnnffi.backends.cudnn import library
from dnnffi.backends.cudnn import library as cudnn
from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.errors import CudnnError, LibraryNotFoundError, UnsupportedError
from dnnffi.importing import import_lock
from dnnffi.runtime import loader

# Places as data


class FakeLibrary:
    """A library that has the functions ``names``."""

    def __init__(self, *names):
        self.__dict__.update(dict.fromkeys(names, int))


def location(found_via, *candidates, decisive=False):
    return loader.Location(found_via, lambda: iter(candidates), decisive)


def opener(**files):
    """Return a function that opens the named libraries and fails for others."""

    def open_library(name):
        if name not in files:
            raise OSError(f"cannot open {name}")
        return files[name]

    return open_library


def load(locations, **files):
    return loader.load("Nice", tuple(locations), opener(**files), "niceVersion", "pip install nice")


def test_a_library_that_is_loaded_is_logged(caplog):
    with caplog.at_level("INFO", "dnnffi"):
        load([location("a", "x"), location("b", "y")], y=FakeLibrary("niceVersion"))
    assert caplog.messages == ["loaded Nice from y, found via b"]


def test_the_first_candidate_that_opens_is_taken():
    nice, other = FakeLibrary("niceVersion"), FakeLibrary("niceVersion")
    found = load([location("a", "x"), location("b", "y", "z"), location("c", "w")], z=nice, w=other)
    assert found == loader.Loaded(nice, "z", "b")


def test_a_library_without_the_function_is_passed_over():
    nice = FakeLibrary("niceVersion")
    found = load([location("a", "x"), location("b", "y")], x=FakeLibrary("otherVersion"), y=nice)
    assert found.lib is nice


def test_the_error_has_every_candidate_and_its_reason():
    locations = [location("a", "x", "y"), location("b"), location("c", "z")]
    with pytest.raises(LibraryNotFoundError) as caught:
        load(locations, y=FakeLibrary("otherVersion"))
    assert caught.value.library == "Nice"
    assert caught.value.install == "pip install nice"
    assert caught.value.searched == (
        "a: x (cannot open x)",
        "a: y (not Nice: no niceVersion)",
        "b: nothing there",
        "c: z (cannot open z)",
    )
    for part in ("Nice", "pip install nice", *caught.value.searched):
        assert part in str(caught.value)


LOAD = """
import os, sys
from dnnffi.cli import probe
os.environ["DNNFFI_CUDNN_LIBRARY"] = os.environ["DNNFFI_MIOPEN_LIBRARY"] = sys.argv[1]
for library in (probe.cudnn_library(), probe.miopen_library()):
    print(*library.searched)
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
@pytest.mark.parametrize("kind", ["FIFO", "character device"])
def test_only_a_regular_file_is_opened_as_a_library(tmp_path, kind):
    path = tmp_path / "libcudnn.so.9"
    irregular.make(path, kind)
    told = bounded.run(LOAD, path).splitlines()
    assert len(told) == 2
    assert all(f"{path} ([Errno 22] is not a regular file but a {kind}" in line for line in told)


def test_a_decisive_place_ends_the_search():
    locations = [location("asked for", "x", decisive=True), location("b", "y")]
    with pytest.raises(LibraryNotFoundError) as caught:
        load(locations, y=FakeLibrary("niceVersion"))
    assert caught.value.searched == ("asked for: x (cannot open x)",)


def test_a_decisive_place_with_nothing_in_it_does_not():
    nice = FakeLibrary("niceVersion")
    assert load([location("asked for", decisive=True), location("b", "y")], y=nice).lib is nice


def test_later_places_are_not_asked():
    def asked():
        pytest.fail("the search went on")

    locations = [location("a", "x"), loader.Location("b", asked)]
    assert load(locations, x=FakeLibrary("niceVersion")).found_via == "a"


def test_the_install_command_fits_the_installed_wheels(monkeypatch):
    monkeypatch.setattr(wheels, "version", lambda name: "14.1" * (name == "cupy-cuda12x"))
    wheels.fitting_installed.cache_clear()
    try:
        with pytest.raises(LibraryNotFoundError) as caught:
            loader.load("cuDNN", (), ctypes.CDLL, "cudnnGetVersion", cudnn.INSTALL)
        assert caught.value.install == "pip install nvidia-cudnn-cu12"
    finally:
        wheels.fitting_installed.cache_clear()


def test_a_wheel_of_which_only_an_empty_folder_is_left_has_no_version(monkeypatch, tmp_path):
    (tmp_path / "left_over-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert wheels.version("left-over") == ""


def test_not_found_is_an_import_error():
    with pytest.raises(ImportError):
        load([])


@pytest.mark.parametrize(("value", "candidates"), [(None, []), ("", []), ("/a/b.so", ["/a/b.so"])])
def test_the_environment_variable(monkeypatch, value, candidates):
    monkeypatch.delenv("NICE_LIBRARY", raising=False)
    if value is not None:
        monkeypatch.setenv("NICE_LIBRARY", value)
    asked = loader.environment("NICE_LIBRARY")
    assert list(asked.candidates()) == candidates
    assert asked.found_via == "environment variable NICE_LIBRARY"
    assert asked.decisive


def test_the_systems_names_are_candidates_each_time():
    names = loader.system("libnice.so.2", "libnice.so")
    assert list(names.candidates()) == list(names.candidates()) == ["libnice.so.2", "libnice.so"]


def test_on_windows_dlls_are_candidates(monkeypatch):
    monkeypatch.setattr(loader, "IS_WINDOWS", True)
    found = loader.system("libnice.so.2", dlls=("nice64_2.dll",)).candidates()
    assert list(found) == ["nice64_2.dll"]


def test_macos_has_no_libraries_of_a_vendor(monkeypatch):
    monkeypatch.setattr(loader, "IS_MACOS", True)
    assert list(loader.system("libnice.so.2", dlls=("nice64_2.dll",)).candidates()) == []
    with pytest.raises(LookupError, match="NVIDIA has no libraries for macOS"):
        list(loader.pathfinder("cudnn").candidates())


def test_memory_maps_that_cannot_be_read_hold_nothing(monkeypatch):
    monkeypatch.setattr(loader, "read_kernel_file", lambda path: b"")
    assert loader.mapped_libraries(".*") == []
    assert loader.loaded_path("libnice.so") == "libnice.so"


def test_memory_maps(monkeypatch):
    maps = (
        "7f00-7f01 r--p 00000000 fe:00 1  /opt/my libs/libnice.so.2\n"
        "7f01-7f02 r-xp 00001000 fe:00 1  /opt/my libs/libnice.so.2\n"
        "7f02-7f03 r-xp 00001000 fe:00 2  /usr/lib/libnicely.so\n"
        "7f03-7f04 rw-p 00000000 00:00 0\n"
        "7f04-7f05 rw-p 00000000 00:00 0  [heap]\n"
        "7f05-7f06 r-xp 00000000 fe:00 3  /opt/old/libnice.so.1 (deleted)\n"
    )
    monkeypatch.setattr(loader, "read_kernel_file", lambda path: maps.encode())
    assert loader.mapped_libraries(r"libnice\.so(\.\d+)*") == ["/opt/my libs/libnice.so.2"]
    assert loader.loaded_path("libnice.so") == "/opt/my libs/libnice.so.2"
    assert loader.loaded_path("/elsewhere/libnice.so") == "/elsewhere/libnice.so"


# Shared libraries of this machine

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's memory maps")


def test_a_search_of_pathfinder_that_fails_is_an_entry_of_the_error(monkeypatch):
    import cuda.pathfinder

    def undecodable(name):
        return b"\xff".decode()

    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", undecodable)
    with pytest.raises(LibraryNotFoundError, match="cuda-pathfinder: 'utf-8' codec can't decode"):
        loader.load("cuDNN", (cudnn.PLACES[2],), ctypes.CDLL, "cudnnGetVersion", "pip")


@linux
def test_a_library_that_is_already_loaded_is_found():
    ctypes.CDLL("libm.so.6")
    locations = (loader.already_loaded(r"libm(-[\d.]+)?\.so(\.\d+)*"), loader.system("libm.so.6"))
    found = loader.load("libm", locations, ctypes.CDLL, "cos", "none")
    assert found.found_via == "already loaded in this process"
    assert os.path.isfile(found.path)


@linux
def test_a_mapped_file_whose_name_is_not_utf_8_does_not_end_the_search(tmp_path):
    file = os.fsencode(tmp_path) + b"/caf\xe9"
    with open(file, "wb+") as opened:
        opened.write(b"x")
        opened.flush()
        with mmap.mmap(opened.fileno(), 1):
            assert loader.mapped_libraries("caf.*") == [os.fsdecode(file)]
            locations = (loader.already_loaded(r"libnone\.so"), loader.system("libm.so.6"))
            found = loader.load("libm", locations, ctypes.CDLL, "cos", "none")
    assert found.found_via == "the system's loader"


@linux
def test_a_library_whose_name_is_not_utf_8_is_an_entry_of_the_error(monkeypatch, tmp_path):
    file = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9/libcudnn.so.9")
    error = load_error(monkeypatch, file)
    assert len(error.searched) == 1
    assert error.searched[0].startswith(f"environment variable DNNFFI_CUDNN_LIBRARY: {file} (")


@linux
def test_the_path_of_a_library_found_by_name():
    found = loader.load("libm", (loader.system("libm.so.6"),), ctypes.CDLL, "cos", "none")
    assert found.found_via == "the system's loader"
    assert os.path.isabs(found.path)
    assert os.path.isfile(found.path)


@pytest.mark.parametrize("name", ["c", "m"])
def test_a_shared_library_that_is_not_cudnn(monkeypatch, name):
    file = ctypes.util.find_library(name)
    if file is None:
        pytest.skip(f"this system has no lib{name}")
    error = load_error(monkeypatch, file)
    assert error.searched == (
        f"environment variable DNNFFI_CUDNN_LIBRARY: {file} (not cuDNN: no cudnnGetVersion)",
    )


def test_a_text_file_is_not_cudnn(monkeypatch, tmp_path):
    file = tmp_path / "libcudnn.so.9"
    file.write_text("not a library\n")
    (reason,) = load_error(monkeypatch, file).searched
    assert reason.startswith(f"environment variable DNNFFI_CUDNN_LIBRARY: {file} (")


def test_a_missing_file(monkeypatch, tmp_path):
    error = load_error(monkeypatch, tmp_path / "libcudnn.so.9")
    assert len(error.searched) == 1
    assert "pip install nvidia-cudnn-cu13" in str(error)


def load_error(monkeypatch, file):
    monkeypatch.setenv("DNNFFI_CUDNN_LIBRARY", str(file))
    monkeypatch.setattr(cudnn._process, "current", None)
    with pytest.raises(LibraryNotFoundError) as caught:
        cudnn.load()
    return caught.value


# Versions


@pytest.mark.parametrize(
    ("number", "version"),
    [
        (8900, (8, 9, 0)),
        (8907, (8, 9, 7)),
        (90000, (9, 0, 0)),
        (90100, (9, 1, 0)),
        (91002, (9, 10, 2)),
        (91900, (9, 19, 0)),
        (92800, (9, 28, 0)),
        (100000, (10, 0, 0)),
    ],
)
def test_version_tuple(number, version):
    assert cudnn.version_tuple(number) == version


class FakeCudnn:
    """Functions that a `Library` itself calls, with the statuses of cuDNN 9."""

    NAMES = (
        (0, "CUDNN_STATUS_SUCCESS"),
        (2000, "CUDNN_STATUS_BAD_PARAM"),
        (3000, "CUDNN_STATUS_NOT_SUPPORTED"),
        (3007, "CUDNN_STATUS_NOT_SUPPORTED_WITH_A_REASON"),
    )

    def __init__(self, version=91900, message=b"hiddenSize < 1\n"):
        self.version = version
        self.message = message
        self.names = {number: ffi.new("char[]", name.encode()) for number, name in self.NAMES}
        if version >= 90000:
            self.cudnnGetLastErrorString = self.last_error

    def cudnnGetVersion(self):
        return self.version

    def cudnnGetErrorString(self, number):
        return self.names[number]

    def last_error(self, message, size):
        ffi.memmove(message, self.message, min(len(self.message), size - 1))


def fake_cudnn(*arguments, **options):
    return cudnn.Library(FakeCudnn(*arguments, **options), "/lib/libcudnn.so", "a test")


def test_what_a_library_knows_of_itself():
    library = fake_cudnn(92800)
    assert library.version == (9, 28, 0)
    assert library.version_text == "9.28.0"
    assert repr(library) == "<cuDNN 9.28.0 at /lib/libcudnn.so, found via a test>"


def test_the_oldest_version_is_taken():
    assert fake_cudnn(8907).version == (8, 9, 7)


def test_a_library_that_is_too_old_says_so():
    with pytest.raises(UnsupportedError) as caught:
        fake_cudnn(8906)
    text = str(caught.value)
    for part in ("8.9.6", "needs 8.9.7 or newer", "/lib/libcudnn.so", "a test", "pip install"):
        assert part in text


# Status codes


def test_success_raises_nothing():
    fake_cudnn().check(0, "cudnnCreate")


def test_a_status_becomes_an_error_with_all_that_is_known():
    with pytest.raises(CudnnError) as caught:
        fake_cudnn().check(2000, "cudnnSetRNNDescriptor_v8", "an LSTM")
    error = caught.value
    assert (error.status, error.status_name) == (2000, "CUDNN_STATUS_BAD_PARAM")
    assert (error.function, error.problem) == ("cudnnSetRNNDescriptor_v8", "an LSTM")
    assert error.detail == "hiddenSize < 1"
    assert error.vendor == "cuDNN"
    assert str(error) == (
        "cudnnSetRNNDescriptor_v8 returned CUDNN_STATUS_BAD_PARAM (2000) for an LSTM: "
        "hiddenSize < 1"
    )


def test_a_version_without_messages_has_no_detail():
    with pytest.raises(CudnnError) as caught:
        fake_cudnn(8907).check(2000, "cudnnCreate")
    assert caught.value.detail == ""
    assert str(caught.value) == "cudnnCreate returned CUDNN_STATUS_BAD_PARAM (2000)"


@pytest.mark.parametrize("number", [3000, 3007])
def test_not_supported_is_an_unsupported_error(number):
    library = fake_cudnn(message=b"")
    with pytest.raises(NotImplementedError) as caught:
        library.check(number, "cudnnRNNForward", "float64")
    error = caught.value
    assert isinstance(error, UnsupportedError)
    assert (error.vendor, error.version) == ("cuDNN", "9.19.0")
    name = library.lib.NAMES[2 if number == 3000 else 3][1]
    assert error.limit == f"cudnnRNNForward does not support float64 ({name}, {number})"


def test_an_unsupported_error_has_the_librarys_message():
    with pytest.raises(UnsupportedError, match=r"3000\): hiddenSize < 1$"):
        fake_cudnn().check(3000, "cudnnRNNForward", "float64")


def test_a_message_that_is_not_utf_8_can_be_read():
    assert library.last_error(fake_cudnn(message=b"caf\xe9")) == "caf�"


# How libcudnn is found


def test_places_in_their_order():
    assert [location.found_via for location in cudnn.PLACES] == [
        "environment variable DNNFFI_CUDNN_LIBRARY",
        "already loaded in this process",
        "cuda-pathfinder",
        "the wheel of nvidia.cudnn",
        "the system's loader",
    ]


def test_what_pathfinder_finds_is_a_candidate(monkeypatch):
    import cuda.pathfinder

    monkeypatch.setattr(
        cuda.pathfinder, "load_nvidia_dynamic_lib", lambda name: SimpleNamespace(abs_path=name)
    )
    assert list(cudnn.PLACES[2].candidates()) == ["cudnn"]


def test_the_wheel_of_cudnn_8_is_a_candidate(monkeypatch, tmp_path):
    package = tmp_path / "nvidia/cudnn"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert list(cudnn.PLACES[3].candidates()) == []
    file = package / "lib/libcudnn.so.8"
    file.touch()
    assert list(cudnn.PLACES[3].candidates()) == [str(file)]
    assert "nvidia.cudnn" not in sys.modules


def test_a_wheel_that_is_not_installed_has_no_candidates():
    for package in ("dnnffi_absent", "dnnffi_absent.cudnn", "numpy.absent", "sys", "numpy.version"):
        assert list(loader.wheel(package, "libcudnn.so.8").candidates()) == []


def test_why_pathfinder_finds_nothing_is_said(monkeypatch):
    import cuda.pathfinder

    def missing(name):
        raise cuda.pathfinder.DynamicLibNotFoundError(f"{name}: no\n  libcublasLt")

    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", missing)
    location = cudnn.PLACES[2]
    with pytest.raises(LookupError, match="cudnn: no libcublasLt"):
        list(location.candidates())
    with pytest.raises(LibraryNotFoundError, match="cuda-pathfinder: cudnn: no libcublasLt"):
        loader.load("cuDNN", (location,), ctypes.CDLL, "cudnnGetVersion", "pip")


def test_it_is_opened_once(monkeypatch):
    opened = []

    def load_once(*arguments):
        assert import_lock._is_owned()
        opened.append(arguments)
        return loader.Loaded(FakeCudnn(), "/lib/libcudnn.so", "a test")

    monkeypatch.setattr(cudnn._process, "current", None)
    monkeypatch.setattr("dnnffi.backends.vendor.library.load", load_once)
    with ThreadPoolExecutor(8) as pool:
        libraries = set(pool.map(lambda _: cudnn.load(), range(32)))
    assert len(opened) == len(libraries) == 1


def test_another_library_for_the_length_of_a_block(monkeypatch):
    first, second = fake_cudnn(), fake_cudnn()
    monkeypatch.setattr(cudnn._process, "current", first)
    with cudnn.using(second) as entered:
        assert entered is second is cudnn.load()
    assert cudnn.load() is first


# A libcudnn in C

SOURCE = """
#include <stddef.h>
size_t cudnnGetVersion(void) { return VERSION; }
const char *cudnnGetErrorString(int status) { return status ? "CUDNN_STATUS_X" : "SUCCESS"; }
int cudnnRNNSetClip_v8(void *d, int mode, int nan, double low, double high) { return 0; }
"""


@pytest.fixture(scope="module")
def compiled(compiler, tmp_path_factory):
    """A function that compiles a libcudnn of a version.

    With the default file name, other tests do not find it as a loaded libcudnn.
    """

    def build(version, name="libtiny.so"):
        folder = tmp_path_factory.mktemp("lib")
        source, file = folder / "tiny.c", folder / name
        source.write_text(SOURCE)
        asked = [compiler, "-shared", "-fPIC", f"-DVERSION={version}", source, "-o", file]
        subprocess.run(asked, check=True)
        return file

    return build


def test_a_real_file_by_the_environment_variable(monkeypatch, compiled):
    file = compiled(8907)
    monkeypatch.setenv("DNNFFI_CUDNN_LIBRARY", str(file))
    monkeypatch.setattr(cudnn._process, "current", None)
    library = cudnn.load()
    assert library.version == (8, 9, 7)
    assert library.path == str(file)
    assert library.found_via == "environment variable DNNFFI_CUDNN_LIBRARY"


def test_a_real_file_that_is_too_old(monkeypatch, compiled):
    monkeypatch.setenv("DNNFFI_CUDNN_LIBRARY", str(compiled(8906)))
    monkeypatch.setattr(cudnn._process, "current", None)
    with pytest.raises(UnsupportedError, match=r"8\.9\.6: dnnffi needs 8\.9\.7 or newer"):
        cudnn.load()
    assert cudnn._process.current is None


def test_a_missing_function_names_the_version_it_came_with(compiled):
    file = compiled(8907)
    library = cudnn.Library(ffi.dlopen(str(file)), str(file), "a test")
    assert not library.has("cudnnRNNSetClip_v9")
    with pytest.raises(UnsupportedError) as caught:
        library.function("cudnnRNNSetClip_v9")
    assert str(caught.value) == ("cuDNN 8.9.7: has no cudnnRNNSetClip_v9; it came with cuDNN 9.0")


def test_a_missing_function_of_unknown_origin(compiled):
    file = compiled(8907)
    library = cudnn.Library(ffi.dlopen(str(file)), str(file), "a test")
    with pytest.raises(UnsupportedError, match=r"has no cudnnRNNForward$"):
        library.function("cudnnRNNForward")


def test_a_function_that_is_there(compiled):
    file = compiled(8907)
    library = cudnn.Library(ffi.dlopen(str(file)), str(file), "a test")
    assert library.has("cudnnRNNSetClip_v8")
    assert library.function("cudnnRNNSetClip_v8")(ffi.NULL, 0, 0, 0.0, 0.0) == 0


def python(code, **environment):
    """Return the lines that a new interpreter prints.

    ``DNNFFI_CUDNN_LIBRARY`` is set only if it is in ``environment``.
    """
    env = os.environ | {"PYTHONPATH": str(Path(dnnffi.__file__).parents[1])}
    env.pop("DNNFFI_CUDNN_LIBRARY", None)
    asked = [sys.executable, "-c", code]
    result = subprocess.run(asked, env=env | environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@linux
def test_a_libcudnn_that_is_already_loaded_is_shared(compiled):
    file = compiled(91900, "libcudnn.so.9")
    via, path, version = python(
        f"import ctypes; ctypes.CDLL({str(file)!r})\n"
        "from dnnffi.backends.cudnn.library import load\n"
        "library = load()\n"
        "print(library.found_via, library.path, library.version_text, sep='\\n')\n"
    )
    assert via == "already loaded in this process"
    assert Path(path).samefile(file)
    assert version == "9.19.0"


@linux
def test_the_environment_variable_goes_before_a_loaded_libcudnn(compiled):
    loaded, asked = compiled(91900, "libcudnn.so.9"), compiled(92800)
    (path,) = python(
        f"import ctypes; ctypes.CDLL({str(loaded)!r})\n"
        "from dnnffi.backends.cudnn.library import load\n"
        "print(load().path)\n",
        DNNFFI_CUDNN_LIBRARY=str(asked),
    )
    assert path == str(asked)


@linux
def test_importing_loads_no_library():
    code = (
        "import dnnffi, dnnffi.backends.cudnn.library, dnnffi.backends.cudnn.descriptors\n"
        "from dnnffi.runtime.loader import mapped_libraries\n"
        "print(mapped_libraries('lib(cudnn|cuda|cublas|nvrtc).*'))\n"
    )
    assert python(code) == ["[]"]
