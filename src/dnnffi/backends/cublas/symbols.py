"""Which functions and enumerators of cuBLASLt are not in every supported version: none.

``bindings/check_headers.py`` compares this table with the real headers.
"""

from __future__ import annotations

from typing import Final

SINCE: Final[dict[str, tuple[int, int]]] = {}
