"""The base class of MIOpen's descriptors."""

from __future__ import annotations

from dnnffi.backends.miopen.library import load
from dnnffi.backends.vendor.descriptors import base


class Descriptor(base.Descriptor):
    """Base of MIOpen's descriptors. One that MIOpen refuses to set keeps what it held (3.4.0)."""

    _loaded = staticmethod(load)
