"""What the rows of a run say together: ratios, geometric means, and the aims beside them.

Works on the record as JSON has it, so that the documentation reads a committed one the same way.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Record = Mapping[str, Any]

OURS = ("dnnffi", "dnnffi plan", "dnnffi plan captured")
PEERS = ("torch eager", "torch graph", "jax")
PHASE_WORDS = {"inference": "inference", "training": "forward + backward"}


class Comparison(NamedTuple):
    """A model against a peer over the shapes on which both were measured.

    Ratios are the peer's time over the model's: above 1 the model is faster.
    """

    model: str
    peer: str
    phase: str
    mean: float
    worst: float
    worst_shape: str
    shapes: int

    @property
    def over(self) -> str:
        """The number of shapes in words."""
        return f"{self.shapes} shape{'s' * (self.shapes > 1)}"

    def __str__(self) -> str:
        """One sentence."""
        return (
            f"{self.model} against {self.peer}, {PHASE_WORDS[self.phase]}: {self.mean:.2f}x over "
            f"{self.over} (geometric mean), worst {self.worst:.2f}x ({self.worst_shape})"
        )


def figures(record: Record, model: str, phase: str, key: str = "ms") -> dict[str, float]:
    """``key`` of the measured rows of ``model``, by the name of the shape."""
    return {
        row["shape"]: row[key]
        for row in record["rows"]
        if row["model"] == model and row["phase"] == phase and row.get(key) is not None
    }


def ratios(
    record: Record,
    model: str,
    peer: str,
    phase: str,
    shapes: Sequence[str] | None = None,
    key: str = "ms",
) -> dict[str, float]:
    """The peer's figure over the model's, by shape; over ``shapes``, or all in the record."""
    own, other = figures(record, model, phase, key), figures(record, peer, phase, key)
    return {
        shape: other[shape] / own[shape]
        for shape in own
        if shape in other and own[shape] and (shapes is None or shape in shapes)
    }


def compare(
    record: Record, model: str, peer: str, phase: str, shapes: Sequence[str] | None = None
) -> Comparison | None:
    """A model against a peer; None where they have no shape in common."""
    found = ratios(record, model, peer, phase, shapes)
    if not found:
        return None
    worst = min(found, key=lambda shape: found[shape])
    mean = statistics.geometric_mean(found.values())
    return Comparison(model, peer, phase, mean, found[worst], worst, len(found))


def comparisons(record: Record) -> list[Comparison]:
    """Each of dnnffi's ways of calling against each peer, in each phase."""
    found = (
        compare(record, model, peer, phase)
        for model in OURS
        for peer in PEERS
        for phase in PHASE_WORDS
    )
    return [one for one in found if one is not None]


class Target(NamedTuple):
    """One aim beside what was measured. Texts; ``reached`` is None where nothing was measured."""

    what: str
    against: str
    aim: str
    measured: str
    reached: bool | None


NOT_MEASURED = "not measured"


def targets(record: Record) -> list[Target]:
    """The aims for an H200, beside what the record has of the set "performance"."""
    inside = [shape for shape in record["shapes"] if "performance" in shape["sets"]]
    equal = [shape["name"] for shape in inside if not shape["lengths"]]
    varying = [shape["name"] for shape in inside if shape["lengths"]]
    eager, graph = "torch eager", "torch graph"
    return [
        _mean(record, "inference", eager, 1.8, equal),
        _mean(record, "inference", graph, 1.15, equal),
        _mean(record, "training", eager, 2.2, equal),
        _mean(record, "training", graph, 1.07, equal),
        _worst(record, eager, 1.0, equal),
        _worst(record, graph, 0.97, equal),
        _varying(record, eager, 3.0, varying),
        _host(record, "dnnffi", "host cost of a call, tuned, same arrays", 15, equal),
        _host(record, "dnnffi plan captured", "host cost of a plan's replay", 8, equal),
        _memory(record, eager, 1.1, equal),
    ]


def _mean(record: Record, phase: str, peer: str, aim: float, shapes: Sequence[str]) -> Target:
    what = f"{PHASE_WORDS[phase]}, geometric mean"
    found = compare(record, "dnnffi", peer, phase, shapes)
    if found is None:
        return Target(what, peer, f">= {aim}x", NOT_MEASURED, None)
    text = f"{found.mean:.2f}x over {found.over}"
    return Target(what, peer, f">= {aim}x", text, found.mean >= aim)


def _smallest(what: str, peer: str, aim: float, found: Mapping[tuple[str, str], float]) -> Target:
    if not found:
        return Target(what, peer, f">= {aim}x", NOT_MEASURED, None)
    (phase, shape), ratio = min(found.items(), key=lambda item: item[1])
    text = f"{ratio:.2f}x ({shape}, {PHASE_WORDS[phase]})"
    return Target(what, peer, f">= {aim}x", text, ratio >= aim)


def _by_phase(record: Record, peer: str, shapes: Sequence[str]) -> dict[tuple[str, str], float]:
    return {
        (phase, shape): ratio
        for phase in PHASE_WORDS
        for shape, ratio in ratios(record, "dnnffi", peer, phase, shapes).items()
    }


def _worst(record: Record, peer: str, aim: float, shapes: Sequence[str]) -> Target:
    return _smallest("any single shape", peer, aim, _by_phase(record, peer, shapes))


def _varying(record: Record, peer: str, aim: float, shapes: Sequence[str]) -> Target:
    what = "rows of different length, PyTorch's packing counted"
    return _smallest(what, peer, aim, _by_phase(record, peer, shapes))


def _host(record: Record, model: str, what: str, aim: float, shapes: Sequence[str]) -> Target:
    found = figures(record, model, "inference", "host_us")
    values = [found[shape] for shape in shapes if shape in found]
    if not values:
        return Target(what, "", f"<= {aim} µs", NOT_MEASURED, None)
    median = statistics.median(values)
    text = f"{median:.1f} µs (median over {len(values)} shapes; most {max(values):.1f} µs)"
    return Target(what, "", f"<= {aim} µs", text, median <= aim)


def _memory(record: Record, peer: str, aim: float, shapes: Sequence[str]) -> Target:
    what = "peak device memory, forward + backward"
    found = ratios(record, peer, "dnnffi", "training", shapes, "peak_bytes")
    if not found:
        return Target(what, peer, f"<= {aim}x", NOT_MEASURED, None)
    worst = max(found, key=lambda shape: found[shape])
    text = f"at most {found[worst]:.2f}x ({worst})"
    return Target(what, peer, f"<= {aim}x", text, found[worst] <= aim)
