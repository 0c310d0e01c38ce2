"""The registry's entry of the backend "miopen"."""

from __future__ import annotations

from dnnffi.backends.entry import Backend
from dnnffi.backends.miopen import library, limits
from dnnffi.backends.miopen.conv_source import MiopenConvolutions
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
        VendorCandidates("miopen", MiopenRNNExecutor, Generator, library, limits.RNN_LIMITS),
    ),
    convolutions=MiopenConvolutions,
    rnn_limits=limits.RNN_LIMITS,
    conv_limits=limits.CONV_LIMITS,
    fusion_limits=limits.FUSION,
    bias_gradient_limits=limits.BIAS_GRADIENT,
)
