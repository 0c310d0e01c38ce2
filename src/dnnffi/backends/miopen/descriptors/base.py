"""What MIOpen's descriptors share."""

from __future__ import annotations

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.library import Library, load
from dnnffi.backends.vendor.descriptors import base


class Descriptor(base.Descriptor):
    """Base of MIOpen's descriptors. One that MIOpen refuses to set keeps what it held (3.4.0)."""

    _ffi = ffi
    _prefix = "miopen"

    @staticmethod
    def _loaded() -> Library:
        return load()
