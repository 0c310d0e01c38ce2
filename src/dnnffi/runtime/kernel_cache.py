"""Compiled kernels on disk.

A file holds the code of one source for one architecture. Its name is a digest of everything that
decides the code. Code from a file runs on the device with the rights of the process, so it is used
only if no other user (except root) could have written it: the owner and mode of the file and of its
folder decide. A header repeats the digest of the key and has one of the code: a file that is
damaged, or of another key, is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dnnffi import files
from dnnffi.errors import PerformanceWarning
from dnnffi.ownership import check_cache_folder, check_trusted, make_private_folder

MAX_IMAGE_BYTES = 64 * 2**20
"""Upper bound on the code of one kernel; the largest of dnnffi's have about 1 MiB."""

MAX_CACHE_BYTES = 512 * 2**20
"""Upper bound on the files in the folder: the least recently used ones are removed beyond it."""

_MAGIC = b"dnnffi kernel 1\n"
_DIGEST_BYTES = 32  # of SHA-256
_SUFFIX = ".kernel"


Headers = tuple[tuple[str, str], ...]
"""Name and text of each header that a CUDA source includes, directly or through another one."""


class KernelKey(NamedTuple):
    """Everything that decides what NVRTC makes of a source.

    NVRTC finds the headers in ``headers`` alone, as texts: none is a file.
    """

    source: str
    headers: Headers
    options: tuple[str, ...]
    compiler_version: tuple[int, int]
    arch: str

    def digest(self) -> bytes:
        """Return the SHA-256 of the key."""
        return hashlib.sha256(repr(tuple(self)).encode()).digest()


class KernelCache:
    """A folder with compiled kernels, which is created for this user alone (mode 0700).

    ``find_folder`` is asked at each use; it returns None if nothing is to be kept. Trouble with the
    folder or a file never fails a call: the kernel is compiled, and the first trouble is a
    `PerformanceWarning`.
    """

    def __init__(self, find_folder: Callable[[], Path | None]) -> None:
        self._find_folder = find_folder
        self._has_warned = False

    def read(self, key: KernelKey) -> bytes | None:
        """Return the code kept for ``key``, or None."""
        folder = self._find_folder()
        if folder is None:
            return None
        path = _path(folder, key)
        try:
            check_cache_folder(folder)
            content = files.read(path, MAX_IMAGE_BYTES, check=partial(check_trusted, str(path)))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"compiled kernels on disk are not used: {error}")
            return None
        head = _MAGIC + key.digest()
        image = content[len(head) + _DIGEST_BYTES :]
        if content != head + hashlib.sha256(image).digest() + image:
            self._warn(f"the compiled kernel in {path} is damaged and compiled again")
            return None
        with suppress(OSError):
            os.utime(path)  # the order in which files are removed
        return image

    def write(self, key: KernelKey, image: bytes) -> None:
        """Keep the code of ``key``."""
        folder = self._find_folder()
        if folder is None:
            return
        content = b"".join((_MAGIC, key.digest(), hashlib.sha256(image).digest(), image))
        try:
            make_private_folder(folder)
            check_cache_folder(folder)
            files.write(_path(folder, key), content, mode=0o600)
        except OSError as error:
            self._warn(f"compiled kernels cannot be kept: {error}")
        else:
            _remove_oldest(folder)

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{text}. DNNFFI_CACHE_DIR names another folder, or is off",
                PerformanceWarning,
                stacklevel=3,
            )


def _path(folder: Path, key: KernelKey) -> Path:
    return folder / f"{key.digest().hex()[:40]}{_SUFFIX}"


def _remove_oldest(folder: Path) -> None:
    """Keep the folder within `MAX_CACHE_BYTES`; other processes may do the same at once."""
    found: list[tuple[float, int, str]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIX):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime, status.st_size, entry.path))
    excess = sum(size for _, size, _ in found) - MAX_CACHE_BYTES
    for _, size, path in sorted(found):
        if excess <= 0:
            return
        with suppress(OSError):
            os.unlink(path)
        excess -= size
