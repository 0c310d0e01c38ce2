"""cuDNN's descriptors as Python objects: create, set, read back, compare, close.

What a descriptor holds is always read from the library, never from a copy kept here. One whose
setting fails is destroyed before the error leaves the constructor. Two of a kind are equal when the
library reads the same out of both; they are mutable and so have no hash.
"""

from dnnffi.backends.cudnn.descriptors.base import Descriptor
from dnnffi.backends.cudnn.descriptors.dropout import DropoutDescriptor
from dnnffi.backends.cudnn.descriptors.network import ClipInfo, RNNDescriptor, RNNInfo
from dnnffi.backends.cudnn.descriptors.rnn_data import MAX_STEPS, RNNDataDescriptor
from dnnffi.backends.cudnn.descriptors.tensor import FilterDescriptor, FilterInfo, TensorDescriptor
from dnnffi.backends.vendor.descriptors.dropout import DropoutInfo, states_size
from dnnffi.backends.vendor.descriptors.sequences import RNNDataInfo
from dnnffi.backends.vendor.descriptors.tensor import MAX_DIMS, TensorInfo

__all__ = [
    "MAX_DIMS",
    "MAX_STEPS",
    "ClipInfo",
    "Descriptor",
    "DropoutDescriptor",
    "DropoutInfo",
    "FilterDescriptor",
    "FilterInfo",
    "RNNDataDescriptor",
    "RNNDataInfo",
    "RNNDescriptor",
    "RNNInfo",
    "TensorDescriptor",
    "TensorInfo",
    "states_size",
]
