"""Records of docs/verification, and the registry of what the pages show of them.

A function with `shows` makes a content: blocks of tables and text, in their order on a page. The
directive ``generated`` shows it by the name of the function, with hyphens for underscores. Sphinx
is not imported here, so that tests can compare contents with records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from dnnffi.bench.summary import NOT_MEASURED
from dnnffi.cli.sources import changed_parts, read_source_lines

DOCS = Path(__file__).resolve().parent


class Literal(str):
    """A block whose lines are shown as they are."""


class Html(str):
    """A block of HTML, which other builders leave out."""


Rows = list[dict[str, str]]
"""A table: the cells of each row by the words of the head."""
Pairs = list[tuple[str, str]]
"""A table without a head: names and values."""
Columns = dict[str, tuple[dict[str, float], int]]
"""Columns by their words: figures by the name of a row, and the number of their decimals."""
Block = str | Rows | Pairs
"""A part of a page. A string that is not `Literal` or `Html` is a paragraph."""


class MissingRecordError(Exception):
    """A checkout has no record of this name."""


class Record(dict[str, Any]):
    """A record as JSON has it; of a file of text the entries ``text`` and ``source``.

    name : name of the file in docs/verification
    """

    def __init__(self, name: str, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.name = name

    @classmethod
    def read(cls, name: str) -> Record:
        """Read the record of that name."""
        try:
            text = (DOCS / "verification" / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise MissingRecordError(name) from None
        if name.endswith(".json"):
            return cls(name, json.loads(text))
        return cls(name, dict(zip(("text", "source"), read_source_lines(text), strict=True)))

    def state(self, hashes: Mapping[str, str] | None) -> str:
        """Return in words how the source with these hashes differs from the source as it is now."""
        changed = changed_parts(self.name, hashes)
        if changed is None:
            return "an unknown state of the source"
        if not changed:
            return "the source as it is now"
        return f"an earlier state of the source (changed since: {', '.join(changed)})"

    def conditions(self, key: str = "machine") -> str:
        """Return in words on which machine and state of the source a benchmark ran."""
        machine = self[key]
        hashes = ("src_sha256", "source")
        said = ", ".join(f"{name} {value}" for name, value in machine.items() if name not in hashes)
        return f"A record of {self.state(machine.get('source'))}: {said}."


CONTENTS: dict[str, tuple[Callable[..., Iterable[Block]], tuple[str, ...]]] = {}
"""The contents by their names on the pages: a function, and the names of its records."""


def shows(*files: str) -> Callable[[Any], Any]:
    """Register a function of the records ``files`` as the content of its name."""

    def register(make: Any) -> Any:
        name = make.__name__.replace("_", "-")
        assert name not in CONTENTS, f"two contents are called {name}"
        CONTENTS[name] = make, files
        return make

    return register


def blocks(name: str, file: str | None = None) -> list[Block]:
    """Return the blocks of a content; ``file`` is another record in the place of its first one."""
    make, files = CONTENTS[name]
    names = files if file is None else (file, *files[1:])
    return list(make(*map(Record.read, names)))


def fixed(value: float | None, digits: int) -> str:
    """Return a number with ``digits`` decimals; None was not measured."""
    return NOT_MEASURED if value is None else f"{value:.{digits}f}"


def mean_of(values: Iterable[float]) -> float | None:
    """Return the geometric mean; None if there is no value."""
    found = list(values)
    return geometric_mean(found) if found else None


def grouped(rows: Iterable[Any], *keys: str) -> dict[tuple[Any, ...], list[Any]]:
    """Return rows by their values of ``keys``, in the order of the first row of each."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def table_of(names: Collection[str], columns: Columns, head: str) -> Rows:
    """Return a table of figures with one row for each name; ``head`` is above the names."""
    return [
        {head: name}
        | {words: fixed(found.get(name), digits) for words, (found, digits) in columns.items()}
        for name in names
    ]


def ratio_columns(
    phase: str, title: str, others: Mapping[str, float], ours: Mapping[str, float]
) -> Columns:
    """Return columns for `table_of`: milliseconds of others and of dnnffi, and their ratio.

    Only names that have both are in them; ``title`` has the words of the others.
    """
    both = [name for name in others if name in ours]
    return {
        f"{phase}, {title}": ({name: others[name] for name in both}, 3),
        f"{phase}, dnnffi": ({name: ours[name] for name in both}, 3),
        f"{phase}, ratio": ({name: others[name] / ours[name] for name in both}, 2),
    }
