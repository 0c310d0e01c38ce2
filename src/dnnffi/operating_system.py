"""Operating-system calls that not every platform has, each with its substitute.

This is the only module that asks for the platform or uses a name that Windows or macOS lacks, so
that every other module reads the same everywhere. Importing it imports nothing but `os` and `sys`,
because ``import dnnffi`` does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

IS_WINDOWS = sys.platform == "win32"
IS_MACOS = sys.platform == "darwin"

OPEN_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0)
"""Flag of ``os.open``: opening a FIFO does not wait for its writer. 0 on Windows, which has no
FIFOs in its file systems."""

OPEN_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Flag of ``os.open``: a symbolic link at the path is refused. 0 on Windows, which has no such
flag; there ``O_EXCL`` alone refuses an existing link."""


def register_at_fork(
    *,
    after_in_child: Callable[[], object],
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
) -> None:
    """Register functions as ``os.register_at_fork`` does; nothing where processes do not fork."""
    if hasattr(os, "register_at_fork"):
        hooks = {
            "before": before,
            "after_in_parent": after_in_parent,
            "after_in_child": after_in_child,
        }
        os.register_at_fork(**{name: hook for name, hook in hooks.items() if hook is not None})


def effective_user() -> int | None:
    """Return the effective user's number, to compare with the owner of a file.

    None on Windows, where neither owners nor permission bits of a file are those of POSIX.
    """
    return os.geteuid() if hasattr(os, "geteuid") else None


def set_permissions(descriptor: int, mode: int) -> None:
    """Set the permission bits of an open file regardless of the umask; nothing on Windows."""
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, mode)


def num_usable_cores() -> int:
    """Return the number of cores that this process may use; on Windows and macOS, of all cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_kernel_file(path: str) -> bytes:
    """Return the content of a file that Linux's kernel makes, in ``/proc`` or ``/sys``.

    Empty if there is no such file, as on Windows and macOS.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
