"""What the commands share: how they fail."""

from __future__ import annotations

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it (128 + SIGINT)."""


class CommandError(Exception):
    """A command cannot go on: one line for the user and an exit code, no traceback."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code
