"""MIOpen's descriptors as Python objects: create, set, read back, compare, close.

What a descriptor holds is always read from the library, never from a copy kept here. One whose
setting fails is destroyed before the error leaves the constructor. Two of a kind are equal when the
library reads the same out of both; they are mutable and so have no hash. MIOpen has no filter
descriptor: weights are a tensor.
"""

from dnnffi.backends.miopen.descriptors.activation import ActivationDescriptor, ActivationInfo
from dnnffi.backends.miopen.descriptors.base import Descriptor
from dnnffi.backends.miopen.descriptors.convolution import ConvolutionDescriptor, ConvolutionInfo
from dnnffi.backends.miopen.descriptors.dropout import DropoutDescriptor, DropoutInfo
from dnnffi.backends.miopen.descriptors.network import RNNDescriptor, RNNInfo
from dnnffi.backends.miopen.descriptors.sequences import SeqTensorDescriptor
from dnnffi.backends.miopen.descriptors.tensor import TensorDescriptor
from dnnffi.backends.vendor.descriptors.dropout import states_size
from dnnffi.backends.vendor.descriptors.sequences import RNNDataInfo
from dnnffi.backends.vendor.descriptors.tensor import MAX_DIMS, TensorInfo

__all__ = [
    "MAX_DIMS",
    "ActivationDescriptor",
    "ActivationInfo",
    "ConvolutionDescriptor",
    "ConvolutionInfo",
    "Descriptor",
    "DropoutDescriptor",
    "DropoutInfo",
    "RNNDataInfo",
    "RNNDescriptor",
    "RNNInfo",
    "SeqTensorDescriptor",
    "TensorDescriptor",
    "TensorInfo",
    "states_size",
]
