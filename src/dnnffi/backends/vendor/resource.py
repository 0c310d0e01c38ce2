"""Ownership of native objects: created once, destroyed once, in whatever way they are let go."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self


class Resource:
    """Owns one native object: idempotent `close`, context manager, finalizer.

    ``create()`` returns the native pointer and ``destroy(pointer)`` ends it. Destroying does not
    raise: a finalizer has nobody to tell.
    """

    def __init__(self, create: Callable[[], Any], destroy: Callable[[Any], object]) -> None:
        pointer = create()
        self._pointer: Any = pointer
        self._finalizer = weakref.finalize(self, destroy, pointer)
        # At exit the driver may be gone before us; the process takes the object with it.
        self._finalizer.atexit = False

    @property
    def pointer(self) -> Any:
        """The native object. Raises ``ValueError`` once closed."""
        if self._pointer is None:
            raise ValueError(f"this {type(self).__name__} is closed")
        return self._pointer

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._pointer is None

    def close(self) -> None:
        """Destroy the native object. A second call does nothing."""
        self._pointer = None
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
