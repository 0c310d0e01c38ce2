"""Engines that were seen to give wrong numbers although cuDNN offers them.

Compared with NumPy on an H200 with cuDNN 9.19, where every other engine agreed (`tests/gpu`).
"""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.backends.cudnn.graph.build import ConvolutionGraph


class KnownWrong(NamedTuple):
    """An engine of an operation that is not used; None stands for any layout, kernel or dtype."""

    operation: str
    engine: int
    reason: str
    channels_last: bool | None = None
    kernel: tuple[int, ...] | None = None
    dtype: str | None = None

    def is_for(self, graph: ConvolutionGraph) -> bool:
        """Whether the engine is not used for a graph."""
        return self.operation == graph.operation and all(
            of_engine in (None, of_graph)
            for of_engine, of_graph in (
                (self.channels_last, graph.channels_last),
                (self.kernel, graph.kernel),
                (self.dtype, graph.dtype),
            )
        )

    @property
    def when(self) -> str:
        """The dtype, layout and kernel sizes for which the engine is not used, in words."""
        words = [] if self.dtype is None else [self.dtype]
        if self.channels_last is not None:
            words.append(f"channels {'last' if self.channels_last else 'first'}")
        if self.kernel is not None:
            words.append(f"kernels of {' x '.join(map(str, self.kernel))}")
        return ", ".join(words) or "all"


_REASON = "its results are wrong where the channels come first"
TABLE = (
    KnownWrong("backward_data", 78, _REASON, channels_last=False),
    KnownWrong("backward_weights", 70, _REASON, channels_last=False),
    # By a transform of Winograd's that 5 x 5 needs on tiles of 9 x 9, without a note that says so.
    KnownWrong(
        *("backward_weights", 17, "its results are less precise than with TF32"),
        kernel=(5, 5),
        dtype="float32",
    ),
)


def known_wrong(graph: ConvolutionGraph, engine: int) -> str:
    """Return why an engine is not used for a graph; empty if it may be used."""
    for one in TABLE:
        if one.engine == engine and one.is_for(graph):
            return one.reason
    return ""
