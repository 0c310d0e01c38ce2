"""The lock under which dnnffi imports modules and loads libraries after ``import dnnffi``.

A thread that imports holds locks of Python's, one per module. ``os.fork`` does not wait for them,
and a forked child keeps them locked, since the thread that would release them is not in the child:
the child's first import of such a module waits for ever. So whatever is imported at the first use
of a name, or in a call, is imported under `import_lock`, for which ``os.fork`` waits.

A thread that holds this lock may wait for locks of modules that it imports. So no other lock of
dnnffi may be held where this one is taken.
"""

from __future__ import annotations

# concurrent.futures.thread and logging register fork hooks that take locks, and imports need these
# locks. Hooks run in the reverse order of their registration, so both are imported before this
# module registers its own.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import threading

from dnnffi.operating_system import register_at_fork

MAX_FORK_WAIT_SECONDS = 60.0
"""After this a fork goes on: an import that needs a lock of the forking thread would never end.
The child may then wait for ever for the lock of a module."""

import_lock = threading.RLock()


def _wait_for_imports() -> None:
    import_lock.acquire(timeout=MAX_FORK_WAIT_SECONDS)


def _release() -> None:
    if import_lock._is_owned():  # type: ignore[attr-defined]  # not if Ctrl-C ended the wait
        import_lock.release()


def _release_in_child() -> None:
    if import_lock._is_owned():  # type: ignore[attr-defined]
        import_lock.release()
    else:
        import_lock._at_fork_reinit()  # type: ignore[attr-defined]


register_at_fork(
    before=_wait_for_imports, after_in_parent=_release, after_in_child=_release_in_child
)
