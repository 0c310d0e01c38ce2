"""Tests of finding libMIOpen, its versions and its statuses.

The libMIOpen here is a stand-in of a few lines of C; test_descriptors.py tests the real one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dnnffi
from dnnffi.backends.miopen import library as miopen
from dnnffi.backends.miopen._cdef import ffi
from dnnffi.errors import LibraryNotFoundError, MiopenError, StatusError, UnsupportedError

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")

SOURCE = """
#include <stddef.h>
int miopenGetVersion(size_t *major, size_t *minor, size_t *patch)
{
    *major = MAJOR;
    *minor = MINOR;
    *patch = 1;
    return 0;
}
const char *miopenGetErrorString(int status)
{
    const char *names[] = {"Success", "NotInitialized", "InvalidValue", "BadParm", "AllocFailed",
                           "InternalError", "NotImplemented", "UnknownError", "UnsupportedOp"};
    return names[status];
}
"""


@pytest.fixture(scope="module")
def compiled(compiler, tmp_path_factory):
    """A function that compiles a libMIOpen of a version.

    With the default file name, other tests do not find it as a loaded libMIOpen.
    """

    def build(major, minor, name="libtiny.so", folder=None, define="-DTINY"):
        folder = folder or tmp_path_factory.mktemp("lib")
        source, file = folder / "tiny.c", folder / name
        source.write_text(SOURCE)
        defines = f"-DMAJOR={major}", f"-DMINOR={minor}", define
        subprocess.run([compiler, "-shared", "-fPIC", *defines, source, "-o", file], check=True)
        return file

    return build


@pytest.fixture
def nothing_loaded(monkeypatch):
    for name in ("DNNFFI_MIOPEN_LIBRARY", "ROCM_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(miopen._process, "current", None)


@pytest.fixture
def tiny(compiled):
    file = compiled(3, 5)
    return miopen.Library(ffi.dlopen(str(file)), str(file), "a test")


@pytest.mark.usefixtures("nothing_loaded")
def test_the_environment_variable_names_the_file(monkeypatch, compiled):
    file = compiled(3, 4)
    monkeypatch.setenv("DNNFFI_MIOPEN_LIBRARY", str(file))
    library = miopen.load()
    assert library.version == (3, 4, 1)
    assert library.version_text == "3.4.1"
    assert library.path == str(file)
    assert library.found_via == "environment variable DNNFFI_MIOPEN_LIBRARY"
    assert repr(library) == f"<MIOpen 3.4.1 at {file}, found via {library.found_via}>"
    assert miopen.load() is library


@pytest.mark.usefixtures("nothing_loaded")
def test_the_environment_variable_is_decisive(monkeypatch, tmp_path):
    monkeypatch.setenv("DNNFFI_MIOPEN_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(LibraryNotFoundError) as caught:
        miopen.load()
    assert len(caught.value.searched) == 1
    assert caught.value.library == "MIOpen"
    assert "miopen-hip" in caught.value.install


@pytest.mark.usefixtures("nothing_loaded")
@pytest.mark.parametrize("name", ["libMIOpen.so.1", "libMIOpen.so"])
def test_rocm_path_names_the_installation(monkeypatch, compiled, tmp_path, name):
    (tmp_path / "lib").mkdir()
    file = compiled(3, 4, name, tmp_path / "lib")
    (tmp_path / "other").symlink_to(tmp_path)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "other"))
    # An earlier test of this process may have loaded a library.
    locations = [place for place in miopen.PLACES if "already loaded" not in place.found_via]
    monkeypatch.setattr(miopen._process, "_locations", tuple(locations))
    library = miopen.load()
    assert library.found_via == "ROCM_PATH"
    assert Path(library.path).samefile(file)


@pytest.mark.usefixtures("nothing_loaded")
def test_what_was_searched_is_said(monkeypatch):
    locations = [place for place in miopen.PLACES if "loader" not in place.found_via]
    monkeypatch.setattr(miopen._process, "_locations", (locations[0], locations[2]))
    with pytest.raises(LibraryNotFoundError) as caught:
        miopen.load()
    assert caught.value.searched == (
        "environment variable DNNFFI_MIOPEN_LIBRARY: nothing there",
        "ROCM_PATH: ROCM_PATH is not set",
    )


@pytest.mark.usefixtures("nothing_loaded")
@pytest.mark.parametrize("version", [(3, 3), (2, 20)])
def test_a_library_that_is_too_old(monkeypatch, compiled, version):
    monkeypatch.setenv("DNNFFI_MIOPEN_LIBRARY", str(compiled(*version)))
    with pytest.raises(UnsupportedError, match=r"\.1: dnnffi needs 3\.4\.0 or newer; .* Install: "):
        miopen.load()
    assert miopen._process.current is None


@pytest.mark.usefixtures("nothing_loaded")
@pytest.mark.parametrize("what", ["no library", "another library"])
def test_a_wrong_file(monkeypatch, compiled, tmp_path, what):
    if what == "no library":
        file = tmp_path / "libMIOpen.so.1"
        file.write_text("not a library\n")
    else:
        file = compiled(3, 4, "libother.so", define="-DmiopenGetVersion=otherGetVersion")
    monkeypatch.setenv("DNNFFI_MIOPEN_LIBRARY", str(file))
    with pytest.raises(LibraryNotFoundError) as caught:
        miopen.load()
    (searched,) = caught.value.searched
    assert str(file) in searched
    assert ("(not MIOpen: no miopenGetVersion)" in searched) == (what == "another library")


@linux
def test_a_library_that_is_already_loaded_is_shared(compiled):
    file = compiled(3, 4, "libMIOpen.so.1")
    code = (
        f"import ctypes; ctypes.CDLL({str(file)!r})\n"
        "from dnnffi.backends.miopen.library import load\n"
        "library = load()\n"
        "print(library.found_via, library.path, sep='\\n')\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(dnnffi.__file__).parents[1])}
    env.pop("DNNFFI_MIOPEN_LIBRARY", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    via, path = done.stdout.splitlines()
    assert via == "already loaded in this process"
    assert Path(path).samefile(file)


@linux
def test_importing_loads_no_library():
    code = (
        "import dnnffi.backends.miopen.descriptors, dnnffi.backends.miopen.layout\n"
        "from dnnffi.runtime.loader import mapped_libraries\n"
        "print(mapped_libraries('lib(MIOpen|amdhip64|rocblas).*'))\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(dnnffi.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# Statuses


def test_success_is_silent(tiny):
    tiny.check(0, "miopenCreate")


@pytest.mark.parametrize(
    ("status", "name", "words"),
    [
        (3, "BadParm", "an argument is one that MIOpen refuses"),
        (5, "InternalError", "a failure inside MIOpen"),
        (7, "UnknownError", "a workspace or reserve space that is too small"),
    ],
)
def test_a_status_that_says_little_is_spelled_out(tiny, status, name, words):
    with pytest.raises(MiopenError) as caught:
        tiny.check(status, "miopenRNNForward", "a problem")
    error = caught.value
    assert isinstance(error, StatusError)
    assert (error.status, error.status_name, error.function) == (status, name, "miopenRNNForward")
    assert error.problem == "a problem"
    assert words in error.detail
    assert str(error).startswith(f"miopenRNNForward returned {name} ({status}) for a problem: ")


def test_a_status_that_says_enough_has_no_more_words(tiny):
    error = tiny.error(4, "miopenCreate")
    assert str(error) == "miopenCreate returned AllocFailed (4)"


@pytest.mark.parametrize(("status", "name"), [(6, "NotImplemented"), (8, "UnsupportedOp")])
def test_what_the_library_cannot_do_is_unsupported(tiny, status, name):
    with pytest.raises(UnsupportedError) as caught:
        tiny.check(status, "miopenRNNForward")
    expected = f"MIOpen 3.5.1: miopenRNNForward does not support this ({name}, {status})"
    assert str(caught.value) == expected


def test_a_missing_function(tiny):
    assert tiny.has("miopenGetVersion")
    assert not tiny.has("miopenCreate")
    with pytest.raises(UnsupportedError, match=r"^MIOpen 3\.5\.1: has no miopenCreate$"):
        tiny.function("miopenCreate")


def test_another_library_may_be_used_for_a_while(tiny, monkeypatch):
    monkeypatch.setattr(miopen._process, "current", None)
    with miopen.using(tiny):
        assert miopen.load() is tiny
    assert miopen._process.current is None
