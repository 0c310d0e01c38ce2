"""Helpers of all commands: errors, arguments that are numbers, limits on threads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dnnffi import files

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it (128 + SIGINT)."""


class CommandError(Exception):
    """A command cannot go on: one line for the user and an exit code, no traceback."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def check_output(option: str, path: Path, *, follow_link: bool = False) -> None:
    """`CommandError` unless a file can be written to ``path``, which ``option`` names."""
    try:
        files.check_replaceable(path, follow_link=follow_link)
    except OSError as error:
        raise CommandError(f"{option} {path}: {error.strerror}") from error


def one_thread() -> AbstractContextManager[Any]:
    """A context in which the libraries of BLAS and OpenMP loaded so far compute on one thread.

    A network's products are small: where other programs use the cores too, waiting for the last of
    several threads takes longer than the product.
    """
    from threadpoolctl import threadpool_limits

    return threadpool_limits(limits=1)


def number(kind: type, fits: Callable[[Any], bool], words: str) -> Callable[[str], Any]:
    """What reads an int or float for argparse, which refuses what does not fit: "must be words"."""

    def read(text: str) -> Any:
        value = kind(text)
        if not fits(value):
            raise argparse.ArgumentTypeError(f"must be {words}; got {text}")
        return value

    read.__name__ = kind.__name__  # argparse names it in its message
    return read


COUNT = number(int, lambda value: value >= 1, "at least 1")
"""What reads a count for argparse."""
