"""Summary of a record: ratios, geometric means, and the aims that they are compared with.

It reads the record as JSON has it, because the documentation reads committed records.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Record = Mapping[str, Any]

FUNCTIONS, CAPTURED = "dnnffi", "dnnffi plan captured"
OURS = (FUNCTIONS, "dnnffi plan", CAPTURED)
RAW = "cudnn raw"  # the library without dnnffi
EAGER, GRAPH = "torch eager", "torch graph"
PEERS = (EAGER, "torch benchmark", GRAPH, "jax", "jax scan")
OF_IMAGES = ("dnnffi tuned", "dnnffi captured")  # models of images besides the functions
PHASE_WORDS = {"inference": "inference", "training": "forward + backward"}


class Comparison(NamedTuple):
    """A model compared with a peer on the shapes on which both were measured.

    Ratios are the peer's time over the model's; above 1 the model is faster.
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
            f"{self.model} compared with {self.peer}, {PHASE_WORDS[self.phase]}: {self.mean:.2f} "
            f"times as fast (geometric mean over {self.over}), at least {self.worst:.2f} times "
            f"({self.worst_shape})"
        )


def figures(record: Record, model: str, phase: str, key: str = "ms") -> dict[str, Any]:
    """Return ``key`` of the measured rows of ``model``, by the name of the shape."""
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
    """Return the peer's figure over the model's by shape, for ``shapes`` or all in the record."""
    own, other = figures(record, model, phase, key), figures(record, peer, phase, key)
    return {
        shape: other[shape] / own[shape]
        for shape in own
        if shape in other and own[shape] and (shapes is None or shape in shapes)
    }


def compare(
    record: Record, model: str, peer: str, phase: str, shapes: Sequence[str] | None = None
) -> Comparison | None:
    """Compare a model with a peer; None if they have no shape in common."""
    found = ratios(record, model, peer, phase, shapes)
    if not found:
        return None
    worst = min(found, key=lambda shape: found[shape])
    mean = statistics.geometric_mean(found.values())
    return Comparison(model, peer, phase, mean, found[worst], worst, len(found))


def comparisons(record: Record) -> list[Comparison]:
    """Compare each model of dnnffi, and cuDNN alone, with each peer in each phase."""
    found = (
        compare(record, model, peer, phase)
        for model in (*OURS, *OF_IMAGES, RAW)
        for peer in PEERS
        for phase in PHASE_WORDS
    )
    return [one for one in found if one is not None]


class Target(NamedTuple):
    """An aim and the figure that was measured, as texts.

    reached : None if nothing was measured
    raw : figure of cuDNN alone in the same run, or empty
    functions : figure of dnnffi's functions if ``measured`` is of a captured plan, else empty
    """

    what: str
    against: str
    aim: str
    measured: str
    reached: bool | None
    raw: str = ""
    functions: str = ""


NOT_MEASURED = "not measured"
Figure = tuple[str, float] | None
"""A figure in words, and the number to compare with an aim; None if it was not measured."""


def is_compared(shape: Mapping[str, Any]) -> bool:
    """Return whether the published means of "performance" include a shape of a record.

    They include the shapes of this set whose rows have equal lengths: PyTorch cannot capture rows
    of different length in a CUDA graph.
    """
    return "performance" in shape.get("sets", ()) and not shape.get("lengths")


def compared_shapes(record: Record) -> list[str]:
    """Return the names of the shapes for which `is_compared` holds."""
    return [shape["name"] for shape in record["shapes"] if is_compared(shape)]


def targets(record: Record) -> list[Target]:
    """Return the aims for an H200 and the record's figures of the set "performance".

    `RNNPlan.capture` is compared with PyTorch in a CUDA graph, since both are replayed on fixed
    arrays; the functions are compared with PyTorch's module.
    """
    equal = compared_shapes(record)
    varying = [
        shape["name"]
        for shape in record["shapes"]
        if "performance" in shape["sets"] and shape["lengths"]
    ]
    packing = "rows of different length, PyTorch's packing counted"
    return [
        _mean(record, "inference", EAGER, 1.8, equal),
        _mean(record, "inference", GRAPH, 1.15, equal),
        _mean(record, "training", EAGER, 2.2, equal),
        _mean(record, "training", GRAPH, 1.07, equal),
        _worst(record, "any single shape", EAGER, 1.0, equal),
        _worst(record, "any single shape", GRAPH, 0.97, equal),
        _worst(record, packing, EAGER, 3.0, varying),
        _host(record, FUNCTIONS, "host cost of a call, tuned, same arrays", 15, equal),
        _host(record, CAPTURED, "host cost of a plan's replay", 8, equal),
        _memory(record, 1.1, equal),
    ]


