"""Tuning results on disk: one small file for each problem, device and library version.

Files are replaced as a whole (`dnnffi.files`), so that a reader sees a whole one or none, and
processes that tune at once do not disturb each other. Nothing is read that another user, except
root, could have written.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from dnnffi import files
from dnnffi.cache_folder import ENVIRONMENT_VARIABLE, cache_folder
from dnnffi.errors import PerformanceWarning
from dnnffi.ownership import check_cache_folder, check_trusted, make_private_folder

MAX_BYTES = 4 * 2**20
"""A larger file is not the store's: hundreds of candidates with their reasons are a tenth of it."""


def checked_time(value: object) -> float:
    """Return a time in milliseconds that was read; ``ValueError`` unless finite and above 0."""
    # Compared before it is converted: an integer of a file may be larger than any float.
    if isinstance(value, int | float) and 0 < value <= sys.float_info.max:
        return float(value)
    raise ValueError(f"{brief(value)} is no time")


class Store:
    """Results by key, both plain JSON values, in files of one folder.

    A link is followed to read. Anything else that is not a regular file (a folder, a FIFO, a
    device) is ignored as a damaged file is. Only regular files are replaced: anything else at the
    path of a result stays, and keeps the result from being written.

    The folder is created for this user alone. If another user could have written to the folder,
    nothing is read or written; if to a file, it is not read. A folder may be reached by a link: the
    owner and mode of the folder itself decide, because a link has no mode of its own.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._warned = False

    def read(self, key: Mapping[str, Any]) -> Any:
        """Return the value kept for ``key``, or None. A file of another kind is left alone."""
        path = self._path(key)
        if path is None:
            return None
        try:
            check_cache_folder(path.parent)
            data = files.read(path, MAX_BYTES, check=partial(check_trusted, "it"))
            content = files.parse_json(data)
            if content["key"] == key:
                return content["value"]
            raise ValueError("it is the result of another problem")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self.warn(f"the tuning result in {path} is ignored: {error}")
            return None

    def write(self, key: Mapping[str, Any], value: Any) -> None:
        """Keep ``value``. If the folder cannot be written, warn in the first call."""
        path = self._path(key)
        if path is None:
            return
        try:
            make_private_folder(path.parent)
            check_cache_folder(path.parent)
            text = json.dumps({"key": key, "value": value}, indent=1)
            files.write(path, text.encode(), mode=0o600)
        except OSError as error:
            self.warn(f"tuning results cannot be kept: {error}")

    def warn(self, text: str) -> None:
        """Warn of the folder; only the first call does."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{text}. {ENVIRONMENT_VARIABLE} names another folder, or is off",
                PerformanceWarning,
                stacklevel=2,
            )

    def _path(self, key: Mapping[str, Any]) -> Path | None:
        where = cache_folder()
        if where is None:
            return None
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
        return where / self._kind / f"{name}.json"
