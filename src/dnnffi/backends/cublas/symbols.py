"""Functions and enumerators of cuBLASLt that some supported version lacks: none.

``bindings/check_headers.py`` compares this table with the real headers.
"""

from __future__ import annotations

from typing import Final

SINCE: Final[dict[str, tuple[int, int]]] = {}
