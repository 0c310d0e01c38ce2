"""Tables of the record of streams, as the pages show them."""

from __future__ import annotations

from typing import Any

from dnnffi.bench.streams.model import FUNCTIONS, TUNED_PLAN, with_resets
from dnnffi.bench.streams.report import (
    BEST_TORCH,
    conditions,
    figures,
    mean_ratio,
    ratios,
    sets_of,
    spread,
    streams_of,
    targets,
)
from dnnffi.bench.streams.resets import RESET_RATES
from dnnffi.bench.summary import NOT_MEASURED

AIM_HEAD = ("What", "Against", "Aim", "dnnffi's functions", "Reached")


def aim_rows(record: dict[str, Any] | None) -> list[tuple[str, ...]]:
    """Return the aims and what a run measured; ``record`` is None if there was no run."""
    words = {None: "-", True: "yes", False: "no"}
    found = targets({"shapes": [], "rows": [], "settings": {}} if record is None else record)
    return [
        (one.what, one.against or "-", one.aim, one.measured, words[one.reached]) for one in found
    ]


def models_of(record: dict[str, Any]) -> list[str]:
    """Return the models that were measured, in their order."""
    return list(dict.fromkeys(row["model"] for row in record["rows"] if "ms" in row))


def has_known_sizes(record: dict[str, Any]) -> bool:
    """Return whether later epochs were run once more, with all sizes known."""
    return any("known_ms" in row for row in record["rows"])


def head(record: dict[str, Any], *, known: bool = False) -> tuple[str, ...]:
    """Return the columns of `rows`."""
    times = (f"{model}, ms" for model in models_of(record))
    return ("Stream", *times, *_pairs(record), *(() if known else ("first epoch, s",)))


def _pairs(record: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the two models of each ratio that the record has, by the ratio's words."""
    pairs = {
        "dnnffi / tuned plan": (FUNCTIONS, TUNED_PLAN),
        "better of PyTorch / dnnffi": (BEST_TORCH, FUNCTIONS),
        **{
            f"{model} / dnnffi": (model, FUNCTIONS)
            for model in (with_resets(FUNCTIONS, rate) for rate in RESET_RATES)
        },
    }
    return {words: pair for words, pair in pairs.items() if ratios(record, *pair)}


def rows(record: dict[str, Any], *, known: bool = False) -> list[tuple[str, ...]]:
    """Return milliseconds of a batch by stream, and the geometric means of each set's ratios.

    A row ends with the seconds of the first epoch of dnnffi's functions. With ``known`` the times
    are those of later epochs that are run once more, and without a first epoch.
    """
    key = "known_ms" if known else "ms"
    models, pairs = models_of(record), _pairs(record).values()
    times = {model: figures(record, model, key) for model in models}
    by_pair = [ratios(record, *pair, key=key) for pair in pairs]
    first = [] if known else [figures(record, FUNCTIONS, "first_epoch_s")]
    found: list[tuple[str, ...]] = []
    for shape in record["shapes"]:
        name = shape["name"]
        cells = [_number(times[model].get(name), 3) for model in models]
        others = (_number(values.get(name), 2) for values in (*by_pair, *first))
        found.append((name, *cells, *others))
    for name in sets_of(record):
        streams = streams_of(record, name)
        means = (_number(mean_ratio(record, *pair, streams, key), 2) for pair in pairs)
        found.append((f"geometric mean, {name}", *[""] * len(models), *means, *[""] * len(first)))
    return found


def _number(value: float | None, digits: int) -> str:
    return NOT_MEASURED if value is None else f"{value:.{digits}f}"


def words(record: dict[str, Any]) -> str:
    """Return how many batches and turns were measured, the noise, and the seeds, in sentences."""
    said = [f"{conditions(record)}."]
    noise = [(spread(row), row) for row in record["rows"] if "ms" in row]
    if noise:
        worst, row = max(noise, key=lambda one: one[0])
        said.append(
            f"Between the turns of a model a time differs by at most {worst:.0%} of its median "
            f"({row['model']}, {row['shape']})."
        )
    if "seed" in record:
        said.append(f"The seed of the set random: {record['seed']}.")
    return " ".join(said)