def _ratio_target(what: str, peer: str, aim: float, by_model: Callable[[str], Figure]) -> Target:
    found = by_model(CAPTURED if peer == GRAPH else FUNCTIONS)
    functions = by_model(FUNCTIONS) if peer == GRAPH else ("", 0)
    return _target(what, peer, (aim, "x"), True, found, by_model(RAW), functions)


def _target(
    what: str,
    peer: str,
    aim: tuple[float, str],
    at_least: bool,
    found: Figure,
    raw: Figure,
    functions: Figure = ("", 0),
) -> Target:
    """Return an aim; ``aim`` is a number and its unit, an upper bound unless ``at_least``."""
    number, unit = aim
    reached = None
    if found is not None:
        reached = found[1] >= number if at_least else found[1] <= number
    measured, beside, called = (
        NOT_MEASURED if figure is None else figure[0] for figure in (found, raw, functions)
    )
    sign = ">=" if at_least else "<="
    return Target(what, peer, f"{sign} {number}{unit}", measured, reached, beside, called)


def _mean(record: Record, phase: str, peer: str, aim: float, shapes: Sequence[str]) -> Target:
    def by_model(model: str) -> Figure:
        found = compare(record, model, peer, phase, shapes)
        return None if found is None else (f"{found.mean:.2f}x over {found.over}", found.mean)

    return _ratio_target(f"{PHASE_WORDS[phase]}, geometric mean", peer, aim, by_model)


def _worst(record: Record, what: str, peer: str, aim: float, shapes: Sequence[str]) -> Target:
    def by_model(model: str) -> Figure:
        found = {
            (phase, shape): ratio
            for phase in PHASE_WORDS
            for shape, ratio in ratios(record, model, peer, phase, shapes).items()
        }
        if not found:
            return None
        (phase, shape), ratio = min(found.items(), key=lambda item: item[1])
        return f"{ratio:.2f}x ({shape}, {PHASE_WORDS[phase]})", ratio

    return _ratio_target(what, peer, aim, by_model)


def _host(record: Record, model: str, what: str, aim: float, shapes: Sequence[str]) -> Target:
    def by_model(model: str) -> Figure:
        found = figures(record, model, "inference", "host_us")
        values = [found[shape] for shape in shapes if shape in found]
        if not values:
            return None
        median = statistics.median(values)
        over = f"median over {len(values)} shape{'s' * (len(values) > 1)}"
        return f"{median:.1f} µs ({over}; most {max(values):.1f} µs)", median

    return _target(what, "", (aim, " µs"), False, by_model(model), by_model(RAW))


def _memory(record: Record, aim: float, shapes: Sequence[str]) -> Target:
    what = "peak device memory, forward + backward"
    found = ratios(record, EAGER, FUNCTIONS, "training", shapes, "peak_bytes")
    if not found:
        return _target(what, EAGER, (aim, "x"), False, None, None)
    worst = max(found, key=lambda shape: found[shape])
    figure = f"at most {found[worst]:.2f}x ({worst})", found[worst]
    return _target(what, EAGER, (aim, "x"), False, figure, _buffers(record, worst))


def _buffers(record: Record, shape: str) -> Figure:
    """Return the algorithm that trains on a shape, and the buffers that cuDNN needs for it."""
    own = figures(record, FUNCTIONS, "training", "about").get(shape)
    raw = figures(record, RAW, "training", "about").get(shape)
    if own is None or raw is None:
        return None
    standard = raw["algorithms"]["standard"]
    held, least = (
        (one["workspace_bytes"] + one["reserve_bytes"]) / 2**20 for one in (own, standard)
    )
    text = f"workspace and reserve space of {own['algorithm']}: {held:.1f} MiB"
    if own["algorithm"] != "standard":
        text += f"; of standard: {least:.1f} MiB"
    return text, held
