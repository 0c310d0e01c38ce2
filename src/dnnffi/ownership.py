"""The check of owner and mode that precedes the use of a file or folder of a cache.

Separate because tuning results (`dnnffi.execution.store`) and compiled kernels
(`dnnffi.runtime.kernel_cache`) follow the same rule.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from dnnffi.operating_system import effective_user

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE_FOLDER = 0o700


def distrust_reason(status: os.stat_result) -> str:
    """Return why a file or folder is not trusted, or an empty string if it is.

    It is trusted if it belongs to the effective user or to root, and if neither its group nor
    others may write to it. Windows has no such owners and modes; everything is trusted there.
    """
    user = effective_user()
    if user is None:
        return ""
    if status.st_uid not in (0, user):
        return f"it belongs to user {status.st_uid}, not to this user ({user}) or root"
    if status.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        return f"users other than its owner may write to it (mode {mode:04o}; use chmod go-w)"
    return ""


def check_trusted(what: str, status: os.stat_result) -> None:
    """Raise ``PermissionError`` naming ``what``, a file or folder, if it is not trusted."""
    if reason := distrust_reason(status):
        raise PermissionError(f"{what} is not trusted: {reason}")


def check_cache_folder(folder: Path) -> None:
    """Raise ``PermissionError`` if another user could have written to a folder of the cache.

    The folder that the user names, one above, counts too. The folders above that do not: who can
    replace them can only put other files of this user or of root there.
    """
    for one in (folder.parent, folder):
        check_trusted(f"the folder {one}", os.stat(one))


def make_private_folder(path: Path) -> None:
    """Create a folder, and the folders above it that are missing, for this user alone (0700)."""
    try:
        path.mkdir(_PRIVATE_FOLDER)
    except FileExistsError:
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    except FileNotFoundError:
        make_private_folder(path.parent)
        path.mkdir(_PRIVATE_FOLDER, exist_ok=True)
