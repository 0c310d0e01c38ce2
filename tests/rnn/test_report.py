"""Tests of a plan's report, word for word."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dnnffi.rnn.executor_plan import report_of
from dnnffi.rnn.route_choice import RouteChoice, Times
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.rnn_size_class import RNNSizeClass

PROBLEM = RNNProblem.dense(RNNSpec(mode="lstm", input_size=3, hidden_size=4), steps=5, batch=2)
TIMES = {"cudnn standard": Times(1.25, 0.5), "cudnn persist_static": Times(2.0)}
CHOICE = RouteChoice("cudnn standard", "cudnn standard", TIMES, {"cudnn wide": "it is not right"})
SIZES = "workspace 1,024 bytes, reserve 65,536 bytes\n2 graphs, 2,000 bytes"


def report(problem=PROBLEM, choice=None, staged_bytes=0, borrowed=None):
    """Return a report without its first lines, the problem and its class of sizes."""
    route = SimpleNamespace(
        main=SimpleNamespace(algorithm="standard"),
        replayed=None if choice is None else choice.replayed,
        staged=choice is not None and choice.staged,
        workspace_bytes=1024,
        reserve_bytes=65_536,
    )
    operations = SimpleNamespace(graph_count=2, graph_bytes=2000, staged_bytes=staged_bytes)
    finder = SimpleNamespace(
        route=route, choice=choice, borrowed=borrowed, sizes=RNNSizeClass(2, 8, "full")
    )
    first, second, rest = report_of(problem, finder, operations).split("\n", 2)
    assert (first, second) == (str(problem), "class of sizes: up to 2 full rows of up to 8 steps")
    return rest


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (RNNOptions(), "'auto'; not measured yet"),
        (RNNOptions(tune="off"), "'auto'; tuning is off"),
        (RNNOptions(algorithm="standard"), "'standard'; not measured yet"),
    ],
)
def test_a_problem_that_was_not_measured(options, said):
    expected = f"algorithm standard, math default\npicked by the rule for {said}\n{SIZES}"
    assert report(PROBLEM._replace(options=options)) == expected


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("source", ["measured", "disk"])
def test_a_problem_that_was_measured(source, training):
    where = {"measured": "measured in this process", "disk": "read from disk"}[source]
    what = "forward and backward pass" if training else "forward pass"
    choice = CHOICE._replace(replayed=None, source=source)
    assert report(PROBLEM._replace(training=training), choice) == (
        "algorithm standard, math default\n"
        "cudnn standard called directly\n"
        f"{where}, milliseconds of {what}:\n"
        "  cudnn standard: 1.2500 directly, 0.5000 as graph\n"
        "  cudnn persist_static: 2.0000 directly, not captured\n"
        "  cudnn wide: it is not right\n"
        f"{SIZES}"
    )


@pytest.mark.parametrize(
    ("staged", "elsewhere"),
    [
        (False, "cudnn standard called directly elsewhere"),
        (True, "through copies to addresses that are known elsewhere"),
    ],
)
def test_a_problem_that_is_replayed(staged, elsewhere):
    assert report(choice=CHOICE._replace(staged=staged)).splitlines()[1] == (
        "cudnn standard as a CUDA graph where the addresses of a call are known, " + elsewhere
    )


def test_a_problem_that_uses_what_another_class_chose():
    other = SimpleNamespace(found=CHOICE, origin=RNNSizeClass(8, 8, "full"))
    assert report(borrowed=other).splitlines()[1] == (
        "cudnn standard called directly, as measured for up to 8 full rows of up to 8 steps; "
        "not measured yet for this class"
    )


def test_memory_for_copies():
    assert report(staged_bytes=4096).splitlines()[-1] == "4,096 bytes for copies"
