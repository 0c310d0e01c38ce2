"""Engines that were seen to give wrong numbers although cuDNN offers them.

Compared with NumPy on an H200 with cuDNN 9.19, where every other engine agreed (`tests/gpu`).
"""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.backends.cudnn.graph.build import ConvolutionGraph


class KnownWrong(NamedTuple):
    """An engine of an operation that is not used for a layout."""

    operation: str
    engine: int
    channels_last: bool
    reason: str


_REASON = "its results are wrong where the channels come first"
TABLE = (
    KnownWrong("backward_data", 78, False, _REASON),
    KnownWrong("backward_weights", 70, False, _REASON),
)


def known_wrong(graph: ConvolutionGraph, engine: int) -> str:
    """Why an engine is not used for a graph; empty where nothing is known against it."""
    for one in TABLE:
        if (one.operation, one.engine, one.channels_last) == (
            graph.operation,
            engine,
            graph.channels_last,
        ):
            return one.reason
    return ""
