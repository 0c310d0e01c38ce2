"""Functions of CUDA that a supported version lacks, with the version they came with: none.

``bindings/check_headers.py`` compares this table with the real headers.
"""

from __future__ import annotations

from typing import Final

SINCE: Final[dict[str, tuple[int, int]]] = {}
