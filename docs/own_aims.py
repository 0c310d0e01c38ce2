"""The aims for dnnffi's own recurrent kernels, and the figures of the benchmark's records.

They are compared with the fastest of cuDNN, PyTorch's CUDA graph and JAX's scans, which are in
several records.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import product
from statistics import geometric_mean, median
from typing import Any, NamedTuple

from record_tables import jax_scans, jax_times
from records import Block, Columns, Record, Rows, ratio_columns, shows, table_of

from dnnffi.backends.own.recurrent.config import WORD_BYTES, Chip, Kind, Layer
from dnnffi.backends.own.recurrent.cost_model import gathered_words, shared_words
from dnnffi.backends.own.recurrent.search import select_configs, select_whole_rows
from dnnffi.bench.summary import (
    CAPTURED,
    FUNCTIONS,
    GRAPH,
    NOT_MEASURED,
    PHASE_WORDS,
    RAW,
    figures,
    is_compared,
)

Figures = Mapping[str, Any]
"""A record, or a shape of one."""
Ratios = dict[str, float]
"""The time of the fastest peer over that of dnnffi, by the name of a shape."""

H200 = Chip(132, 232_448, cluster_counts=(132, 66, 39, 30, 22, 17, 15, 15))
"""The device of the records."""
SHARED_RATE = 128 * 1830
"""Bytes that a multiprocessor reads or writes in a microsecond in shared memory, at 1.83 GHz."""


class Line(NamedTuple):
    """A line of the table: shapes, and what is aimed at, for inference and for training.

    ``least`` is the aim for the slowest of several shapes, ``mean`` for their geometric mean.
    """

    words: str
    takes: Callable[[Figures], bool]
    mean: tuple[float, float] | None
    least: tuple[float, float] | None = None

    @property
    def aim(self) -> str:
        """Return the aim in words."""
        aims = {"": self.mean, "none below ": self.least}
        return ", ".join(
            words + "; ".join(f"{value:g}" for value in dict.fromkeys(pair))
            for words, pair in aims.items()
            if pair is not None
        )

    def measured(self, found: Ratios, num_shapes: int) -> str:
        """Return in words the ratios that were measured on some of ``num_shapes`` shapes."""
        if not found:
            return NOT_MEASURED
        worst = min(found, key=found.__getitem__)
        if num_shapes == 1:
            return f"{found[worst]:.2f}"
        # One more digit below 1, where a hundredth may decide whether the aim is reached.
        lowest = f"lowest {found[worst]:.{3 if found[worst] < 1 else 2}f} ({worst})"
        if self.mean is None:
            return lowest
        return f"{geometric_mean(found.values()):.2f} over {len(found)}, {lowest}"

    def reached(self, found: Ratios, phase: int) -> str:
        """Return whether the aims for a phase are reached, 0 for inference and 1 for training."""
        if not found:
            return "-"
        enough = self.mean is None or geometric_mean(found.values()) >= self.mean[phase]
        none_below = self.least is None or min(found.values()) >= self.least[phase]
        return "yes" if enough and none_below else "no"


def _named(name: str) -> Callable[[Figures], bool]:
    return lambda shape: shape["name"] == name


def _chosen(**ranges: Container[Any]) -> Callable[[Figures], bool]:
    """Return whether a shape was not drawn at random and has its fields in ``ranges``."""
    return lambda shape: (
        "random" not in shape["sets"] and all(shape[name] in ranges[name] for name in ranges)
    )


LINES = (
    Line("LSTM f16, T 100, B 64, H 512", _named("lstm f16 100 64 512 512 1 uni"), (3.5, 3.5)),
    Line("LSTM float32 (TF32), the same sizes", _named("lstm f32 100 64 512 512 1 uni"), (3, 2.8)),
    Line("GRU f16, the same sizes", _named("gru f16 100 64 512 512 1 uni"), (3, 3)),
    Line("LSTM f16, T 150, B 64, H 256", _named("lstm f16 150 64 256 256 1 uni"), (5, 4.5)),
    Line(
        "f16, H from 1024 to 2816, B from 8 to 64",
        _chosen(hidden_size=range(1024, 2817), batch=range(8, 65), dtype=["float16"]),
        mean=(2, 2),
        least=(1.3, 1.3),
    ),
    Line("B 1, T 1000, H 128 and 256", _chosen(batch=[1], steps=[1000]), (5, 5)),
    Line(
        "2 and 4 layers, T from 100 to 500",
        _chosen(layers=[2, 4], steps=range(100, 501)),
        mean=(2.5, 2.5),
    ),
    Line("the set performance, rows of equal length", is_compared, (2.5, 2.3)),
    Line("20 networks drawn at random", lambda shape: "random" in shape["sets"], (2.5, 2.3)),
    Line("any of these", lambda shape: True, None, (0.97, 0.97)),
)


@shows("bench_rnn.json", "bench_own.json", "bench_jax.json", "own_steps.json")
def own_aims(rnn: Record, own: Record, jax: Record, steps: Record) -> Iterator[Block]:
    """Yield the aims, the memory that these kernels take, and how it was measured."""
    records = (rnn, own)
    yield aim_rows(records, jax, steps)
    yield memory_of_own_kernels(records)
    for record in records:
        if "seed" in record:
            yield f"The seed of the networks drawn at random: {record['seed']}."
    for record in records:
        yield record.conditions()


def aim_rows(records: Sequence[Figures], jax: Figures, steps: Figures) -> Rows:
    """Return one row for each of `LINES`.

    ``records`` are of the benchmark, ``jax`` of its scans, ``steps`` of benchmarks/own_steps.py.
    """
    ratios = [speedups(records, phase, jax) for phase in PHASE_WORDS]
    known = [shape for record in records for shape in record["shapes"]]
    rows = []
    for line in LINES:
        shapes = {shape["name"]: shape for shape in known if line.takes(shape)}
        found = [{name: by_name[name] for name in shapes if name in by_name} for by_name in ratios]
        lowest = min(found[0], key=found[0].__getitem__, default=None)
        row = {"What": line.words, "Aim": line.aim}
        for words, one in zip(PHASE_WORDS.values(), found, strict=True):
            row[words.capitalize()] = line.measured(one, len(shapes))
        row["Reached"] = "; ".join(line.reached(one, phase) for phase, one in enumerate(found))
        row["Inference at the device's limit"] = at_limit(list(shapes.values()), steps)
        row["A step of the lowest in inference, µs: from L2, in shared memory"] = (
            "-" if lowest is None else step_of(shapes[lowest], steps)
        )
        rows.append(row)
    return rows


def at_limit(shapes: Sequence[Figures], steps: Figures) -> str:
    """Return the speed of a step at the limit over that of cuDNN's, if all were measured."""
    ratios = {
        (row["hidden_size"], row["batch"], row["dtype"]): row["cudnn"]["us"] / row["limit_us"]
        for row in steps.get("rows", ())
        if row["cudnn"] is not None and row["limit_us"]
    }
    keys = [(shape["hidden_size"], shape["batch"], shape["dtype"]) for shape in shapes]
    plain = all(
        (shape["mode"], shape["layers"], shape["directions"]) == ("lstm", 1, 1) for shape in shapes
    )
    if not keys or not plain or any(key not in ratios for key in keys):
        return "-"
    return f"{geometric_mean(ratios[key] for key in keys):.1f}"


