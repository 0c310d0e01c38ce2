"""Summary of a record of callers: each entry compared with the functions on CuPy arrays.

It reads the record as JSON has it, because the documentation reads committed records.
"""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.bench.callers.problems import (
    ALLOCATOR,
    EMPTY_AUTOGRAD,
    EMPTY_JAX,
    EMPTY_ONE_THREAD,
    FUNCTIONS,
    JAX,
    TORCH_FLAT,
    TORCH_GRAPH,
    TORCH_LIST,
    TORCH_MODULE,
    TORCH_ONE_THREAD,
)
from dnnffi.bench.show import Table, aim_line, print_tables, unmeasured
from dnnffi.bench.summary import NOT_MEASURED, PHASE_WORDS, Record, Target, figures

EMPTY = {
    TORCH_LIST: EMPTY_AUTOGRAD,
    TORCH_FLAT: EMPTY_AUTOGRAD,
    TORCH_MODULE: EMPTY_AUTOGRAD,
    TORCH_ONE_THREAD: EMPTY_ONE_THREAD,
    JAX: EMPTY_JAX,
}
"""Empty call with the host cost of the caller's library, by entry."""

_OF_TORCH = TORCH_LIST, TORCH_FLAT, TORCH_MODULE, TORCH_ONE_THREAD, TORCH_GRAPH
ENTRIES = ALLOCATOR, *_OF_TORCH, JAX
"""The entries that have aims."""

MAX_RATIO = 1.05
"""Aim: upper bound on the time of a call over that of the functions if the GPU limits it."""

MAX_EXTRA_US = {"inference": 10.0, "training": 15.0}
"""Aim: upper bound on host microseconds beyond the functions and the empty call, otherwise."""

COLUMNS = {
    "ms": "milliseconds of a call in a loop",
    "x": "x dnnffi: the time divided by that of the functions",
    "host µs": "microseconds until a call returns",
    "extra µs": "host µs minus those of the functions and of the empty call of the same library",
}
"""Descriptions of the columns of `table`."""


class Excess(NamedTuple):
    """An entry compared with the functions on CuPy arrays, on one network in one phase.

    ratio : time of a call over that of the functions
    extra_us : host microseconds beyond those of the functions and of the empty call
    is_gpu_bound : whether the functions take longer on the GPU than the entry takes on the host
    """

    network: str
    phase: str
    ratio: float
    extra_us: float
    is_gpu_bound: bool


def excesses(record: Record, entry: str) -> list[Excess]:
    """Compare ``entry`` with the functions on each network that was measured with both."""
    found = []
    for phase in PHASE_WORDS:
        ms, host = (figures(record, entry, phase, key) for key in ("ms", "host_us"))
        base_ms, base_host = (figures(record, FUNCTIONS, phase, key) for key in ("ms", "host_us"))
        empty = figures(record, EMPTY[entry], phase, "host_us") if entry in EMPTY else {}
        for network, time in ms.items():
            if network in base_ms:
                extra = host[network] - base_host[network] - empty.get(network, 0.0)
                is_gpu_bound = base_ms[network] * 1e3 > host[network]
                ratio = time / base_ms[network]
                found.append(Excess(network, phase, ratio, extra, is_gpu_bound))
    return found


def targets(record: Record) -> list[Target]:
    """Return the aims of each entry and the worst figure that was measured."""
    found = []
    for entry in ENTRIES:
        all_rows = excesses(record, entry)
        bound = [one for one in all_rows if one.is_gpu_bound]
        what = f"{entry}, time of a call, limited by the GPU"
        found.append(_ratio_target(what, bound))
        for phase, most in MAX_EXTRA_US.items():
            rows = [one for one in all_rows if one.phase == phase and not one.is_gpu_bound]
            what = f"{entry}, host cost beyond, {PHASE_WORDS[phase]}, limited by the host"
            found.append(_extra_target(what, most, rows))
    return found


def _ratio_target(what: str, rows: list[Excess]) -> Target:
    aim = f"<= {MAX_RATIO:g}x"
    if not rows:
        return Target(what, FUNCTIONS, aim, NOT_MEASURED, None)
    worst = max(rows, key=lambda one: one.ratio)
    measured = f"at most {worst.ratio:.2f}x ({worst.network}, {PHASE_WORDS[worst.phase]})"
    return Target(what, FUNCTIONS, aim, measured, worst.ratio <= MAX_RATIO)


def _extra_target(what: str, most: float, rows: list[Excess]) -> Target:
    aim = f"<= {most:g} µs"
    if not rows:
        return Target(what, FUNCTIONS, aim, NOT_MEASURED, None)
    worst = max(rows, key=lambda one: one.extra_us)
    measured = f"at most {worst.extra_us:+.1f} µs ({worst.network})"
    return Target(what, FUNCTIONS, aim, measured, worst.extra_us <= most)


def table(record: Record, phase: str) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of one phase: each entry on each network."""
    by_entry = {
        (one.network, entry): one
        for entry in dict.fromkeys(row["model"] for row in record["rows"])
        for one in excesses(record, entry)
        if one.phase == phase
    }
    rows: list[list[str]] = []
    before = ""
    for row in record["rows"]:
        if row["phase"] != phase or "ms" not in row:
            continue
        network, entry = row["shape"], row["model"]
        one = by_entry.get((network, entry))
        is_compared = one is not None and entry in ENTRIES
        rows.append(
            [
                "" if network == before else network,
                entry,
                f"{row['ms']:.3f}",
                "" if one is None else f"{one.ratio:.2f}",
                f"{row['host_us']:.1f}",
                f"{one.extra_us:+.1f}" if one is not None and is_compared else "",
            ]
        )
        before = network
    return ["network", "entry", "ms", "x dnnffi", "host µs", "extra µs"], rows


def print_record(record: Record, naming: str) -> None:
    """Print the tables of both phases, the models that were not measured, and the aims."""
    print(f"Networks: {naming}")
    print_tables(
        [
            Table.of(words.capitalize(), *table(record, phase))
            for phase, words in PHASE_WORDS.items()
        ],
        COLUMNS,
    )
    for line in unmeasured(record):
        print(line)
    if any("callers" in shape["sets"] for shape in record["shapes"]):
        for target in targets(record):
            print(aim_line(target))
