"""The registry's entry of the backend "cudnn"."""

from __future__ import annotations

from dnnffi.backends.cudnn import library, limits
from dnnffi.backends.cudnn.conv_executor import CudnnConvolutions
from dnnffi.backends.cudnn.rnn_candidates import CudnnCandidates
from dnnffi.backends.entry import Backend
from dnnffi.backends.own.recurrent.candidates import OwnCandidates

CUDNN = Backend(
    name="cudnn",
    title="cuDNN",
    kind="cuda",
    platform="CUDA",
    load=library.load,
    loaded=library.loaded,
    candidates=lambda library: (CudnnCandidates(library), OwnCandidates(library.memory)),
    convolutions=CudnnConvolutions,
    tunes=True,
    rnn_limits=limits.RNN_LIMITS,
    conv_limits=limits.CONV_LIMITS,
    fusion_limits=(),
    bias_gradient_limits=(),
)
