"""MIOpen's enumerators by the names that dnnffi uses."""

from __future__ import annotations

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.vendor.enumerators import constants

_DATA = constants(ffi, "miopenDataType_t")
_MODE = constants(ffi, "miopenRNNMode_t")
_ALGORITHM = constants(ffi, "miopenRNNAlgo_t")
_LAYOUT = constants(ffi, "miopenRNNBaseLayout_t")
_CONVOLUTION = constants(ffi, "miopenConvolutionMode_t")
_FIND = constants(ffi, "miopenConvolutionFindMode_t")
_ACTIVATION = constants(ffi, "miopenActivationMode_t")
_CONVOLUTION_ALGORITHM = constants(ffi, "miopenConvAlgorithm_t")

DATA_TYPES = {
    "float32": _DATA["miopenFloat"],
    "float64": _DATA["miopenDouble"],
    "float16": _DATA["miopenHalf"],
    "bfloat16": _DATA["miopenBFloat16"],
}
RNN_DATA_TYPES = {name: DATA_TYPES[name] for name in ("float16", "float32")}
"""The data types of which MIOpen has RNNs: ``miopenSetRNNDescriptor`` refuses the others."""
MODES = {
    "rnn_relu": _MODE["miopenRNNRELU"],
    "rnn_tanh": _MODE["miopenRNNTANH"],
    "lstm": _MODE["miopenLSTM"],
    "gru": _MODE["miopenGRU"],
}
ALGORITHMS = {
    "default": _ALGORITHM["miopenRNNdefault"],
    "fundamental": _ALGORITHM["miopenRNNfundamental"],
    "rounded_dynamic": _ALGORITHM["miopenRNNroundedDynamic"],
}
LAYOUTS = {
    "sequence_major": _LAYOUT["miopenRNNDataSeqMajorPadded"],
    "packed": _LAYOUT["miopenRNNDataSeqMajorNotPadded"],
    "batch_major": _LAYOUT["miopenRNNDataBatchMajorPadded"],
}
CONVOLUTION_MODES = {
    "convolution": _CONVOLUTION["miopenConvolution"],
    "transpose": _CONVOLUTION["miopenTranspose"],
}
"""Two more, for groups, are deprecated: the library takes them for "convolution" (3.4.0)."""
FIND_MODES = {
    "normal": _FIND["miopenConvolutionFindModeNormal"],
    "fast": _FIND["miopenConvolutionFindModeFast"],
    "hybrid": _FIND["miopenConvolutionFindModeHybrid"],
    "dynamic_hybrid": _FIND["miopenConvolutionFindModeDynamicHybrid"],
}
CONVOLUTION_ALGORITHMS = {
    "gemm": _CONVOLUTION_ALGORITHM["miopenConvolutionAlgoGEMM"],
    "direct": _CONVOLUTION_ALGORITHM["miopenConvolutionAlgoDirect"],
    "fft": _CONVOLUTION_ALGORITHM["miopenConvolutionAlgoFFT"],
    "winograd": _CONVOLUTION_ALGORITHM["miopenConvolutionAlgoWinograd"],
    "implicit_gemm": _CONVOLUTION_ALGORITHM["miopenConvolutionAlgoImplicitGEMM"],
}
ACTIVATIONS = {
    "identity": _ACTIVATION["miopenActivationPASTHRU"],
    "logistic": _ACTIVATION["miopenActivationLOGISTIC"],
    "tanh": _ACTIVATION["miopenActivationTANH"],
    "relu": _ACTIVATION["miopenActivationRELU"],
    "soft_relu": _ACTIVATION["miopenActivationSOFTRELU"],
    "abs": _ACTIVATION["miopenActivationABS"],
    "power": _ACTIVATION["miopenActivationPOWER"],
    "clipped_relu": _ACTIVATION["miopenActivationCLIPPEDRELU"],
    "leaky_relu": _ACTIVATION["miopenActivationLEAKYRELU"],
    "elu": _ACTIVATION["miopenActivationELU"],
}
RELU = ACTIVATIONS["relu"]
CONVOLUTION_DATA_TYPES = {name: DATA_TYPES[name] for name in ("float16", "bfloat16", "float32")}
"""The data types of which MIOpen has convolutions: it lists solutions in double, and none runs
(3.4.0)."""
