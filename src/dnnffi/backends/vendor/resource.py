"""Ownership of native objects: created once, destroyed once by close, with block or finalizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from dnnffi.operating_system import register_at_fork


class _Owner:
    """Owner of native objects: idempotent `close`, context manager, finalizer.

    Destroying does not raise: nothing would catch the error of a finalizer.
    """

    _pointer: Any = None

    def _own(self, out: Any, count: int, destroy: Callable[[Any], object]) -> None:
        """Register the destruction of the native objects in ``out``, at most ``count``."""
        self._finalizer = weakref.finalize(self, _end, _forks, out, count, destroy)
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
        """Destroy the native objects. A second call does nothing."""
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


class Resource(_Owner):
    """Owns one native object.

    ``create`` is the library's function that writes the native pointer to ``out[0]``, out of
    ``arguments``, which are ``out`` alone if none are given; ``destroy`` the one that ends it.
    Creating raises what the library's ``error`` makes of a status.
    """

    def __init__(
        self,
        library: Any,
        create: str,
        destroy: str,
        out: Any,
        *arguments: object,
        problem: object = "",
    ) -> None:
        # Owned before it is created: an interrupt (Ctrl-C) right after the call would leak it.
        self._own(out, 1, getattr(library.lib, destroy))
        status = getattr(library.lib, create)(*arguments or (out,))
        if status:
            self._finalizer.detach()
            raise library.error(status, create, problem)
        self._pointer, self._out = out[0], out

    @property
    def pointer_array(self) -> Any:
        """A C array with `pointer` alone, to be read only. Raises ``ValueError`` once closed."""
        if self._pointer is None:
            raise ValueError(f"this {type(self).__name__} is closed")
        return self._out


class ResourceGroup(_Owner):
    """Owns native objects that are made one after the other, and destroyed newest first.

    ``out`` is a C array of ``count`` NULLs, to whose elements the library writes the objects. The
    caller calls `complete` when all are made.
    """

    def __init__(self, out: Any, count: int, destroy: Callable[[Any], object]) -> None:
        self._own(out, count, destroy)

    def complete(self, pointer: Any) -> None:
        """Set `pointer`, the object for which the others were made."""
        self._pointer = pointer


_forks = 0  # between the import and this process; cheaper to compare than os.getpid()


def _count_fork() -> None:
    global _forks
    _forks += 1


register_at_fork(after_in_child=_count_fork)


def _end(forks: int, out: Any, count: int, destroy: Callable[[Any], object]) -> None:
    # In a forked child the object is the parent's, and a call may have been cut off by the fork.
    if forks != _forks:
        return
    for index in reversed(range(count)):
        if out[index]:
            destroy(out[index])
