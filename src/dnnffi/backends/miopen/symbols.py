"""Functions of MIOpen that some supported version lacks: none so far.

``bindings/check_headers.py`` holds this table against the real headers.
"""

from __future__ import annotations

from typing import Final

SINCE: Final[dict[str, tuple[int, int]]] = {}
"""The version, as (major, minor), with which a function came that older supported ones lack."""
