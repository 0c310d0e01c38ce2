"""Initial weights: the usual random ones of the frameworks."""

from __future__ import annotations

from typing import Any

from dnnffi.device.arrays import array_module
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import AnyArray
from dnnffi.formats.network import Network, named, refuse_projection
from dnnffi.spec.checks import check_choice
from dnnffi.spec.rnn import RNNSpec

LIKES = ("torch", "keras")


def draw(spec: object, rng: Any, like: object) -> Network:
    """Random weights, where ``rng`` draws its numbers."""
    if not isinstance(spec, RNNSpec):
        raise TypeError(f"spec must be an RNNSpec; got {type(spec).__name__}")
    if not (hasattr(rng, "uniform") and hasattr(rng, "standard_normal")):
        raise TypeError(
            f"rng must be a random generator, as numpy.random.default_rng(0) makes one; got "
            f"{type(rng).__name__}"
        )
    like = check_choice("like", like, LIKES)
    if like == "keras":
        refuse_projection(spec, "Keras")
    dtype = dtype_object(spec.dtype)
    arrays: list[AnyArray] = []
    for parameter in spec.parameter_shapes():
        if like == "torch":
            array = _uniform(rng, spec.hidden_size**-0.5, parameter.shape)
        elif parameter.name == "w_ih":
            array = _uniform(rng, (6 / sum(parameter.shape)) ** 0.5, parameter.shape)
        elif parameter.name == "w_hh":
            array = _orthogonal(rng, parameter.shape)
        else:
            array = array_module(arrays[0]).zeros(parameter.shape)
            if parameter.name == "b_ih" and spec.mode == "lstm":
                array[spec.hidden_size : 2 * spec.hidden_size] = 1  # the forget gate's
        arrays.append(array.astype(dtype))
    return Network(spec, arrays)


def _uniform(rng: Any, bound: float, shape: tuple[int, ...]) -> AnyArray:
    return named("rng", rng.uniform(-bound, bound, size=shape))


def _orthogonal(rng: Any, shape: tuple[int, ...]) -> AnyArray:
    """[G*H, H] with orthonormal columns, uniformly among all such."""
    normal = named("rng", rng.standard_normal(size=shape))
    xp = array_module(normal)
    q, r = xp.linalg.qr(normal)
    return q * xp.sign(xp.diagonal(r))
