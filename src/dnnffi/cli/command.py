"""Helpers that all commands share: errors, numeric arguments, a limit on threads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dnnffi import files

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it (128 + SIGINT)."""

BROKEN_PIPE = 141
"""Exit code when the reader of the output has ended (128 + SIGPIPE)."""


class CommandError(Exception):
    """A failure that a command reports as one line and an exit code, without a traceback."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def check_output(option: str, path: Path, *, follow_link: bool = False) -> None:
    """Raise `CommandError` unless a file can be written to ``path``, the value of ``option``."""
    try:
        files.check_replaceable(path, follow_link=follow_link)
    except OSError as error:
        raise CommandError(f"{option} {path}: {error.strerror}") from error


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS and OpenMP compute on one thread.

    It limits the libraries that are loaded when it is entered. The products of a small network are
    small: if other programs use the cores too, waiting for the last of several threads takes longer
    than the product itself.
    """
    from threadpoolctl import threadpool_limits

    return threadpool_limits(limits=1)


def number(kind: type, is_valid: Callable[[Any], bool], words: str) -> Callable[[str], Any]:
    """Return a type for argparse that reads an int or a float and checks it.

    ``words`` complete the message for a value that is not valid: "must be ...".
    """

    def read(text: str) -> Any:
        value = kind(text)
        if not is_valid(value):
            raise argparse.ArgumentTypeError(f"must be {words}; got {text}")
        return value

    read.__name__ = kind.__name__  # argparse names it in its message
    return read


COUNT = number(int, lambda value: value >= 1, "at least 1")
"""Type of a count for argparse."""
