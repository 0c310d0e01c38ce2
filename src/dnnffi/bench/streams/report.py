"""Summary of a record of streams: ratios, means, aims, and tables of them.

It reads the record as JSON has it, because the documentation reads committed records.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from dnnffi.bench.show import Table, aim_line, print_tables, unmeasured
from dnnffi.bench.streams.model import (
    EAGER,
    FUNCTIONS,
    JAX_SCAN,
    PACKED,
    PADDED,
    TORCHRL_BF16,
    TORCHRL_PAD,
    TORCHRL_TF32,
    TUNED_PLAN,
    with_resets,
)
from dnnffi.bench.streams.resets import RESET_RATES
from dnnffi.bench.summary import NOT_MEASURED, Record, Target

BEST_TORCH = "the better of PyTorch's"
"""Name of the smaller time of PyTorch's models on each stream."""

FASTEST_LOOP = "the fastest loop"
"""Name of the smallest time of other libraries' loops with resets on each stream."""

MAX_TUNED_PLANS = 1.3
"""Aim: upper bound on the time of a batch over that of the tuned plan, on each stream."""

MIN_SPEEDUPS = {PADDED: 8.0, PACKED: 15.0}
"""Aim: lower bounds on the geometric mean of PyTorch's time over that of dnnffi's functions."""

MAX_FIRST_EPOCH = (1.2, 0.3)
"""Aim: upper bound on a first epoch, as a multiple of a later epoch and seconds beyond it."""

MAX_COLD_EPOCH_SECONDS = 3.0
"""Aim: the same with no kernel compiled before; seconds more than a later epoch."""

MAX_RESET_RATIO = 1.03
"""Aim: upper bound on the time of a batch with resets over that without, on each stream."""

MIN_RESET_SPEEDUP = 4.0
"""Aim: lower bound on the time of `FASTEST_LOOP` over that of dnnffi, on each stream."""

RESET_SCAN = with_resets(JAX_SCAN, RESET_RATES[-1])
RESET_TRITON = tuple(with_resets(model, RESET_RATES[-1]) for model in (TORCHRL_TF32, TORCHRL_BF16))
"""Other libraries' loops over the steps that reset states in them."""

RESET_PEERS = (
    FUNCTIONS,
    EAGER,
    RESET_SCAN,
    *(with_resets(TORCHRL_PAD, rate) for rate in RESET_RATES),
    *RESET_TRITON,
)
"""Models with a column of ratios if streams have resets; the first two reset nothing."""

COLUMNS = {
    "ms": "milliseconds of a batch in a later epoch",
    "spread": "(largest - smallest) / median of the turns",
    "x": "x PEER: the model's time divided by the peer's, below 1 if the model is faster",
    "first ms": "milliseconds of a batch in the first epoch",
    "known ms": "milliseconds of a batch in the later epoch run once more, all sizes known",
    "host µs": "microseconds of a batch until its calls return",
}
"""Descriptions of the columns of `table`; "x" is that of all ratios."""

Times = dict[str, float]
"""A figure of each stream, by the stream's name."""


def figures(record: Record, model: str, key: str = "ms") -> Times:
    """Return ``key`` of the measured rows of ``model``: also `BEST_TORCH`, `FASTEST_LOOP`."""
    if model == BEST_TORCH:
        names = dict.fromkeys(row["model"] for row in record["rows"])
        return _least(record, [name for name in names if name.startswith("torch ")], key)
    if model == FASTEST_LOOP:
        return _least(record, (RESET_SCAN, *RESET_TRITON), key)
    return {
        row["shape"]: row[key]
        for row in record["rows"]
        if row["model"] == model and row.get(key) is not None
    }


def _least(record: Record, models: Iterable[str], key: str) -> Times:
    """Return the least ``key`` of some models, of each stream that one of them has."""
    found: Times = {}
    for name in models:
        for stream, value in figures(record, name, key).items():
            found[stream] = min(value, found.get(stream, value))
    return found


