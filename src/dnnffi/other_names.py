"""Names of cuDNN, CuPy, PyTorch and others for what dnnffi has, or does not have.

Only an unknown attribute of ``dnnffi`` leads here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_FORWARD = "{0}_forward, whose context has backward()"
_LAYER = "{0} (a function), or dnnffi.torch.{1} (a module of PyTorch)"
_NONE = "dnnffi has recurrent networks and convolutions only; docs/from_cupy.md has replacements"

_NO_HANDLES = "it is not needed, each thread has handles on its current stream"

_MEANT = {
    # cuDNN and CuPy
    "convolutionforward": "conv",
    "convforward": "conv",
    "convolution": "conv",
    "convolutionbackwarddata": "conv_backward_data",
    "convbackwardinput": "conv_backward_data",
    "convolutionbackwardfilter": "conv_backward_weights",
    "convbackwardfilter": "conv_backward_weights",
    "convbackwardkernel": "conv_backward_weights",
    "convbackwardweight": "conv_backward_weights",
    "convolutionbackwardbias": "conv_backward_bias",
    "convbackward": "conv_backward_data, conv_backward_weights and conv_backward_bias",
    "convolutionbiasactivationforward": "conv, with bias, residual and activation",
    "deconv": "conv_transpose",
    "deconvolution": "conv_transpose",
    "rnnforward": "lstm, gru, rnn_tanh or rnn_relu; to train, lstm_forward and its like",
    "rnnforwardinference": "lstm, gru, rnn_tanh or rnn_relu",
    "rnnforwardtraining": "lstm_forward, gru_forward, rnn_tanh_forward or rnn_relu_forward",
    "rnnbackwarddata": "backward() of the context that lstm_forward and its like return",
    "rnnbackwardweights": "backward() of the context that lstm_forward and its like return",
    "gethandle": _NO_HANDLES,
    "resethandles": _NO_HANDLES,
    "createhandle": _NO_HANDLES,
    "setmaxworkspacesize": "options={'workspace_limit': bytes} of a convolution",
    "getmaxworkspacesize": "options={'workspace_limit': bytes} of a convolution",
    "getversion": "the command python -m dnnffi info",
    "dropoutstates": "DropoutState",
    "createdropoutstates": "DropoutState",
    # PyTorch
    "convtranspose1d": "conv_transpose",
    "convtranspose2d": "conv_transpose",
    "convtranspose3d": "conv_transpose",
    "conv1d": "conv, for one to three dimensions",
    "conv2d": "conv, for one to three dimensions",
    "conv3d": "conv, for one to three dimensions",
    "conv2dinput": "conv_backward_data",
    "conv2dweight": "conv_backward_weights",
    "lstmcell": "lstm, with one step",
    "grucell": "gru, with one step",
    "rnncell": "rnn_tanh or rnn_relu, with one step",
    "rnn": "rnn_tanh or rnn_relu",
    "lstmbackward": _FORWARD.format("lstm"),
    "grubackward": _FORWARD.format("gru"),
    "rnntanhbackward": _FORWARD.format("rnn_tanh"),
    "rnnrelubackward": _FORWARD.format("rnn_relu"),
    "linear": "matmul",
    "gemm": "matmul",
    "dot": "matmul",
    "mm": "matmul",
    "dropout": "the keyword dropout of lstm_forward and its like, and DropoutState",
    "dropoutforward": "the keyword dropout of lstm_forward and its like, and DropoutState",
    "dropoutbackward": "the keyword dropout of lstm_forward and its like, and DropoutState",
    "relu": "conv, with activation='relu'",
    "convrelu": "conv, with activation='relu'",
    "convbias": "conv, with bias",
    "convbiasrelu": "conv, with bias and activation='relu'",
    "depthwiseconv": "conv, with as many groups as channels",
    "depthwiseconv1d": "conv, with as many groups as channels",
    "depthwiseconv2d": "conv, with as many groups as channels",
    # Weights, plans, and where things run
    "": "the keyword backend of a call",  # cudnn, miopen
    "backend": "the keyword backend of a call",
    "reference": "backend='reference' of a call",
    "load": "RNNWeights.load",
    "save": "RNNWeights.save",
    "loadweights": "RNNWeights.load",
    "fromtorch": "RNNWeights.from_torch",
    "fromkeras": "RNNWeights.from_keras",
    "fromonnx": "RNNWeights.from_onnx",
    "fromflax": "RNNWeights.from_flax",
    "fromequinox": "RNNWeights.from_equinox",
    "keras": "RNNWeights.from_keras",
    "onnx": "RNNWeights.from_onnx",
    "flax": "RNNWeights.from_flax",
    "vulkan": "pack_rnn, or backend='vulkan' of a call",
    "executor": "dnnffi.rnn.executor.RNNExecutor",
    "rnnexecutor": "dnnffi.rnn.executor.RNNExecutor",
    "tune": "options={'tune': 'now'} of a call, or autotune() of a plan",
    "autotune": "options={'tune': 'now'} of a call, or autotune() of a plan",
    "setbackend": "the keyword backend of a call",
    "isavailable": "the command python -m dnnffi info",
    "info": "the command python -m dnnffi info",
}
"""Names and phrases to suggest, by names of others in lower case without underscores."""

MIN_SIMILARITY = 0.7
"""Ratio of ``difflib`` from which a name is taken for a mistyped one."""

_MODULES = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh or rnn_relu"}

_NOT_OFFERED = re.compile(
    r"activation|attention|batchnorm|ctcloss|elementwise|embedding|groupnorm|instancenorm|"
    r"layernorm|lrn|optensor|pool|reducetensor|softmax|spatialtransform|transformer",
    re.IGNORECASE,
)

_VENDORS = re.compile(r"^(cudnn|miopen)|(_?v\d+|_ex)$", re.IGNORECASE)


def hint(name: str, known: Iterable[str]) -> str:
    """Return what an unknown name is to end an error message; empty if nobody knows.

    ``known`` are the names that dnnffi has.
    """
    if name in _MODULES:
        return f"; did you mean {_LAYER.format(_MODULES[name], name)}?"
    plain = _VENDORS.sub("", name).replace("_", "").lower()
    if meant := _MEANT.get(plain):
        return f": {meant}" if meant is _NO_HANDLES else f"; did you mean {meant}?"
    if _NOT_OFFERED.search(plain):
        return f": {_NONE}"
    lowered = {one.lower(): one for one in known}
    if near := get_close_matches(name.lower(), lowered, 1, MIN_SIMILARITY):
        return f"; did you mean {lowered[near[0]]}?"
    return ""
