"""The registry's entry of the backend "vulkan"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnnffi.backends.entry import Backend
from dnnffi.backends.vulkan.device import adapters, open_device
from dnnffi.backends.vulkan.limits import CONV_LIMITS, RNN_LIMITS
from dnnffi.backends.vulkan.network import VulkanNetwork
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec


def pack(spec: RNNSpec, arrays: Sequence[Any], device: int | None) -> VulkanNetwork:
    """Return the network on adapter ``device``, by default the first."""
    opened = open_device(device)
    VULKAN.check_network(RNNProblem.dense(spec, steps=1, batch=1), opened)
    return VulkanNetwork(spec, list(arrays), opened)


VULKAN = Backend(
    name="vulkan",
    title="Vulkan",
    kind="host",
    platform="the host",
    by_name=True,
    pack=pack,
    adapters=adapters,
    rnn_limits=RNN_LIMITS,
    conv_limits=CONV_LIMITS,
)
