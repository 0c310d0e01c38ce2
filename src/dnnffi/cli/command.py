"""What do the commands share? How they fail, and how they read numbers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it (128 + SIGINT)."""


class CommandError(Exception):
    """A command cannot go on: one line for the user and an exit code, no traceback."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def number(kind: type, fits: Callable[[Any], bool], words: str) -> Callable[[str], Any]:
    """What reads an int or float for argparse, which refuses what does not fit: "must be words"."""

    def read(text: str) -> Any:
        value = kind(text)
        if not fits(value):
            raise argparse.ArgumentTypeError(f"must be {words}; got {text}")
        return value

    read.__name__ = kind.__name__  # argparse names it in its message
    return read