def ratios(
    record: Record,
    model: str,
    over: str,
    streams: Collection[str] | None = None,
    key: str = "ms",
) -> Times:
    """Return the time of ``model`` divided by that of ``over``, of each stream that has both.

    ``key`` is the field of a row that has the time.
    """
    times, others = figures(record, model, key), figures(record, over, key)
    return {
        stream: time / others[stream]
        for stream, time in times.items()
        if stream in others and (streams is None or stream in streams)
    }


def mean_ratio(
    record: Record,
    model: str,
    over: str,
    streams: Collection[str] | None = None,
    key: str = "ms",
) -> float | None:
    """Return the geometric mean of `ratios`; None if no stream has both."""
    found = ratios(record, model, over, streams, key)
    return statistics.geometric_mean(found.values()) if found else None


def spread(row: Record) -> float:
    """Return (largest - smallest) / median of the turns of a row: its noise."""
    turns = row["turns_ms"]
    return (max(turns) - min(turns)) / float(statistics.median(turns))


def streams_of(record: Record, name: str) -> list[str]:
    """Return the names of the streams of one set."""
    return [shape["name"] for shape in record["shapes"] if name in shape["sets"]]


def sets_of(record: Record) -> list[str]:
    """Return the sets of a record, in their order."""
    return list(dict.fromkeys(name for shape in record["shapes"] for name in shape["sets"]))


def has_resets(record: Record) -> bool:
    """Return whether the streams of a record have resets."""
    return any("reset_rates" in shape for shape in record["shapes"])


def reset_targets(record: Record) -> list[Target]:
    """Return the aims for dnnffi's functions with resets and what was measured.

    The set "episodes" has aims.
    """
    models = [with_resets(FUNCTIONS, rate) for rate in RESET_RATES]
    costs = [
        _worst(record, "episodes", FUNCTIONS, MAX_RESET_RATIO, model=model, digits=3)
        for model in models
    ]
    return [*costs, _reset_speedup(record, models[-1])]


def _reset_speedup(record: Record, model: str) -> Target:
    """Return the aim for the time of the fastest loop over that of ``model``, on each stream."""
    what = f"peer's time over that of {model}, each stream of episodes"
    aim = f">= {MIN_RESET_SPEEDUP:g}x"
    found = ratios(record, FASTEST_LOOP, model, streams_of(record, "episodes"))
    if not found:
        return Target(what, FASTEST_LOOP, aim, NOT_MEASURED, None)
    worst = min(found, key=lambda stream: found[stream])
    measured = f"at least {found[worst]:.2f}x ({worst})"
    return Target(what, FASTEST_LOOP, aim, measured, found[worst] >= MIN_RESET_SPEEDUP)


def targets(record: Record) -> list[Target]:
    """Return the aims for dnnffi's functions and what was measured.

    The sets "everyday" and "random" have aims for a batch, the former also for a first epoch.
    """
    factor, seconds = MAX_FIRST_EPOCH
    return [
        _worst(record, "everyday", TUNED_PLAN, MAX_TUNED_PLANS),
        *_speedups(record, "everyday"),
        _worst(record, "everyday", BEST_TORCH, 1.0),
        *_speedups(record, "random"),
        _worst(record, "random", BEST_TORCH, 1.0),
        _first(record, "first_epoch_s", "kernels compiled before", factor, seconds),
        _first(record, "cold_epoch_s", "no kernel compiled before", 1.0, MAX_COLD_EPOCH_SECONDS),
    ]


def _speedups(record: Record, name: str) -> Iterator[Target]:
    """Yield the aims for the mean of each of PyTorch's times over that of the functions."""
    for peer, least in MIN_SPEEDUPS.items():
        mean = mean_ratio(record, peer, FUNCTIONS, streams_of(record, name))
        text = NOT_MEASURED if mean is None else f"{mean:.2f}x"
        reached = None if mean is None else mean >= least
        what = f"geometric mean over {name}, peer's time over dnnffi's"
        yield Target(what, peer, f">= {least:g}x", text, reached)


