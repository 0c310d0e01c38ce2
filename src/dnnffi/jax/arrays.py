"""Arguments of a call as JAX takes them, and the platform on which the call runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dnnffi.errors import PerformanceWarning
from dnnffi.log import logger
from dnnffi.spec.checks import brief, is_peculiar
from dnnffi.spec.options import EmbeddingDict


def as_jax(name: str, value: Any) -> Any:
    """Return ``value`` as an array of JAX, in the byte order of the host.

    Raises ``TypeError`` naming the argument if it is no array, or one that JAX does not have:
    NumPy's masked arrays and matrices, arrays of objects and texts.
    """
    if isinstance(value, str | bytes) or not hasattr(value, "dtype"):
        raise TypeError(f"{name} must be an array of JAX or NumPy; got {type(value).__name__}")
    if isinstance(value, np.ndarray):
        if is_peculiar(value.__class__):
            raise TypeError(f"{name} must be a plain array; got {type(value).__name__}")
        if not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
    try:
        return jnp.asarray(value)
    except TypeError as error:
        raise TypeError(
            f"{name} must be an array of JAX or NumPy with numbers; got {type(value).__name__} of "
            f"dtype {brief(value.dtype)}"
        ) from error


def check_enabled(dtype: str) -> Any:
    """Return the dtype object; ``TypeError`` for float64 if JAX has it switched off."""
    if dtype == "float64" and not jax.config.jax_enable_x64:
        raise TypeError("dtype float64 needs jax.config.update('jax_enable_x64', True)")
    return jnp.dtype(dtype)


def refuse_embedding(options: object) -> None:
    """Raise ``ValueError`` for options that say whose memory and stream a call uses."""
    if not isinstance(options, Mapping):
        return
    for key in EmbeddingDict.__annotations__:
        if key in options:
            raise ValueError(
                f"options[{key!r}] is of dnnffi's own functions; in JAX the memory and the stream "
                f"of a call are XLA's. Leave it out"
            )


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
