"""Tests that the limits on the pages are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnnffi import files
from dnnffi.bench.callers.array_models import NUM_ARRAY_SETS
from dnnffi.bench.runner import Settings
from dnnffi.bench.streams import problems
from dnnffi.bench.streams import runner as streams
from dnnffi.bench.streams.images import DETECTION
from dnnffi.convolution import backend as conv
from dnnffi.execution import replay, store, workspaces
from dnnffi.rnn import backend, network, route, staging, tuning
from dnnffi.spec import rnn, sequences

DOCS = Path(__file__).parents[2] / "docs"


def mib(nbytes):
    return f"{nbytes / 2**20:.9g} MiB"


# Sentences by page.
SAID = {
    "benchmarks.md": [
        f"take turns, {Settings().rounds} each,",
        f"consecutive calls for about {1e3 * Settings().seconds:g} ms,",
        f"measured over up to {Settings().host_calls} consecutive calls",
        f"each model of dnnffi is called {Settings().warm_up} times",
        {1.0: "called as often, or for one second,"}[Settings().warm_up_seconds],
        f"two epochs of {problems.NUM_BATCHES} batches",
        f"take turns, {streams.Settings().rounds} each.",
        f"than in the {NUM_ARRAY_SETS - 1} calls before",
        f"on the maps of {DETECTION[0].batch} images",
        f"multiples of {DETECTION[0].multiple} between {DETECTION[0].smallest} and "
        f"{DETECTION[0].largest} pixels",
    ],
    "convolution.md": [
        f"Graphs, up to {replay.MOST_GRAPHS} for each plan",
        f"hold {mib(replay.MOST_BYTES)}, a new one",
        f"Plans, up to {conv.MOST_PLANS} for a backend",
    ],
    "errors.md": [
        f"more than {rnn.MOST_LAYERS:,} layers",
        f"more than {sequences.MOST_ENTRIES:,} time steps",
    ],
    "tuning.md": [
        f"| {replay.MOST_GRAPHS} for each operation of a problem",
        f"all together hold {mib(replay.MOST_BYTES)} of device memory",
        f"| {mib(staging.MOST_STAGED_BYTES)} for a problem",
        f"the arrays take no more than {mib(staging.MOST_STAGED_BYTES)}",
        f"at most {backend.MOST_PLANS} (`MOST_PLANS` in",
        f"for {workspaces._MOST_STREAMS} of these, the oldest are dropped",
        f"larger than {mib(store.MOST_BYTES)}",
        {0.2: "A fifth of a second after the end of the first one"}[network.FIRST_BUDGET],
        {0.1: "of a network it is a tenth of a second"}[network.LATER_BUDGET],
        {0.5: '"now"` half a second'}[tuning.BUDGET],
        {8: "first seven calls of a network run by"}[route.CALLS_BEFORE_TUNING],
        f"many calls (2 to {route.MAX_CALLS_BEFORE_CAPTURE})",
        {3600.0: "an hour later or more"}[files.ABANDONED_SECONDS],
    ],
}


@pytest.mark.parametrize("page", SAID)
def test_a_limit_is_what_the_page_says(page):
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    for said in SAID[page]:
        assert said in text
