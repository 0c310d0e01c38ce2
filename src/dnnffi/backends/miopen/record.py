"""The record of the backend "miopen"."""

from __future__ import annotations

from dnnffi.backends.backend import Backend
from dnnffi.backends.miopen import conv_limits, library, rnn_limits
from dnnffi.backends.miopen.conv_executor import MiopenConvolutions
from dnnffi.backends.miopen.dropout import Generator
from dnnffi.backends.miopen.rnn_executor import MiopenRNNExecutor
from dnnffi.backends.vendor.rnn_candidates import VendorCandidates

MIOPEN = Backend(
    name="miopen",
    title="MIOpen",
    kind="rocm",
    platform="ROCm",
    load=library.load,
    loaded=library.loaded,
    candidates=lambda library: (
        VendorCandidates("miopen", MiopenRNNExecutor, Generator, library, rnn_limits.LIMITS),
    ),
    convolutions=MiopenConvolutions,
    rnn_limits=rnn_limits.LIMITS,
    conv_limits=conv_limits.LIMITS,
    fusion_limits=conv_limits.FUSION,
    bias_gradient_limits=conv_limits.BIAS_GRADIENT,
)