def step_of(shape: Figures, steps: Figures) -> str:
    """Return microseconds of a step that reading from L2 takes, and that shared memory takes.

    They are those of the division that is expected to be the fastest, with tensor cores. The rate
    of L2 is that of the record.
    """
    kind = Kind(shape["mode"], shape["hidden_size"], shape["dtype"])
    batch, directions = shape["batch"], shape["directions"]
    layer = Layer(batch, directions, H200)
    found = [one for one in select_configs(kind, layer) if not one.cluster]
    if not found or not steps or select_whole_rows(kind, layer):
        return "-"
    one = found[0]
    at_once = H200.multiprocessors // one.blocks
    groups = one.groups(batch) * directions
    read = one.subtiles * (WORD_BYTES * gathered_words(one) + one.streamed_bytes)
    moved = one.subtiles * WORD_BYTES * shared_words(one)
    from_l2 = groups * one.blocks * read / steps["device"]["l2_rate"]
    in_shared = -(-groups // at_once) * moved / SHARED_RATE
    return f"{from_l2:.1f}, {in_shared:.1f}"


def speedups(records: Sequence[Figures], phase: str, jax: Figures) -> Ratios:
    """Return the speed of captured plans over the fastest of cuDNN, PyTorch's graph and JAX's scan.

    cuDNN and PyTorch are compared within a run; JAX is where it was measured at all.
    """
    found: Ratios = {}
    for record in records:
        ours, raw = figures(record, CAPTURED, phase), figures(record, RAW, phase)
        others = [figures(record, model, phase) for model in (GRAPH, "jax scan")]
        others.append(scans(jax, phase))
        for name in [name for name in ours if name in raw]:
            peers = [raw[name], *(other[name] for other in others if name in other)]
            found.setdefault(name, min(peers) / ours[name])
    return found


def scans(jax: Figures, phase: str) -> dict[str, float]:
    """Return milliseconds of the fastest unrolled scan, by the name of the shape."""
    found = {row["shape"]: jax_scans(jax_times(row.get(phase, {}))) for row in jax.get("rows", ())}
    return {name: min(times.values()) for name, times in found.items() if times}


@shows("bench_rnn.json", "bench_own.json", "bench_jax.json")
def own_jax(rnn: Record, own: Record, jax: Record) -> Iterator[Block]:
    """Yield milliseconds of JAX's fastest unrolled scan and of captured plans."""
    yield jax_rows((rnn, own), jax)


def jax_rows(records: Sequence[Figures], jax: Figures) -> Rows:
    """Return the times of the shapes that have both; those of the first record that has them."""
    columns: Columns = {}
    for phase, words in PHASE_WORDS.items():
        ours: dict[str, float] = {}
        for record in records:
            ours = figures(record, CAPTURED, phase) | ours
        columns |= ratio_columns(words, "scan", scans(jax, phase), ours)
    names = dict.fromkeys(name for found, _ in columns.values() for name in found)
    return table_of(names, columns, "Shape")


def memory_of_own_kernels(records: Sequence[Figures]) -> str:
    """Return their workspace and reserve space over those of cuDNN's standard algorithm."""
    ratios = {}
    for record, phase in product(records, PHASE_WORDS):
        ran, raw = (figures(record, model, phase, "about") for model in (FUNCTIONS, RAW))
        for name in [name for name in ran if name in raw and ran[name]["algorithm"] == "own"]:
            ours, standard = (
                about["workspace_bytes"] + about["reserve_bytes"]
                for about in (ran[name], raw[name]["algorithms"]["standard"])
            )
            ratios[name, phase] = ours / standard
    if not ratios:
        return "No shape of the record ran on these kernels."
    name, phase = worst = max(ratios, key=ratios.__getitem__)
    return (
        f"Where these kernels run, their workspace and reserve space together are "
        f"{min(ratios.values()):.2f} to {ratios[worst]:.2f} times those of cuDNN's standard "
        f"algorithm (most for {name}, {PHASE_WORDS[phase]}), {median(ratios.values()):.2f} times "
        f"in the median of {len(ratios)} cases."
    )
