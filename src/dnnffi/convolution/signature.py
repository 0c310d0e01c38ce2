"""The signature by which a call of a convolution is known, and the addresses of its arrays."""

from __future__ import annotations

from typing import Any

from numpy import ndarray

from dnnffi.backends.conv_interface import MISALIGNED
from dnnffi.spec.conv_options import ConvOptions

Signature = tuple[Any, ...]

Asked = tuple[Any, ...]
"""The arguments of a call besides arrays and options: operation, transposed, the shape that the
caller of a gradient names or None, (stride, padding, dilation, output_padding), groups, activation,
alpha, backend."""

_ONLY_INTEGERS = {int}


def sign(
    asked: Asked, options: ConvOptions, arrays: tuple[Any, ...], ndarray: Any
) -> tuple[Signature, list[int]] | None:
    """Return the key of a call on arrays of class ``ndarray``, and the addresses of the arrays.

    The addresses are the first four of `ConvAddresses`. None for a call that has to be looked at
    closely: with arrays of another class, on several devices, of several dtypes or not aligned, or
    with arguments that are not plain (`_is_signed`).
    """
    first = arrays[0]
    if first.__class__ is not ndarray or not _is_signed(asked):
        return None
    dtype, device = first.dtype, first.data.device_id
    signature: list[Any] = [asked, options, dtype, device]
    addresses = []
    for array in arrays:
        if array is None:
            signature.append(None)
            addresses.append(0)
            continue
        if array.__class__ is not ndarray or array.dtype is not dtype:
            return None
        data = array.data
        address = data.ptr
        if address & MISALIGNED or data.device_id != device:
            return None
        signature.append(array.shape)
        signature.append(array.strides)
        addresses.append(address)
    if len(addresses) == 2:  # a backward call has no bias and no residual
        addresses += (0, 0)
    return tuple(signature), addresses


def sign_on_host(asked: Asked, options: ConvOptions, arrays: tuple[Any, ...]) -> Signature | None:
    """Return what a call on NumPy arrays is known by; None as for `sign`."""
    if not _is_signed(asked):
        return None
    dtype = getattr(arrays[0], "dtype", None)
    signature: list[Any] = [asked, options, dtype]
    for array in arrays:
        if array is None:
            signature.append(None)
        elif array.__class__ is not ndarray or array.dtype is not dtype:
            return None
        else:
            signature.append(array.shape)
            signature.append(array.strides)
    return tuple(signature)


def _is_signed(asked: Asked) -> bool:
    """Whether equal arguments mean the same: none is like 1, True and 1.0, which compare equal."""
    _, _, shape, geometry, groups, activation, alpha, backend = asked
    for value in geometry:
        kind = value.__class__
        if kind is not int and kind is not str and not _plain(value) and not _plain_sides(value):
            return False
    return (
        groups.__class__ is int
        and alpha.__class__ is float
        and (shape is None or _plain(shape))
        and (activation is None or activation.__class__ is str)
        and (backend is None or backend.__class__ is str)
    )


def _plain(value: Any) -> bool:
    """Whether it is a tuple of integers."""
    return value.__class__ is tuple and {*map(type, value)} == _ONLY_INTEGERS


def _plain_sides(value: Any) -> bool:
    """Whether it is a tuple of integers and of tuples of integers, as padding may be."""
    return value.__class__ is tuple and all(one.__class__ is int or _plain(one) for one in value)
