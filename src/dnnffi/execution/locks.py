"""Locks for what threads, signal handlers and forked children share.

A signal handler runs in the main thread, in the middle of anything, and may call dnnffi. So every
lock is `new_lock`'s, and is held by these rules:

- One thread may take it again: a handler that interrupts the holder does not wait for itself.
- It is taken by ``with`` on the lock itself. Between ``acquire()`` and ``try:``, or in an
  ``__enter__`` written in Python, Ctrl-C would leave it locked.
- Nothing is made, dropped or waited for while it is held, another lock least of all: the thread
  that holds that one may be waiting for what the interrupted one holds.
- What changes together changes without a call in between. Python runs handlers after calls and at
  the end of each round of a loop.

Where one step of a dictionary or set does, as in `dnnffi.execution.cache`, there is no lock. The
lock of `dnnffi.importing` follows other rules: modules are imported while it is held, and fork
waits for it.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import ref

from dnnffi.execution.cache import WeakRegistry
from dnnffi.operating_system import register_at_fork

_locks: WeakRegistry[Any] = WeakRegistry()


def new_lock() -> threading.RLock:
    """Return a reentrant lock. A forked child finds it free unless the forking thread holds it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _free_in_child() -> None:
    for lock in _locks.snapshot():
        if not lock._is_owned():  # the thread that holds it is not in the child
            lock._at_fork_reinit()


register_at_fork(after_in_child=_free_in_child)


class TryLock:
    """A lock that one caller at a time holds, and that others do not wait for."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._hold: ref[TryLockHold] | None = None

    def take(self) -> TryLockHold:
        """Return the caller's hold, for a ``with`` statement; false if another caller has one.

        The hold ends with the statement, even if an error keeps the frame alive; and with the
        object, if Ctrl-C comes before the statement begins.
        """
        mine = TryLockHold()
        with self._lock:
            other = None if self._hold is None else self._hold()
            if other is not None and other.lasts:
                mine.lasts = False
            else:
                self._hold = ref(mine)
        return mine


class TryLockHold:
    """The result of `TryLock.take`: true, or false where another caller holds the lock."""

    __slots__ = ("__weakref__", "lasts")

    def __init__(self) -> None:
        self.lasts = True

    def __bool__(self) -> bool:
        return self.lasts

    def __enter__(self) -> TryLockHold:
        return self

    def __exit__(self, *raised: object) -> None:
        self.lasts = False
