"""cuDNN's enumerators by the names that dnnffi uses."""

from __future__ import annotations

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.vendor.enumerators import constants

_DATA = constants(ffi, "cudnnDataType_t")
_MODE = constants(ffi, "cudnnRNNMode_t")
_ALGORITHM = constants(ffi, "cudnnRNNAlgo_t")
_MATH = constants(ffi, "cudnnMathType_t")
_LAYOUT = constants(ffi, "cudnnRNNDataLayout_t")
_BIAS = constants(ffi, "cudnnRNNBiasMode_t")
_FORMAT = constants(ffi, "cudnnTensorFormat_t")
_NAN = constants(ffi, "cudnnNanPropagation_t")

DATA_TYPES = {
    "float32": _DATA["CUDNN_DATA_FLOAT"],
    "float64": _DATA["CUDNN_DATA_DOUBLE"],
    "float16": _DATA["CUDNN_DATA_HALF"],
    "bfloat16": _DATA["CUDNN_DATA_BFLOAT16"],
}
MODES = {
    "rnn_relu": _MODE["CUDNN_RNN_RELU"],
    "rnn_tanh": _MODE["CUDNN_RNN_TANH"],
    "lstm": _MODE["CUDNN_LSTM"],
    "gru": _MODE["CUDNN_GRU"],
}
ALGORITHMS = {
    "standard": _ALGORITHM["CUDNN_RNN_ALGO_STANDARD"],
    "persist_static": _ALGORITHM["CUDNN_RNN_ALGO_PERSIST_STATIC"],
    "persist_dynamic": _ALGORITHM["CUDNN_RNN_ALGO_PERSIST_DYNAMIC"],
    "persist_static_small_h": _ALGORITHM["CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H"],
}
MATH_TYPES = {
    "default": _MATH["CUDNN_DEFAULT_MATH"],
    "tensor_op": _MATH["CUDNN_TENSOR_OP_MATH"],
    "allow_conversion": _MATH["CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION"],
    "fma": _MATH["CUDNN_FMA_MATH"],
}
LAYOUTS = {
    "sequence_major": _LAYOUT["CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED"],
    "packed": _LAYOUT["CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED"],
    "batch_major": _LAYOUT["CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED"],
}
BIAS_MODES = {
    "none": _BIAS["CUDNN_RNN_NO_BIAS"],
    "single_input": _BIAS["CUDNN_RNN_SINGLE_INP_BIAS"],
    "double": _BIAS["CUDNN_RNN_DOUBLE_BIAS"],
    "single_recurrent": _BIAS["CUDNN_RNN_SINGLE_REC_BIAS"],
}
FORMATS = {
    "NCHW": _FORMAT["CUDNN_TENSOR_NCHW"],
    "NHWC": _FORMAT["CUDNN_TENSOR_NHWC"],
}
NAN_MODES = {
    "propagate": _NAN["CUDNN_PROPAGATE_NAN"],
    "clip": _NAN["CUDNN_NOT_PROPAGATE_NAN"],
}
