"""Networks and convolutions inside JAX programs: jit, grad, vmap, shard_map, captured by XLA.

Importing this imports JAX (extra ``jax``) and loads no library of a vendor's.
"""

from dnnffi.jax.convolution.functions import conv
from dnnffi.jax.rnn.functions import gru, lstm, rnn_relu, rnn_tanh
from dnnffi.jax.rnn.tuning import tune
from dnnffi.jax.rnn.weights import init, pack, unpack

__all__ = ["conv", "gru", "init", "lstm", "pack", "rnn_relu", "rnn_tanh", "tune", "unpack"]
