"""Networks and convolutions inside JAX programs: jit, grad, vmap, shard_map, captured by XLA.

Importing this imports JAX (extra ``jax``) and loads no library of a vendor's.
"""

try:
    import jax as _jax  # noqa: F401 - only whether it is installed
except ImportError as error:
    from dnnffi.installing import install_extra

    raise ImportError(f"dnnffi.jax needs JAX. Install: {install_extra('jax')}") from error

from dnnffi.annotations import show_annotations
from dnnffi.jax.convolution.functions import conv
from dnnffi.jax.rnn.functions import gru, lstm, rnn_relu, rnn_tanh
from dnnffi.jax.rnn.steps import gru_step, lstm_step, rnn_relu_step, rnn_tanh_step
from dnnffi.jax.rnn.tuning import tune
from dnnffi.jax.rnn.weights import init, pack, unpack

__all__ = [
    "conv",
    "gru",
    "gru_step",
    "init",
    "lstm",
    "lstm_step",
    "pack",
    "rnn_relu",
    "rnn_relu_step",
    "rnn_tanh",
    "rnn_tanh_step",
    "tune",
    "unpack",
]

show_annotations(*map(globals().__getitem__, __all__))
