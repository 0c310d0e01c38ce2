"""Arrays that the backward pass reads again: whether they are as in the forward pass.

A backward pass reads x, the states, weights and resets that the forward pass was given, and y.
PyTorch counts the writes to a tensor, so these are noticed in every call; in other arrays only
checksums show a change, which ``options={"validate": True}`` computes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from dnnffi.device.arrays import address, to_host
from dnnffi.device.interface import AnyArray
from dnnffi.errors import ContextError
from dnnffi.execution.embedding import unwrap
from dnnffi.rnn.call import CallArrays
from dnnffi.weights import RNNWeights

Seen = tuple[str, Any, int]
"""The name of a tensor of PyTorch, the tensor, and the number of writes to it so far."""


class Read(NamedTuple):
    """The arrays that the backward pass reads again: tensors, and y with checksums of all."""

    tensors: Sequence[Seen]
    y: AnyArray | None
    checksums: Mapping[str, bytes]

    @classmethod
    def of(
        cls, call: CallArrays, y: AnyArray, given: Iterable[tuple[str, Any]], *, checksums: bool
    ) -> Read:
        """Look at the arrays of a call: ``given`` by the caller, and as the call uses them."""
        used = {"x": call.x, "h_0": call.h_0, "c_0": call.c_0, "resets": _flags_of(call)}
        tensors = _seen((*given, ("y", y)), used)
        if not checksums:
            return cls(tensors, None, {})
        return cls(tensors, y, _checksums(_arrays_of(call, y)))

    @classmethod
    def of_used(cls, call: CallArrays, weights: Any, y: Any) -> Read:
        """Look at the arrays of a call in device memory, which it uses as they are."""
        tensor_class = getattr(sys.modules.get("torch"), "Tensor", None)
        if tensor_class is None:
            return NOTHING
        states = ("h_0", call.h_0), ("c_0", call.c_0)
        named = ("x", call.x), *states, ("weights", weights), ("resets", _flags_of(call)), ("y", y)
        return cls(
            [
                _seen_tensor(name, array.owner)
                for name, array in named
                if array is not None
                and isinstance(array.owner, tensor_class)
                and not array.owner.is_inference()
            ],
            None,
            {},
        )

    def copied_to(self, y: AnyArray) -> Read:
        """Return the same where the caller holds y as a copy: a write to the copy is noticed."""
        tensors = [*self.tensors, *_seen((("y", y),), {})]
        return self._replace(tensors=tensors, y=None if self.y is None else y)

    def check(self, call: CallArrays, *, weights_needed: bool) -> None:
        """Raise `ContextError` for what was written to; x is read for the weights alone."""
        for name, tensor, version in self.tensors:
            if tensor._version != version and (weights_needed or name != "x"):
                now = tensor._version
                raise _written_to(name, f"version {version} of the tensor then, {now} now")
        if self.y is None:
            return
        found = _checksums(_arrays_of(call, self.y))
        for name, checksum in self.checksums.items():
            if found[name] != checksum and (weights_needed or name != "x"):
                raise _written_to(name, "its checksum is another one")


NOTHING = Read((), None, {})
"""For calls of which no change can be noticed."""


def tensors_of(x: Any, hx: Any, weights: Any, resets: Any = None) -> list[tuple[str, Any]]:
    """Return what a call was given, by name, as far as it may be tensors."""
    if isinstance(weights, RNNWeights):
        named = [("weights", weights.flat)]
    elif isinstance(weights, Sequence):
        named = [(f"weights[{index}]", one) for index, one in enumerate(weights)]
    else:
        named = []  # refused for that
    states = hx if isinstance(hx, tuple | list) else (hx,)
    return [("x", x), *zip(("h_0", "c_0"), states, strict=False), ("resets", resets), *named]


def _seen(given: Iterable[tuple[str, Any]], used: Mapping[str, AnyArray | None]) -> list[Seen]:
    """Return the tensors of PyTorch among ``given`` whose memory the call uses.

    ``used`` has the arrays of the call under the same names, as far as they may be copies.
    """
    tensor_class = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor_class is None:
        return []
    found = []
    for name, value in given:
        tensor = unwrap(value)
        if not isinstance(tensor, tensor_class) or tensor.is_inference():
            continue
        array = used.get(name)
        if array is not None and array is not value and address(array) != tensor.data_ptr():
            continue  # copied
        found.append(_seen_tensor(name, tensor))
    return found


def _seen_tensor(name: str, tensor: Any) -> Seen:
    # A tensor with a history would keep it alive; detached, it has the same count.
    return name, tensor if tensor.is_leaf else tensor.detach(), tensor._version


def _arrays_of(call: CallArrays, y: AnyArray) -> dict[str, AnyArray | None]:
    """Return the arrays that the backward pass reads, by name."""
    weights = call.weights.arrays() if isinstance(call.weights, RNNWeights) else call.weights
    named = {f"weights[{index}]": one for index, one in enumerate(weights)}
    states = {"h_0": call.h_0, "c_0": call.c_0}
    return {"x": call.x, **states, "resets": _flags_of(call), "y": y, **named}


def _flags_of(call: CallArrays) -> AnyArray | None:
    return None if call.resets is None else call.resets.flags


def _checksums(arrays: Mapping[str, AnyArray | None]) -> dict[str, bytes]:
    """Return a checksum of the elements of each array that is not None."""
    return {
        name: blake2b(to_host(array).tobytes(), digest_size=16).digest()
        for name, array in arrays.items()
        if array is not None and array.size
    }


def _written_to(name: str, reason: str) -> ContextError:
    return ContextError(
        f"{name} was written to after the forward pass ({reason}), and backward reads it again: "
        f"call backward first, or give the forward pass a copy"
    )
