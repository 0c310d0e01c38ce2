"""Paths at which there is something other than a regular file, made by any user.

A test that runs as root must not endanger devices of the machine when the tested code is wrong. The
device here is a terminal of this process: its file system lets nobody replace files.
"""

from __future__ import annotations

import os
import socket
import stat
from functools import cache

import pytest

KINDS = ("folder", "FIFO", "socket", "character device")


def make(path, kind):
    """Make something of this kind at ``path``; for a device, a link to it."""
    if kind == "folder":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            # The path of a socket has at most about 100 bytes: it is bound by a relative path.
            made.bind(os.path.relpath(path))
    else:
        path.symlink_to(_terminal())


@cache
def _terminal():
    _, terminal = os.openpty()  # both ends stay open
    return os.ttyname(terminal)


def make_device(path):
    """Make a device at ``path``, which only root may; skip the test otherwise."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError as error:
        pytest.skip(f"only root can make a device: {error}")
