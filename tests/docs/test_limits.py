"""Tests that the limits on the pages are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnnffi import files
from dnnffi.bench import runner, shapes
from dnnffi.bench.callers.array_models import NUM_ARRAY_SETS
from dnnffi.bench.streams import problems
from dnnffi.bench.streams import runner as streams
from dnnffi.bench.streams.images import DETECTION
from dnnffi.bench.streams.report import MAX_RESET_RATIO
from dnnffi.bench.streams.resets import RESET_RATES
from dnnffi.convolution import backend as conv
from dnnffi.execution import replay, store, workspaces
from dnnffi.rnn import backend, network, route, staging, tuning
from dnnffi.spec import rnn, sequences

DOCS = Path(__file__).parents[2] / "docs"
LOW_RATE, HIGH_RATE = (f"{100 * rate:g} %" for rate in RESET_RATES)


def mib(nbytes):
    return f"{nbytes / 2**20:.9g} MiB"


# Sentences by page.
SAID = {
    "benchmarks.md": [
        f"take turns, {runner.DEFAULT.rounds} each, so that drift affects all equally",
        f"consecutive calls for about {1e3 * runner.DEFAULT.seconds:g} ms,",
        f"measured over up to {runner.DEFAULT.host_calls} consecutive calls on an idle device",
        f"each model of dnnffi is called {runner.DEFAULT.warm_up} times (`--warm-up`)",
        {1.0: "called as often, or for one second,"}[runner.DEFAULT.warm_up_seconds],
        f"two epochs of {streams.DEFAULT.batches} batches",
        f"dnnffi resets states at {LOW_RATE} and at {HIGH_RATE} of the steps",
        f"the aim is at most {MAX_RESET_RATIO} on each network",
        f"in one process and take turns, {streams.DEFAULT.rounds} each. A turn of a model",
        "the set `random` are drawn: `everyday` (networks and lengths that people have), `random` "
        f"({len(problems.SETS['random'])} networks from `--seed`",
        f"- `random`: {len(shapes.SETS['random'])} networks that are drawn from a seed",
        f"than in the {NUM_ARRAY_SETS - 1} calls before",
        f"on the maps of {DETECTION[0].batch} images",
        f"multiples of {DETECTION[0].multiple} between {DETECTION[0].smallest} and "
        f"{DETECTION[0].largest} pixels",
    ],
    "convolution.md": [
        f"Graphs, up to {replay.MAX_GRAPHS} for each plan",
        f"hold {mib(replay.MAX_BYTES)}, a new one",
        f"Plans, up to {conv.MAX_PLANS} for a backend",
    ],
    "errors.md": [
        f"more than {rnn.MAX_LAYERS:,} layers",
        f"more than {sequences.MAX_ENTRIES:,} time steps",
    ],
    "tuning.md": [
        f"| {replay.MAX_GRAPHS} for each operation of a problem",
        f"all together hold {mib(replay.MAX_BYTES)} of device memory",
        f"| {mib(staging.MAX_STAGED_BYTES)} for a problem",
        f"the arrays take no more than {mib(staging.MAX_STAGED_BYTES)}",
        f"at most {backend.MAX_PLANS} (`MAX_PLANS` in",
        f"for {workspaces._MAX_STREAMS} of these, the oldest are dropped",
        f"larger than {mib(store.MAX_BYTES)}",
        {0.15: "0.15 seconds after the first run of the standard"}[network.FIRST_BUDGET],
        {0.1: "of a network it is a tenth of a second"}[network.LATER_BUDGET],
        {0.5: '"now"` half a second'}[tuning.BUDGET],
        {4: "first three calls of a network run by"}[network.CALLS_BEFORE_TUNING],
        f"many calls (2 to {route.MAX_CALLS_BEFORE_CAPTURE})",
        {3600.0: "an hour later or more"}[files.ABANDONED_SECONDS],
    ],
}


@pytest.mark.parametrize("page", SAID)
def test_a_limit_is_what_the_page_says(page):
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    for said in SAID[page]:
        assert said in text
