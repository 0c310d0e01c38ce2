"""Check the arrays of a call against its problem, and convert results to the caller's form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dnnffi.device.arrays import as_array, check_aligned, conversion, ready
from dnnffi.device.interface import AnyArray
from dnnffi.rnn.backend import RNNBackend
from dnnffi.rnn.resets import Resets
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import weight_layout
from dnnffi.weights import RNNWeights


class CallArrays(NamedTuple):
    """The arrays of one call, the backend, and which arrays the plan ``accepts`` as they are."""

    backend: RNNBackend
    spec: RNNSpec
    device: int
    accepts: Callable[[Any, tuple[int, ...]], bool]
    x: AnyArray
    h_0: AnyArray | None
    c_0: AnyArray | None
    weights: RNNWeights | list[AnyArray]
    resets: Resets | None = None
    lengths: AnyArray | None = None

    def array(self, name: str, value: object, shape: tuple[int, ...]) -> AnyArray:
        """``value`` as a contiguous array of ``shape`` and the spec's dtype on the same device."""
        if self.accepts(value, shape):
            return value
        array = as_array(name, value)
        self.check_device(name, array)
        if tuple(array.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}; got {tuple(array.shape)}")
        if array.dtype.name != self.spec.dtype:
            raise TypeError(
                f"{name} must have the dtype of the weights, {self.spec.dtype}; got {array.dtype}"
                f"{conversion(name, array, self.spec.dtype)}"
            )
        return ready(name, array)

    def optional(self, name: str, value: object, shape: tuple[int, ...]) -> AnyArray | None:
        """As `array`; None stays None."""
        if value is None or self.accepts(value, shape):
            return value
        return self.array(name, value, shape)

    def check_weights(self) -> None:
        """Raise unless separate weight arrays are where the backend wants them."""
        assert isinstance(self.weights, list)
        for index, array in enumerate(self.weights):
            self.check_device(f"weights[{index}]", array)
            if self.backend.ndarray is not None:
                check_aligned(f"weights[{index}]", array)

    def weight_gradient(self, gradient: Any) -> Any:
        """Return a backend's gradient of the weights in the form that the weights had."""
        if isinstance(gradient, list):
            if isinstance(self.weights, RNNWeights):
                return RNNWeights.pack(gradient, self.spec, backend=self.weights.backend)
            return gradient
        if isinstance(self.weights, RNNWeights):
            return RNNWeights._of_result(gradient, self.weights.layout)
        layout = weight_layout(self.spec, self.backend.layout)
        return self.backend.separate(RNNWeights._of_result(gradient, layout))

    def check_device(self, name: str, array: AnyArray) -> None:
        """Raise unless an array is on the device of x."""
        check_device(self.backend, name, array, self.device)


def check_device(backend: RNNBackend, name: str, array: AnyArray, device: int) -> None:
    """Raise unless an array is on ``device``, which is that of x."""
    found = backend.device_of(name, array)
    if found != device:
        raise ValueError(f"{name} must be on the device of x, {device}; it is on {found}")


def checked_lengths(backend: RNNBackend, device: int, value: object, batch: int) -> AnyArray:
    """``value`` as a contiguous int32 array [B] on the ``device`` of x."""
    array: Any = as_array("lengths", value)
    if backend.ndarray is not None:
        check_device(backend, "lengths", array, device)
    if tuple(array.shape) != (batch,):
        raise ValueError(
            f"lengths must have one entry for each of the {batch} rows of the batch; got shape "
            f"{tuple(array.shape)}"
        )
    if array.dtype.kind not in "iu":
        raise TypeError(f"lengths must be integers; got {array.dtype}")
    if array.dtype.name != "int32":
        if not hasattr(array, "astype"):
            raise TypeError(f"lengths of an allocator must be int32; got {array.dtype}")
        array = array.clip(-1, 2**31 - 1).astype("int32")
    return ready("lengths", array)


def initial_states(spec: RNNSpec, hx: Any) -> tuple[Any, Any]:
    """h_0 and c_0 of what a call was given for them."""
    if hx is None:
        return None, None
    return pair(spec, hx, "hx" if spec.has_cell else "h_0", ("h_0", "c_0"))


def pair(
    spec: RNNSpec, value: Any, name: str, parts: tuple[str, str], *, partial: bool = False
) -> tuple[Any, Any]:
    """Hidden and cell part of ``value``: a pair for an LSTM, else one array."""
    if value is None:
        return None, None
    if not spec.has_cell:
        if isinstance(value, (tuple, list)):
            raise TypeError(
                f"{name} must be one array: {spec.mode} has no cell state; "
                f"got a {type(value).__name__} of {len(value)}"
            )
        return value, None
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        count = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise TypeError(
            f"{name} of an LSTM must be ({', '.join(parts)}) or None; "
            f"got {type(value).__name__}{count}{shape}"
        )
    h, c = value
    if not partial and (h is None or c is None):
        part = parts[0] if h is None else parts[1]
        raise TypeError(f"{part} must be an array; give {name}=None for zero states")
    return h, c
