"""The error of a simulator that this machine cannot build."""

from __future__ import annotations


class UnavailableError(Exception):
    """A simulator cannot be built on this machine; ``what`` is missing, by its name in `needs`."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.what = what
