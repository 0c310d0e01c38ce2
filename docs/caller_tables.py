"""Tables of the record of callers, as the pages show them."""

from __future__ import annotations

from typing import Any

from dnnffi.bench.callers.report import targets
from dnnffi.bench.summary import NOT_MEASURED, PHASE_WORDS, figures

AIM_HEAD = ("What", "Aim", "Measured", "Reached")


def aim_rows(record: dict[str, Any] | None) -> list[tuple[str, ...]]:
    """Return the aims and what a run measured; ``record`` is None if there was no run."""
    words = {None: "-", True: "yes", False: "no"}
    found = targets({"shapes": [], "rows": []} if record is None else record)
    return [(one.what, one.aim, one.measured, words[one.reached]) for one in found]


def head(record: dict[str, Any]) -> tuple[str, ...]:
    """Return the columns of `rows`."""
    return ("Network", "Figure", *_entries(record))


def rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return milliseconds of a call and host microseconds of each network, phase and entry."""
    found = []
    for shape in record["shapes"]:
        for phase, words in PHASE_WORDS.items():
            for key, unit, digits in (("ms", "ms", 3), ("host_us", "host µs", 1)):
                cells = []
                for entry in _entries(record):
                    value = figures(record, entry, phase, key).get(shape["name"])
                    cells.append(NOT_MEASURED if value is None else f"{value:.{digits}f}")
                found.append((shape["name"], f"{words}, {unit}", *cells))
    return found


def _entries(record: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in record["rows"] if "ms" in row))
