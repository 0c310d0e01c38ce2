"""The aims for dnnffi's own recurrent kernels, and the figures of the benchmark's records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any, NamedTuple

from dnnffi.backends.own.recurrent.config import WORD_BYTES, Chip, Kind, Layer
from dnnffi.backends.own.recurrent.cost_model import gathered_words, shared_words
from dnnffi.backends.own.recurrent.search import select_configs, select_whole_rows
from dnnffi.bench.summary import (
    CAPTURED,
    GRAPH,
    NOT_MEASURED,
    PHASE_WORDS,
    RAW,
    figures,
    is_compared,
)

Record = Mapping[str, Any]
Ratios = dict[str, float]
"""By the name of a shape: the time of the fastest peer over ours."""

SCAN = "jax scan"
H200 = Chip(132, 232_448, clusters=True)
"""The device of the records."""
SHARED_RATE = 128 * 1830
"""Bytes that a multiprocessor reads or writes in a microsecond in shared memory, at 1.83 GHz."""


class Line(NamedTuple):
    """A line of the table: shapes, and what is aimed at, for inference and for training.

    ``least`` is the aim for the slowest of several shapes, ``mean`` for their geometric mean.
    """

    words: str
    takes: Callable[[Mapping[str, Any]], bool]
    mean: tuple[float, float] | None
    least: tuple[float, float] | None = None

    @property
    def aim(self) -> str:
        """In words."""
        parts = [] if self.mean is None else [_both(self.mean)]
        if self.least is not None:
            parts.append(f"none below {_both(self.least)}")
        return ", ".join(parts)


def _both(pair: tuple[float, float]) -> str:
    return "; ".join(f"{value:g}" for value in dict.fromkeys(pair))


def _named(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda shape: shape["name"] in names


def _chosen(shape: Mapping[str, Any]) -> bool:
    return "random" not in shape["sets"]


def _large(shape: Mapping[str, Any]) -> bool:
    sizes = 1024 <= shape["hidden_size"] <= 2816 and 8 <= shape["batch"] <= 64
    return _chosen(shape) and sizes and shape["dtype"] == "float16"


def _single_row(shape: Mapping[str, Any]) -> bool:
    return _chosen(shape) and shape["batch"] == 1 and shape["steps"] == 1000


def _deep(shape: Mapping[str, Any]) -> bool:
    return _chosen(shape) and shape["layers"] in (2, 4) and 100 <= shape["steps"] <= 500


LINES = (
    Line("LSTM f16, T 100, B 64, H 512", _named("lstm f16 100 64 512 512 1 uni"), (3.5, 3.5)),
    Line("LSTM float32 (TF32), the same sizes", _named("lstm f32 100 64 512 512 1 uni"), (3, 2.8)),
    Line("GRU f16, the same sizes", _named("gru f16 100 64 512 512 1 uni"), (3, 3)),
    Line("LSTM f16, T 150, B 64, H 256", _named("lstm f16 150 64 256 256 1 uni"), (5, 4.5)),
    Line("f16, H from 1024 to 2816, B from 8 to 64", _large, (2, 2), (1.3, 1.3)),
    Line("B 1, T 1000, H 128 and 256", _single_row, (5, 5)),
    Line("2 and 4 layers, T from 100 to 500", _deep, (2.5, 2.5)),
    Line("the set performance, rows of equal length", is_compared, (2.5, 2.3)),
    Line("20 networks drawn at random", lambda shape: "random" in shape["sets"], (2.5, 2.3)),
    Line("any of these", lambda shape: True, None, (0.97, 0.97)),
)
STEP = "A step of the lowest in inference, µs: from L2, in shared memory"
AT_LIMIT = "Inference at the device's limit"
HEAD = ("What", "Aim", *map(str.capitalize, PHASE_WORDS.values()), "Reached", AT_LIMIT, STEP)


def rows(
    records: Sequence[Record], jax: Record | None = None, steps: Record | None = None
) -> list[tuple[str, ...]]:
    """One row for each of `LINES`.

    ``records`` are of the benchmark, ``jax`` of its scans, ``steps`` of benchmarks/own_steps.py.
    """
    ratios = {phase: speedups(records, phase, jax) for phase in PHASE_WORDS}
    shapes = [shape for record in records for shape in record["shapes"]]
    found = []
    for line in LINES:
        taken = {shape["name"]: shape for shape in shapes if line.takes(shape)}
        names = list(taken)
        cells, reached = [], []
        of_lowest = "-"
        for number, by_name in enumerate(ratios.values()):
            inside = {name: by_name[name] for name in names if name in by_name}
            cells.append(_cell(line, inside, len(names)))
            reached.append(_reached(line, inside, number))
            if inside and number == 0:
                lowest = min(inside, key=inside.__getitem__)
                of_lowest = step_of(taken[lowest], steps)
        limited = at_limit(list(taken.values()), steps)
        found.append((line.words, line.aim, *cells, "; ".join(reached), limited, of_lowest))
    return found


def at_limit(shapes: Sequence[Mapping[str, Any]], steps: Record | None) -> str:
    """Return the speed of a step at the limit over that of cuDNN's, if all were measured."""
    ratios = {
        (row["hidden_size"], row["batch"], row["dtype"]): row["cudnn"]["us"] / row["limit_us"]
        for row in (() if steps is None else steps["rows"])
        if row["cudnn"] is not None and row["limit_us"]
    }
    keys = [(shape["hidden_size"], shape["batch"], shape["dtype"]) for shape in shapes]
    plain = all(
        (shape["mode"], shape["layers"], shape["directions"]) == ("lstm", 1, 1) for shape in shapes
    )
    if not keys or not plain or any(key not in ratios for key in keys):
        return "-"
    return f"{geometric_mean(ratios[key] for key in keys):.1f}"


