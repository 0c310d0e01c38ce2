"""MIOpen's enumerators by the names that dnnffi uses."""

from __future__ import annotations

from functools import partial

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.vendor.enumerators import named

_named = partial(named, ffi)

DATA_TYPES = _named(
    float32="miopenFloat",
    float64="miopenDouble",
    float16="miopenHalf",
    bfloat16="miopenBFloat16",
)
RNN_DATA_TYPES = {name: DATA_TYPES[name] for name in ("float16", "float32")}
"""The data types of which MIOpen has RNNs: ``miopenSetRNNDescriptor`` refuses the others."""
MODES = _named(
    rnn_relu="miopenRNNRELU",
    rnn_tanh="miopenRNNTANH",
    lstm="miopenLSTM",
    gru="miopenGRU",
)
ALGORITHMS = _named(
    default="miopenRNNdefault",
    fundamental="miopenRNNfundamental",
    rounded_dynamic="miopenRNNroundedDynamic",
)
LAYOUTS = _named(
    sequence_major="miopenRNNDataSeqMajorPadded",
    packed="miopenRNNDataSeqMajorNotPadded",
    batch_major="miopenRNNDataBatchMajorPadded",
)
CONVOLUTION_MODES = _named(convolution="miopenConvolution", transpose="miopenTranspose")
"""Two more, for groups, are deprecated: the library takes them for "convolution" (3.4.0)."""
FIND_MODES = _named(
    normal="miopenConvolutionFindModeNormal",
    fast="miopenConvolutionFindModeFast",
    hybrid="miopenConvolutionFindModeHybrid",
    dynamic_hybrid="miopenConvolutionFindModeDynamicHybrid",
)
CONVOLUTION_ALGORITHMS = _named(
    gemm="miopenConvolutionAlgoGEMM",
    direct="miopenConvolutionAlgoDirect",
    fft="miopenConvolutionAlgoFFT",
    winograd="miopenConvolutionAlgoWinograd",
    implicit_gemm="miopenConvolutionAlgoImplicitGEMM",
)
ACTIVATIONS = _named(
    identity="miopenActivationPASTHRU",
    logistic="miopenActivationLOGISTIC",
    tanh="miopenActivationTANH",
    relu="miopenActivationRELU",
    soft_relu="miopenActivationSOFTRELU",
    abs="miopenActivationABS",
    power="miopenActivationPOWER",
    clipped_relu="miopenActivationCLIPPEDRELU",
    leaky_relu="miopenActivationLEAKYRELU",
    elu="miopenActivationELU",
)
RELU = ACTIVATIONS["relu"]
CONVOLUTION_DATA_TYPES = {name: DATA_TYPES[name] for name in ("float16", "bfloat16", "float32")}
"""The data types of which MIOpen has convolutions: it lists solutions in double, and none runs
(3.4.0)."""
