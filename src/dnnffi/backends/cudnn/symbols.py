"""Functions and enumerators of cuDNN that some supported version lacks.

``bindings/check_headers.py`` holds this table against the real headers.
"""

from __future__ import annotations

from typing import Final

SINCE: Final[dict[str, tuple[int, int]]] = {
    "CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY": (9, 15),
    "CUDNN_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API": (9, 5),
    "CUDNN_KNOB_TYPE_CTA_COUNT": (9, 7),
    "CUDNN_KNOB_TYPE_INPUT_TMA_ENABLE": (9, 22),
    "CUDNN_KNOB_TYPE_OUTPUT_TMA_ENABLE": (9, 22),
    "CUDNN_KNOB_TYPE_SPLIT_P_SLC": (9, 7),
    "CUDNN_KNOB_TYPE_STREAM_K": (9, 7),
    "CUDNN_KNOB_TYPE_SWAP_AB": (9, 18),
    "CUDNN_KNOB_TYPE_TILE_M": (9, 7),
    "CUDNN_KNOB_TYPE_TILE_N": (9, 7),
    "CUDNN_KNOB_TYPE_WARP_SPEC_CFG": (9, 7),
    "CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP": (9, 1),
    "cudnnGetLastErrorString": (9, 0),
    "cudnnRNNGetClip_v9": (9, 0),
    "cudnnRNNSetClip_v9": (9, 0),
}
"""The version, as (major, minor), with which a name came that older supported ones lack.

For enumerators it is the one that the header of 9.28 states.
"""
