"""Enumerators of the graph API by the names that dnnffi uses.

Notes, knobs and modes of heuristics have cuDNN's own names, in small letters and without prefix.
"""

from __future__ import annotations

from functools import partial

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.vendor.library import constants, named

_named = partial(named, ffi)


def _by_short_name(type_name: str, prefix: str) -> dict[str, int]:
    found = constants(ffi, type_name)
    return {name.removeprefix(prefix).lower(): value for name, value in found.items()}


DESCRIPTORS = constants(ffi, "cudnnBackendDescriptorType_t")
ATTRIBUTES = constants(ffi, "cudnnBackendAttributeName_t")
ELEMENTS = constants(ffi, "cudnnBackendAttributeType_t")

CONVOLUTION_MODES = _named(cross_correlation="CUDNN_CROSS_CORRELATION")
POINTWISE_MODES = _named(add="CUDNN_POINTWISE_ADD", relu="CUDNN_POINTWISE_RELU_FWD")
HEURISTICS = _by_short_name("cudnnBackendHeurMode_t", "CUDNN_HEUR_MODE_")
NUMERICAL_NOTES = _by_short_name("cudnnBackendNumericalNote_t", "CUDNN_NUMERICAL_NOTE_")
BEHAVIOR_NOTES = _by_short_name("cudnnBackendBehaviorNote_t", "CUDNN_BEHAVIOR_NOTE_")
KNOBS = _by_short_name("cudnnBackendKnobType_t", "CUDNN_KNOB_TYPE_")