def _worst(
    record: Record,
    name: str,
    over: str,
    most: float,
    *,
    model: str = FUNCTIONS,
    digits: int = 2,
) -> Target:
    """Return the aim for each stream of a set: the time of ``model`` over that of another one."""
    of_model = "" if model == FUNCTIONS else f" of {model}"
    what = f"a batch{of_model}, each stream of {name}"
    found = ratios(record, model, over, streams_of(record, name))
    if not found:
        return Target(what, over, f"<= {most:g}x", NOT_MEASURED, None)
    worst = max(found, key=lambda stream: found[stream])
    measured = f"at most {found[worst]:.{digits}f}x ({worst})"
    return Target(what, over, f"<= {most:g}x", measured, found[worst] <= most)


def _first(record: Record, key: str, words: str, factor: float, seconds: float) -> Target:
    """Return the aim for a first epoch, with the stream that exceeds a later epoch by the most."""
    what = f"first epoch, no plan and no tuning result, {words}"
    times = f"{factor:g} times " if factor != 1 else ""
    aim = f"<= {times}a later epoch + {seconds:g} s"
    first, later = figures(record, FUNCTIONS, key), figures(record, FUNCTIONS)
    over = {
        stream: first[stream] - factor * later[stream] * record["settings"]["batches"] / 1e3
        for stream in streams_of(record, "everyday")
        if stream in first
    }
    if not over:
        return Target(what, "", aim, NOT_MEASURED, None)
    worst = max(over, key=lambda stream: over[stream])
    measured = f"{over[worst]:+.2f} s ({worst})"
    return Target(what, "", aim, measured, over[worst] <= seconds)


def table(record: Record) -> tuple[list[str], list[list[str]]]:
    """Return head and rows: each model on each stream, then the geometric means of each set."""
    models = list(dict.fromkeys(row["model"] for row in record["rows"] if "ms" in row))
    compared = RESET_PEERS if has_resets(record) else (TUNED_PLAN, BEST_TORCH)
    peers = [peer for peer in compared if figures(record, peer)]
    by_peer = {(model, peer): ratios(record, model, peer) for model in models for peer in peers}
    has_known = any("known_ms" in row for row in record["rows"])
    rows: list[list[str]] = []
    before = ""
    for row in record["rows"]:
        if "ms" not in row:
            continue
        stream, model = row["shape"], row["model"]
        rows.append(
            [
                "" if stream == before else stream,
                model,
                f"{row['ms']:.3f}",
                f"{spread(row):.0%}" if len(row["turns_ms"]) > 1 else "",
                *(_ratio(by_peer[model, peer].get(stream)) for peer in peers),
                f"{row['first_ms']:.3f}",
                *([f"{row['known_ms']:.3f}"] if has_known else []),
                f"{row['host_us']:.0f}",
            ]
        )
        before = stream
    for name in sets_of(record):
        for number, model in enumerate(models):
            means = [mean_ratio(record, model, peer, streams_of(record, name)) for peer in peers]
            title = "" if number else f"geometric mean, {name}"
            rows.append([title, model, "", "", *map(_ratio, means), "", *[""] * has_known, ""])
    head = ["stream", "model", "ms", "spread", *(f"x {peer}" for peer in peers)]
    return [*head, "first ms", *["known ms"] * has_known, "host µs"], rows


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def print_record(record: Record, naming: str) -> None:
    """Print the table, the models that were not measured, and the aims."""
    print(f"Streams: {naming}")
    if "seed" in record:
        print(f"The streams of the set random were drawn from the seed {record['seed']}.")
    print_tables([Table.of("Streams of batches", *table(record))], COLUMNS)
    for line in unmeasured(record):
        print(line)
    aims = reset_targets(record) if has_resets(record) else targets(record)
    if {"everyday", "random", "episodes"} & set(sets_of(record)):
        for target in aims:
            print(aim_line(target))


def conditions(record: Any) -> str:
    """Return in words how many batches and turns a record has."""
    settings = record["settings"]
    return f"{settings['batches']} batches an epoch, {settings['rounds']} turns of each model"
