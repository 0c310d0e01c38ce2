"""What tuning found, kept on disk: one small file for a problem, device and library version.

Files are written under another name and then renamed, so that a reader sees a whole one or none,
and processes that tune at once do not disturb each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dnnffi.errors import PerformanceWarning

ENVIRONMENT_VARIABLE = "DNNFFI_CACHE_DIR"
"""The folder; "off" keeps nothing on disk. By default the user's cache folder by platformdirs."""


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


class Store:
    """Results by key, both plain JSON values, in files of one folder."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._warned = False

    def read(self, key: Mapping[str, Any]) -> Any:
        """The value kept for ``key``, or None. A file that is none of ours is left alone."""
        path = self._path(key)
        if path is None:
            return None
        try:
            content = json.loads(path.read_bytes())
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
                "w", dir=path.parent, suffix=".part", delete=False
            ) as file:
                written = file.name
                json.dump({"key": key, "value": value}, file, indent=1)
            os.replace(written, path)
            written = None
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
