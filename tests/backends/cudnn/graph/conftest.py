"""The real libcudnn with a count of the descriptors that were not destroyed."""

from __future__ import annotations

import pytest

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.library import Library


class Counted:
    """Wrapper of libcudnn that counts backend descriptors."""

    def __init__(self, lib):
        self._lib = lib
        self.created = 0
        self.live = []
        self.destroyed_twice = 0

    def __getattr__(self, name):
        return getattr(self._lib, name)

    def cudnnBackendCreateDescriptor(self, kind, out):
        status = self._lib.cudnnBackendCreateDescriptor(kind, out)
        self.created += not status
        self.live.append(int(ffi.cast("uintptr_t", out[0])))
        return status

    def cudnnBackendDestroyDescriptor(self, pointer):
        address = int(ffi.cast("uintptr_t", pointer))
        if address not in self.live:
            self.destroyed_twice += 1
            return 0
        self.live.remove(address)
        return self._lib.cudnnBackendDestroyDescriptor(pointer)


@pytest.fixture(autouse=True)
def newer_than_8(library):
    if library.version < (9,):
        pytest.skip("what is stated here was seen on cuDNN 9")


@pytest.fixture
def counted(library):
    """The library with a count. The test fails if a descriptor needs the collector."""
    lib = Counted(library.lib)
    yield Library(lib, library.path, library.found_via)
    assert lib.live == []
    assert lib.destroyed_twice == 0
