"""Networks and convolutions on PyTorch's tensors, which its autograd differentiates.

Needs PyTorch, the extra ``torch``; nothing else of dnnffi imports it. `LSTM`, `GRU` and `RNN` are
modules to use in place of those of ``torch.nn``. The functions take tensors of weights.

Tensors on the host are computed by the NumPy reference. Calls on a GPU take their results from
PyTorch's allocator, on its current stream, without CuPy. Gradients are those of
`dnnffi.RNNContext.backward` and of `dnnffi.conv_backward_data`, `conv_backward_weights` and
`conv_backward_bias`. There are no second derivatives: asking for one raises `UnsupportedError`.

Under ``torch.autocast`` a network computes in autocast's dtype (``torch.nn`` on a GPU in float16),
unless its weights are float64 or an `RNNWeights`.
``torch.compile`` leaves a call as it is, between compiled parts. In ``torch.jit.trace`` a call
raises `UnsupportedError`, and so does dropout in a forward pass that ``torch.utils.checkpoint``
repeats.
"""

try:
    import torch as _torch  # noqa: F401 - only whether it is installed
except ImportError as error:
    from dnnffi.installing import install_extra

    raise ImportError(f"dnnffi.torch needs PyTorch. Install: {install_extra('torch')}") from error

from dnnffi.annotations import show_annotations
from dnnffi.torch.convolutions import conv, conv_transpose
from dnnffi.torch.functions import gru, lstm, rnn_relu, rnn_tanh
from dnnffi.torch.modules import GRU, LSTM, RNN

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "conv",
    "conv_transpose",
    "gru",
    "lstm",
    "rnn_relu",
    "rnn_tanh",
]

show_annotations(*map(globals().__getitem__, __all__))
