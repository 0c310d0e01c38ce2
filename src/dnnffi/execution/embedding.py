"""``options={"allocator": f, "stream": s}``: a call on arrays of another library, without CuPy.

Arrays in device memory go to a backend with a library, arrays on the host to the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from dnnffi.device.external import DeviceArray
from dnnffi.device.external.host import HOST, allocated_copy, external_array, owner_of
from dnnffi.device.external.use import Allocator, TrustedAllocator
from dnnffi.spec.options import EMBEDDING

Embedding = tuple[Allocator | TrustedAllocator, int | Callable[[], int]]
"""The allocator of a call's results, and the stream that it runs on: for `using`."""


def take_embedding(options: dict[str, Any]) -> Embedding:
    """Remove the allocator and the stream from ``options`` and return them, checked."""
    allocator, stream = options.pop("allocator", None), options.pop("stream", 0)
    if allocator is None:
        raise ValueError("options['stream'] needs options['allocator'], too")
    if not (callable(allocator) or isinstance(allocator, TrustedAllocator)):
        raise TypeError(
            f"options['allocator'] must be a function of a shape and the name of a dtype; "
            f"got {type(allocator).__name__}"
        )
    if isinstance(stream, bool) or not (callable(stream) or isinstance(stream, int)):
        raise TypeError(
            f"options['stream'] must be the address of a stream, or a function that returns "
            f"it; got {type(stream).__name__}"
        )
    return allocator, stream


def embeds(options: object) -> TypeGuard[dict[str, Any]]:
    """Whether the options of a call name an allocator or a stream."""
    return isinstance(options, dict) and not options.keys().isdisjoint(EMBEDDING)


def wrapped(names: Sequence[str], value: Any, kind: str, *, strided: bool = False) -> Any:
    """Convert an array, a pair of arrays or None to what executors take."""
    if not isinstance(value, tuple | list):
        return None if value is None else external_array(names[0], value, kind, strided=strided)
    if len(value) != len(names):
        return value  # refused for that
    parts = [
        None if part is None else external_array(name, part, kind, strided=strided)
        for name, part in zip(names, value, strict=True)
    ]
    return parts if isinstance(value, list) else tuple(parts)


def in_user_memory(results: list[Any], kind: str) -> list[Any]:
    """Return results in memory of the user's allocator; those on the host are copied there."""
    return list(map(allocated_copy, results)) if kind == HOST else results


def unwrap(result: Any) -> Any:
    """Return the user's object whose memory a result shows; the result if it has no owner."""
    owner = result.owner if result.__class__ is DeviceArray else owner_of(result)
    return result if owner is None else owner
