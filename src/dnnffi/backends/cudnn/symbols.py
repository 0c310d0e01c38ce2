"""Which functions of cuDNN are not in every supported version.

``bindings/check_headers.py`` holds this table against the real headers.
"""

from __future__ import annotations

from typing import Final

SINCE: Final[dict[str, tuple[int, int]]] = {
    "cudnnGetLastErrorString": (9, 0),
    "cudnnRNNGetClip_v9": (9, 0),
    "cudnnRNNSetClip_v9": (9, 0),
}
"""The version, as (major, minor), with which a function came that older supported ones lack."""
