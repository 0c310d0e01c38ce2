"""Read regular files without waiting, and replace files as a whole.

Weights, tuning results, records and pictures are read and written through this module, so that the
same rules hold everywhere:

* Only regular files are read. A FIFO would keep its reader waiting, a device may never end, and
  merely opening a device can have an effect.
* A file is written under another name in the same folder and then renamed: readers see the old
  content or the new one. Nothing that is not a regular file is replaced.

The module imports nothing of dnnffi but `operating_system`, because every package may use it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any, BinaryIO

from dnnffi.operating_system import OPEN_NO_LINK, OPEN_WITHOUT_WAITING, set_permissions

Path = str | os.PathLike[str]

ABANDONED_SECONDS = 3600.0
"""Age after which a part file has no writer any more: its writer was killed."""

MAX_SCANNED_ENTRIES = 10_000
"""Upper bound on the entries of a folder that one write inspects for abandoned part files."""

_PART_NAME = re.compile(r"\.dnnffi-[0-9a-f]{16}\.part")

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link",
}


def check_regular(path: Path) -> None:
    """Raise ``OSError`` naming the path unless it is a regular file, or a link to one.

    Nothing is opened.
    """
    _refuse_irregular(path, os.stat(path))


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes; links are followed.

    Raises ``OSError`` naming the path if it does not exist, cannot be read, or is not a regular
    file.
    """
    check_regular(path)  # before it is opened: opening a device can have an effect
    return open(path, "rb", opener=_open_without_waiting)


def read(
    path: Path, max_bytes: int, *, check: Callable[[os.stat_result], object] | None = None
) -> bytes:
    """Return the content of a regular file; links are followed.

    ``check`` may refuse the opened file by its status. Raises ``OSError`` naming the path as
    `open_regular` does, and if the file has more than ``max_bytes`` bytes.
    """
    with open_regular(path) as file:
        if check is not None:
            check(os.fstat(file.fileno()))
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"has more than {max_bytes:,} bytes", os.fspath(path))
    return content


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; ``ValueError`` if an object has one name twice.

    JSON readers differ in which of two entries they take.
    """
    return json.loads(text, object_pairs_hook=_object_of)


def read_json(path: Path, max_bytes: int = 2**26) -> Any:
    """Return the value in a JSON file; errors as those of `read` and `parse_json`."""
    return parse_json(read(path, max_bytes))


def check_replaceable(path: Path, *, follow_link: bool = False) -> str:
    """Return the path of the file that `write` would make or replace.

    That is ``path`` itself, or what it links to with ``follow_link``. Raises ``OSError`` naming
    the folder if it does not exist, or the path if it is anything but a regular file: a folder, a
    device, a FIFO, a socket, a link.
    """
    target = os.path.realpath(path) if follow_link else os.fspath(path)
    folder = os.path.dirname(target) or os.curdir
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "is not a folder", folder)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "folder does not exist", folder) from None
    _status_of_replaced(target)
    return target


def write(
    path: Path, data: bytes | memoryview, *, follow_link: bool = False, mode: int | None = None
) -> None:
    """Make or replace a regular file as a whole.

    The data is written to a part file in the same folder, whose name cannot be predicted, and
    renamed. If writing fails or is interrupted, the target is as before and the part file is
    removed; a part file whose writer was killed is removed by a later write into the folder.

    Parameters
    ----------
    path : the file; whatever else is at this path is refused
    data : the whole content
    follow_link : replace the file that a link at ``path`` leads to; otherwise a link is refused
    mode : permissions of the file; by default those of the replaced file, or of any new file

    Raises
    ------
    OSError
        Naming the path: the folder does not exist, the path is not a regular file, or the file
        system refused.
    """
    target = check_replaceable(path, follow_link=follow_link)
    if mode is None:
        replaced = _status_of_replaced(target)
        # Set-user-ID bits are not kept: the new file belongs to the writer.
        mode = None if replaced is None else replaced.st_mode & 0o777
    folder = os.path.dirname(target) or os.curdir
    part = os.path.join(folder, f".dnnffi-{secrets.token_hex(8)}.part")
    is_created = False

    def create(name: str, flags: int) -> int:
        # "x" has set O_EXCL. The part file must not be more readable than the file is to be.
        nonlocal is_created
        descriptor = os.open(name, flags | OPEN_NO_LINK, 0o666 if mode is None else mode)
        is_created = True
        return descriptor

    try:
        with open(part, "xb", opener=create) as file:
            file.write(data)
            if mode is not None:
                set_permissions(file.fileno(), mode)
            now = os.fstat(file.fileno()).st_mtime
        os.replace(part, target)
    except BaseException:
        if is_created:
            with suppress(OSError):
                os.unlink(part)
        raise
    _remove_abandoned_parts(folder, now)


def write_json(path: Path, value: Any, *, indent: int = 1) -> None:
    """Make or replace a JSON file as a whole; errors as those of `write`."""
    write(path, (json.dumps(value, indent=indent) + "\n").encode())


def _open_without_waiting(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | OPEN_WITHOUT_WAITING)
    try:
        _refuse_irregular(path, os.fstat(descriptor))  # the checked file may have been replaced
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_irregular(path: Path, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
    code = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
    raise OSError(code, f"is not a regular file but {kind}", os.fspath(path))


def _status_of_replaced(target: str) -> os.stat_result | None:
    try:
        found = os.lstat(target)
    except FileNotFoundError:
        return None
    _refuse_irregular(target, found)
    return found


def _remove_abandoned_parts(folder: str, now: float) -> None:
    """Remove part files whose writers were killed; ``now`` is by the clock of the file system."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, MAX_SCANNED_ENTRIES):
            if _PART_NAME.fullmatch(entry.name):
                with suppress(OSError):  # another writer removed it, or this user may not
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode) and found.st_mtime < now - ABANDONED_SECONDS:
                        os.unlink(entry.path)


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name[:100]!r} occurs twice in one JSON object")
            seen.add(name)
    return found
