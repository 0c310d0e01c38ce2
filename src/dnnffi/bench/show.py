"""The output of a run: progress, tables, and the models that were not measured.

On a terminal the output uses rich if it is installed. Else it is plain text.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NamedTuple

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
    """Show on standard error which shape is measured: a bar on a terminal, else lines.

    Yields a function that takes the name of the next shape.
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


COLUMNS = {
    "ms": "milliseconds of a call in a loop",
    "x": "x PEER: the peer's time divided by the model's, above 1 if the model is faster",
    "host µs": "microseconds until a call returns",
    "peak MiB": "memory in use during a call, at its maximum",
}
"""Descriptions of the columns of `table`; "x" is that of all ratios."""


MODELS = {
    "dnnffi": "the functions of dnnffi",
    "dnnffi plan": "a plan that the program holds",
    "dnnffi plan captured": "such a plan, replayed as a CUDA graph",
    "dnnffi jax": "dnnffi.jax in a compiled function",
    "cudnn raw": "cuDNN's C functions in a CUDA graph",
    "array": "the network in operations of NumPy, on a GPU of CuPy, in the ways that the names say",
    "torch eager": "torch.nn as users call it",
    "torch graph": "torch.nn in a CUDA graph",
    "torch script": "as array, through torch.jit.script",
    "jax": "functions of JAX",
}
"""Descriptions of models, by their names or the words with which the names begin."""


def model_lines(models: Iterable[str]) -> list[str]:
    """Return a line for each description of `MODELS` that one of ``models`` needs."""
    found = {}
    for model in models:
        words = model.split()
        prefixes = (" ".join(words[:count]) for count in range(len(words), 0, -1))
        if name := next((prefix for prefix in prefixes if prefix in MODELS), None):
            found[name] = f"  {name}{' ...' if name != model else ''}: {MODELS[name]}"
    return list(found.values())


class Table(NamedTuple):
    """A table without empty columns; the first two columns are texts, the others numbers."""

    title: str
    head: list[str]
    rows: list[list[str]]

    @classmethod
    def of(cls, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
        """Return a table of the columns that have an entry."""
        used = [n for n in range(len(head)) if any(row[n] for row in rows)]
        return cls(title, [head[n] for n in used], [[row[n] for n in used] for row in rows])


def print_record(record: Record, naming: str) -> None:
    """Print the tables of both phases, the models that were not measured, and the comparisons.

    ``naming`` describes the parts of a shape's name.
    """
    tables = [
        Table.of(words.capitalize(), *table(record, phase)) for phase, words in PHASE_WORDS.items()
    ]
    print(f"Shapes: {naming}")
    if "seed" in record:
        print(f"The shapes of the set random were drawn from the seed {record['seed']}.")
    lines = model_lines(row["model"] for row in record["rows"] if "ms" in row)
    if lines:
        print("Models (docs/benchmarks.md describes each):", *lines, sep="\n")
    print_tables(tables, COLUMNS)
    for line in (*unmeasured(record), *map(str, comparisons(record))):
        print(line)


def print_tables(tables: Iterable[Table], columns: Mapping[str, str]) -> None:
    """Print the descriptions of the columns that the tables have, then the tables with rows."""
    tables = [one for one in tables if one.rows]
    heads = dict.fromkeys(name for one in tables for name in one.head)
    used = dict.fromkeys("x" if name.startswith("x ") else name for name in heads)
    described = [
        columns[name] if name == "x" else f"{name}: {columns[name]}"
        for name in used
        if name in columns
    ]
    if described:
        print(f"Columns: {'; '.join(described)}")
    print()
    for one in tables:
        print_table(*one)


def table(record: Record, phase: str) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of one phase."""
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
    """Return lines with the models that were not measured and why, then a line for each failure.

    Models with the same reasons on the same numbers of shapes share a line.
    """
    skipped: dict[str, dict[str, set[str]]] = {}
    for row in record["rows"]:
        if why := row.get("skipped"):
            skipped.setdefault(row["model"], {}).setdefault(why, set()).add(row["shape"])
    models: dict[str, list[str]] = {}
    for model, reasons in skipped.items():
        words = "; ".join(f"{why}: {_count(shapes)}" for why, shapes in reasons.items())
        models.setdefault(words, []).append(model)
    lines = [f"Not measured: {', '.join(names)} ({words})" for words, names in models.items()]
    lines += [
        f"Failed: {row['model']} on {row['shape']}, {PHASE_WORDS[row['phase']]}: {row['failed']}"
        for row in record["rows"]
        if row.get("failed")
    ]
    return lines


def _count(shapes: set[str]) -> str:
    return f"{len(shapes)} shape{'s' * (len(shapes) > 1)}"


def aim_line(target: Target) -> str:
    """Return an aim and the figure that was measured as a line."""
    words: dict[bool | None, str] = {True: "reached", False: "missed", None: NOT_MEASURED}
    against = f" compared with {target.against}" if target.against else ""
    measured = "" if target.reached is None else f": {target.measured}"
    return f"{target.what}{against}, aim {target.aim}{measured}, {words[target.reached]}"


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first two columns are texts and the others numbers."""
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
