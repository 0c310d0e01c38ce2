"""The base class of cuDNN's descriptors."""

from __future__ import annotations

from dnnffi.backends.cudnn.library import load
from dnnffi.backends.vendor.descriptors import base


class Descriptor(base.Descriptor):
    """Base of cuDNN's descriptors.

    What cuDNN itself refuses may leave a tensor or filter descriptor half written; RNN and RNN data
    descriptors keep what they held (seen on 8.9.7, 9.19 and 9.28).
    """

    _loaded = staticmethod(load)
