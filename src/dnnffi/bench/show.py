"""A run on the terminal: progress, tables and what they say together.

With rich where it is installed and the output is a terminal, else as plain text.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from dnnffi.bench.summary import (
    NOT_MEASURED,
    PEERS,
    PHASE_WORDS,
    Record,
    Target,
    comparisons,
    figures,
    ratios,
)


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], object]]:
    """How far a run is: a bar on a terminal, else a line for each shape; on the standard error.

    The context is a function to be told the name of the shape that is measured next.
    """
    done = itertools.count()
    if find_spec("rich") is None or not sys.stderr.isatty():
        yield lambda name: print(f"[{next(done) + 1}/{total}] {name}", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shape]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, shape="")
        yield lambda name: bar.update(task, completed=next(done), shape=name)


COLUMNS = (
    "ms of a call in a loop; x PEER, how many times as fast as the peer; host µs until a call "
    "returns; peak MiB in use during a call"
)


def print_record(record: Record, naming: str) -> None:
    """Tables of both phases, what was not measured, and the comparisons.

    ``naming`` says what the parts of a shape's name are.
    """
    print(f"Shapes: {naming}\nColumns: {COLUMNS}")
    if "seed" in record:
        print(f"Shapes of the set random were drawn from the seed {record['seed']}.")
    print()
    for phase, words in PHASE_WORDS.items():
        head, rows = table(record, phase)
        if rows:
            print_table(words.capitalize(), head, rows)
    for line in (*unmeasured(record), *map(str, comparisons(record))):
        print(line)


def table(record: Record, phase: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows of one phase. A ratio above 1 says that the model is faster than the peer."""
    measured = [row for row in record["rows"] if row["phase"] == phase and "ms" in row]
    models = dict.fromkeys(row["model"] for row in measured)
    peers = [peer for peer in PEERS if figures(record, peer, phase)]
    by_peer = {
        (model, peer): ratios(record, model, peer, phase) for model in models for peer in peers
    }
    rows = []
    before = ""
    for row in measured:
        shape, model = row["shape"], row["model"]
        speed = [by_peer[model, peer].get(shape) for peer in peers]
        peak = row.get("peak_bytes")
        rows.append(
            [
                "" if shape == before else shape,
                model,
                f"{row['ms']:.3f}",
                *("" if ratio is None else f"{ratio:.2f}" for ratio in speed),
                f"{row['host_us']:.1f}",
                "" if peak is None else f"{peak / 2**20:.1f}",
            ]
        )
        before = shape
    return ["shape", "model", "ms", *(f"x {peer}" for peer in peers), "host µs", "peak MiB"], rows


def unmeasured(record: Record) -> list[str]:
    """Which models were not measured, on how many shapes and why; failures one by one."""
    skipped: dict[str, dict[str, set[str]]] = {}
    for row in record["rows"]:
        if why := row.get("skipped"):
            skipped.setdefault(row["model"], {}).setdefault(why, set()).add(row["shape"])
    lines = [
        f"Not measured: {model} ("
        + "; ".join(f"{len(shapes)} x {why}" for why, shapes in reasons.items())
        + ")"
        for model, reasons in skipped.items()
    ]
    lines += [
        f"Failed: {row['model']} on {row['shape']}, {PHASE_WORDS[row['phase']]}: {row['failed']}"
        for row in record["rows"]
        if row.get("failed")
    ]
    return lines


def aim_line(target: Target) -> str:
    """Return an aim and what was measured as a line."""
    words: dict[bool | None, str] = {True: "reached", False: "missed", None: NOT_MEASURED}
    against = f" against {target.against}" if target.against else ""
    measured = "" if target.reached is None else f": {target.measured}"
    return f"{target.what}{against}, aim {target.aim}{measured}, {words[target.reached]}"


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, whose first two columns are texts."""
    if find_spec("rich") is not None and sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        made = Table(title=title, title_justify="left")
        for number, name in enumerate(head):
            made.add_column(name, justify="left" if number < 2 else "right", no_wrap=True)
        for row in rows:
            made.add_row(*row)
        Console().print(made)
        return
    print(title)
    for line in _aligned([head, *rows]):
        print(line)
    print()


def _aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{text:<{width}}" if number < 2 else f"{text:>{width}}"
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