def step_of(shape: Mapping[str, Any], steps: Record | None) -> str:
    """Return microseconds of a step that reading from L2 takes, and that shared memory takes.

    They are those of the division that is expected to be the fastest, with tensor cores. The rate
    of L2 is that of the record.
    """
    kind = Kind(shape["mode"], shape["hidden_size"], shape["dtype"])
    batch, directions = shape["batch"], shape["directions"]
    layer = Layer(batch, directions, H200)
    found = [one for one in select_configs(kind, layer) if not one.cluster]
    if not found or steps is None or select_whole_rows(kind, layer):
        return "-"
    one = found[0]
    at_once = H200.multiprocessors // one.blocks
    groups = one.groups(batch) * directions
    read = one.subtiles * (WORD_BYTES * gathered_words(one) + one.streamed_bytes)
    moved = one.subtiles * WORD_BYTES * shared_words(one)
    from_l2 = groups * one.blocks * read / steps["device"]["l2_rate"]
    in_shared = -(-groups // at_once) * moved / SHARED_RATE
    return f"{from_l2:.1f}, {in_shared:.1f}"


def speedups(records: Sequence[Record], phase: str, jax: Record | None = None) -> Ratios:
    """Return the speed of captured plans over the fastest of cuDNN, PyTorch's graph and JAX's scan.

    cuDNN and PyTorch are compared within a run; JAX is where it was measured at all.
    """
    scanned = scans(jax, phase)
    found: Ratios = {}
    for record in records:
        ours, raw = figures(record, CAPTURED, phase), figures(record, RAW, phase)
        others = [figures(record, model, phase) for model in (GRAPH, SCAN)] + [scanned]
        for name in [name for name in ours if name in raw]:
            peers = [raw[name], *(other[name] for other in others if name in other)]
            found.setdefault(name, min(peers) / ours[name])
    return found


def scans(jax: Record | None, phase: str) -> dict[str, float]:
    """Milliseconds of the fastest unrolled scan, by the name of the shape."""
    found = {}
    for row in [] if jax is None else jax.get("rows", []):
        times = row.get(phase, {}).items()
        # What failed is text.
        taken = [t for name, t in times if name.startswith("scan ") and isinstance(t, int | float)]
        if taken:
            found[row["shape"]] = min(taken)
    return found


def _cell(line: Line, inside: Ratios, count: int) -> str:
    if not inside:
        return NOT_MEASURED
    worst = min(inside, key=inside.__getitem__)
    if count == 1:
        return f"{inside[worst]:.2f}"
    # One more digit below 1, where a hundredth may decide whether the aim is reached.
    lowest = f"lowest {inside[worst]:.{3 if inside[worst] < 1 else 2}f} ({worst})"
    if line.mean is None:
        return lowest
    return f"{geometric_mean(inside.values()):.2f} over {len(inside)}, {lowest}"


def _reached(line: Line, inside: Ratios, phase: int) -> str:
    if not inside:
        return "-"
    enough = line.mean is None or geometric_mean(inside.values()) >= line.mean[phase]
    none_below = line.least is None or min(inside.values()) >= line.least[phase]
    return "yes" if enough and none_below else "no"


JAX_HEAD = (
    "Shape",
    *(f"{words}, {one}" for words in PHASE_WORDS.values() for one in ("scan", "dnnffi", "ratio")),
)


def jax_rows(records: Iterable[Record], jax: Record) -> list[tuple[str, ...]]:
    """Milliseconds of JAX's fastest unrolled scan and of captured plans, where there are both."""
    cells: dict[str, list[str]] = {}
    by_phase = []
    for phase in PHASE_WORDS:
        ours: dict[str, float] = {}
        for record in records:
            ours = figures(record, CAPTURED, phase) | ours
        by_phase.append((scans(jax, phase), ours))
    names = dict.fromkeys(name for scanned, ours in by_phase for name in scanned if name in ours)
    for name in names:
        cells[name] = []
        for scanned, ours in by_phase:
            if name in scanned and name in ours:
                ratio = scanned[name] / ours[name]
                cells[name] += [f"{scanned[name]:.3f}", f"{ours[name]:.3f}", f"{ratio:.2f}"]
            else:
                cells[name] += [NOT_MEASURED] * 3
    return [(name, *row) for name, row in cells.items()]
