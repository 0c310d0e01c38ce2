"""What tuning found, kept on disk: one small file for a problem, device and library version.

Files are written under another name and then renamed, so that a reader sees a whole one or none,
and processes that tune at once do not disturb each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from dnnffi.errors import PerformanceWarning

ENVIRONMENT_VARIABLE = "DNNFFI_CACHE_DIR"
"""The folder; "off" keeps nothing on disk. By default the user's cache folder by platformdirs."""

MOST_BYTES = 4 * 2**20
"""A larger file is none of ours: hundreds of candidates with their reasons are a tenth of it."""

_ABANDONED = 3600.0  # seconds after which no writer is still at a part


def folder() -> Path | None:
    """Where results are kept, or None where they are not."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        return None if named == "off" else Path(named)
    try:
        import platformdirs
    except ImportError:
        return None
    return Path(platformdirs.user_cache_dir("dnnffi"))


def checked_time(value: object) -> float:
    """A time that was read, in milliseconds; ``ValueError`` unless it is finite and above 0."""
    # Compared before it is converted: an integer of a file may be larger than any float.
    if isinstance(value, int | float) and 0 < value <= sys.float_info.max:
        return float(value)
    raise ValueError(f"{brief(value)} is no time")


class Store:
    """Results by key, both plain JSON values, in files of one folder.

    Links are followed where they are read, and replaced where a result is written in their place.
    What is no regular file (a folder, a pipe, a device) is ignored as a damaged file is; a folder
    stays, and keeps its result from being written.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._warned = False

    def read(self, key: Mapping[str, Any]) -> Any:
        """The value kept for ``key``, or None. A file that is none of ours is left alone."""
        path = self._path(key)
        if path is None:
            return None
        try:
            content = json.loads(_read(path))
            if content["key"] == key:
                return content["value"]
            raise ValueError("it is the result of another problem")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self.warn(f"the tuning result in {path} is ignored: {error}")
            return None

    def write(self, key: Mapping[str, Any], value: Any) -> None:
        """Keep ``value``. Where the folder cannot be written, it is said once."""
        path = self._path(key)
        if path is None:
            return
        written = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=path.parent, prefix=path.name, suffix=".part", delete=False
            ) as file:
                written = file.name
                json.dump({"key": key, "value": value}, file, indent=1)
                now = os.fstat(file.fileno()).st_mtime
            os.replace(written, path)
            written = None
            _clean(path.parent, now)
        except OSError as error:
            self.warn(f"tuning results cannot be kept: {error}")
        finally:
            if written is not None:
                with suppress(OSError):
                    os.unlink(written)

    def warn(self, text: str) -> None:
        """Say once what is wrong with the folder."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{text}. {ENVIRONMENT_VARIABLE} names another folder, or is off (said once)",
                PerformanceWarning,
                stacklevel=2,
            )

    def _path(self, key: Mapping[str, Any]) -> Path | None:
        where = folder()
        if where is None:
            return None
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
        return where / self._kind / f"{name}.json"


def _read(path: Path) -> bytes:
    """The content of a regular file; what else there is never keeps its reader waiting."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    return content


def _without_waiting(path: str, flags: int) -> int:
    # Opening a pipe waits for its writer otherwise. Windows has neither.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _clean(where: Path, now: float) -> None:
    """Remove the parts of writers that were killed; ``now`` is by the file system's clock."""
    for part in where.glob("*.json*.part"):
        with suppress(OSError):  # another writer removed it, or may and this one not
            if part.lstat().st_mtime < now - _ABANDONED:
                part.unlink()
