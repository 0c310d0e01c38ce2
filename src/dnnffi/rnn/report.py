"""A report in plain words of the candidate that runs, and why."""

from __future__ import annotations

from collections.abc import Iterator

from dnnffi.rnn.operations import Operations
from dnnffi.rnn.route import RouteFinder
from dnnffi.rnn.tuning import RouteChoice
from dnnffi.spec.problem import RNNProblem


def report_of(problem: RNNProblem, finder: RouteFinder, operations: Operations) -> str:
    """Algorithm and math, times of the candidates, sizes of buffers and graphs."""
    route, choice = finder.route, finder.choice
    lines = [str(problem), f"class of sizes: {finder.sizes}"]
    lines.append(f"algorithm {route.main.algorithm}, math {problem.options.math}")
    if choice is None and finder.borrowed is not None:
        lines.append(
            f"{finder.borrowed.found.direct} called directly, as measured for "
            f"{finder.borrowed.origin}; not measured yet for this class"
        )
    elif choice is None:
        why = "tuning is off" if problem.options.tune == "off" else "not measured yet"
        lines.append(f"picked by the rule for {problem.options.algorithm!r}; {why}")
    else:
        if route.replayed is None:
            lines.append(f"{choice.direct} called directly")
        else:
            elsewhere = f"{choice.direct} called directly elsewhere"
            if route.staged:
                elsewhere = "through copies to addresses that are known elsewhere"
            lines.append(
                f"{choice.replayed} as a CUDA graph where the addresses of a call are known, "
                f"{elsewhere}"
            )
        lines += _measured(problem, choice)
    sizes = f"workspace {route.workspace_bytes:,} bytes, reserve {route.reserve_bytes:,} bytes"
    lines += [sizes, f"{operations.graph_count} graphs, {operations.graph_bytes:,} bytes"]
    if operations.staged_bytes:
        lines.append(f"{operations.staged_bytes:,} bytes for copies")
    return "\n".join(lines)


def _measured(problem: RNNProblem, choice: RouteChoice) -> Iterator[str]:
    where = "measured in this process" if choice.source == "measured" else "read from disk"
    what = "forward and both backward passes" if problem.training else "forward"
    yield f"{where}, milliseconds of {what}:"
    for name, times in choice.times.items():
        replayed = "not captured" if times.replayed is None else f"{times.replayed:.4f} as graph"
        yield f"  {name}: {times.direct:.4f} directly, {replayed}"
    for name, reason in choice.refused.items():
        yield f"  {name}: {reason}"
