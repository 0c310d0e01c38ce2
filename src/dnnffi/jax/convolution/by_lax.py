"""Convolutions in JAX itself: ``lax.conv_general_dilated`` and its transpositions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dnnffi.jax.convolution.call import in_memory
from dnnffi.spec.conv_problem import BACKWARD_DATA, FORWARD, ConvProblem


def compute(problem: ConvProblem, *operands: Any) -> Any:
    """Return the result of an operation, of the operands that the problem has."""
    if problem.operation == FORWARD:
        return _forward(problem, *operands)
    dy, other = operands
    first = problem.operation == BACKWARD_DATA
    wanted = in_memory(problem.result_shape, problem)

    def product(found: Any) -> Any:
        return _convolve(problem, *((found, other) if first else (other, found)))

    like = jax.ShapeDtypeStruct(wanted, dy.dtype)
    return jax.linear_transpose(product, like)(dy)[0]


def _forward(problem: ConvProblem, x: Any, w: Any, *rest: Any) -> Any:
    y = _convolve(problem, x, w)
    more = list(rest)
    bias = more.pop(0) if problem.bias else None
    if problem.residual:
        y += jnp.asarray(problem.alpha, y.dtype) * more.pop(0)
    if bias is not None:
        y += over_channels(bias, problem)
    return jax.nn.relu(y) if problem.activation else y


def over_channels(bias: Any, problem: ConvProblem) -> Any:
    """[..., K] with axes of size 1 where y has its others."""
    if problem.channels_last:
        return bias.reshape(*bias.shape[:-1], *(1,) * (problem.spec.rank + 1), bias.shape[-1])
    return bias.reshape(*bias.shape[:-1], 1, bias.shape[-1], *(1,) * problem.spec.rank)


def _convolve(problem: ConvProblem, x: Any, w: Any) -> Any:
    spec = problem.spec
    sizes = "DHW"[3 - spec.rank :]
    if problem.channels_last:
        numbers = f"N{sizes}C", f"O{sizes}I", f"N{sizes}C"
    else:
        numbers = f"NC{sizes}", f"OI{sizes}", f"NC{sizes}"
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=spec.stride,
        padding=list(zip(spec.padding_before, spec.padding_after, strict=True)),
        rhs_dilation=spec.dilation,
        dimension_numbers=numbers,
        feature_group_count=spec.groups,
        precision=lax.Precision.HIGHEST if problem.options.math == "strict" else None,
    )
