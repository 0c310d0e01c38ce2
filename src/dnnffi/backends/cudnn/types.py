"""cuDNN's enumerators by the names that dnnffi uses."""

from __future__ import annotations

from functools import partial

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.vendor.enumerators import named

_named = partial(named, ffi)

DATA_TYPES = _named(
    float32="CUDNN_DATA_FLOAT",
    float64="CUDNN_DATA_DOUBLE",
    float16="CUDNN_DATA_HALF",
    bfloat16="CUDNN_DATA_BFLOAT16",
)
MODES = _named(
    rnn_relu="CUDNN_RNN_RELU",
    rnn_tanh="CUDNN_RNN_TANH",
    lstm="CUDNN_LSTM",
    gru="CUDNN_GRU",
)
ALGORITHMS = _named(
    standard="CUDNN_RNN_ALGO_STANDARD",
    persist_static="CUDNN_RNN_ALGO_PERSIST_STATIC",
    persist_dynamic="CUDNN_RNN_ALGO_PERSIST_DYNAMIC",
    persist_static_small_h="CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H",
)
MATH_TYPES = _named(
    default="CUDNN_DEFAULT_MATH",
    tensor_op="CUDNN_TENSOR_OP_MATH",
    allow_conversion="CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION",
    fma="CUDNN_FMA_MATH",
)
LAYOUTS = _named(
    sequence_major="CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED",
    packed="CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED",
    batch_major="CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED",
)
BIAS_MODES = _named(
    none="CUDNN_RNN_NO_BIAS",
    single_input="CUDNN_RNN_SINGLE_INP_BIAS",
    double="CUDNN_RNN_DOUBLE_BIAS",
    single_recurrent="CUDNN_RNN_SINGLE_REC_BIAS",
)
FORMATS = _named(NCHW="CUDNN_TENSOR_NCHW", NHWC="CUDNN_TENSOR_NHWC")
NAN_MODES = _named(propagate="CUDNN_PROPAGATE_NAN", clip="CUDNN_NOT_PROPAGATE_NAN")
