"""Arguments of a call as JAX arrays, and the platform on which the call runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from dnnffi.errors import PerformanceWarning
from dnnffi.log import logger


def as_jax(name: str, value: Any) -> Any:
    """Return ``value`` as an array of JAX; ``TypeError`` naming the argument if it is no array."""
    if isinstance(value, str | bytes) or not hasattr(value, "dtype"):
        raise TypeError(f"{name} must be an array of JAX or NumPy; got {type(value).__name__}")
    return jnp.asarray(value)


def check_enabled(dtype: str) -> Any:
    """Return the dtype object; ``TypeError`` for float64 if JAX has it switched off."""
    if dtype == "float64" and not jax.config.jax_enable_x64:
        raise TypeError("dtype float64 needs jax.config.update('jax_enable_x64', True)")
    return jnp.dtype(dtype)


def platform_of(operands: Iterable[Any]) -> str:
    """Return the platform on which a call will run: "cuda", "rocm", "cpu" or "tpu"."""
    for array in operands:
        if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
            return _kind(next(iter(array.devices())))
    default = jax.config.jax_default_device
    if isinstance(default, jax.Device):
        return _kind(default)
    return _kind(jax.devices(default)[0])


@cache
def warn_once(text: str) -> None:
    """Warn that a call runs elsewhere than it was meant to; the same text once a process."""
    logger.info("%s", text)
    warnings.warn(text, PerformanceWarning, stacklevel=2)


def _kind(device: Any) -> str:
    if device.platform != "gpu":
        return str(device.platform)
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"
