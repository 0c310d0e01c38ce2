"""The table of what each backend refuses of networks, by asking the check that the code makes."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from dnnffi.backends.backend import Backend
from dnnffi.backends.own.recurrent.limits import LIMITS as OWN_LIMITS
from dnnffi.backends.registry import BACKENDS
from dnnffi.backends.vendor.limits import limit_of
from dnnffi.errors import UnsupportedError
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

HEAD = ("", *(backend.title for backend in BACKENDS.values()))
NO_LIMIT = "no limit"


class Row(NamedTuple):
    """A question as a problem; ``reference`` is the cell of backends without a library."""

    words: str
    asked: RNNProblem
    reference: str = NO_LIMIT


def problem(
    *,
    steps: int = 3,
    batch: int = 2,
    lengths: Any = None,
    options: dict[str, Any] | None = None,
    training: bool = False,
    has_resets: bool = False,
    has_device_lengths: bool = False,
    **spec: Any,
) -> RNNProblem:
    """Return a small LSTM in float32, as far as nothing else is asked for."""
    made = RNNSpec(**{"mode": "lstm", "input_size": 4, "hidden_size": 4} | spec)
    asked = RNNOptions(**options or {})
    dense = RNNProblem.dense(
        made, steps=steps, batch=batch, lengths=lengths, options=asked, training=training
    )
    return dense._replace(has_resets=has_resets, has_device_lengths=has_device_lengths)


ROWS = (
    Row("Training", problem(training=True)),
    *(Row(dtype, problem(dtype=dtype)) for dtype in ("float16", "bfloat16", "float32", "float64")),
    Row("Projection of an LSTM", problem(proj_size=2)),
    Row("Clipping of the cell of an LSTM", problem(options={"clip": (-1.0, 1.0)})),
    *(
        Row(f'"math": "{math}"', problem(options={"math": math}), "ignored")
        for math in ("strict", "fast")
    ),
    Row("Rows of different length", problem(lengths=(3, 2))),
    Row("Rows of length 0", problem(lengths=(3, 0))),
    Row(
        'Rows of different length, "algorithm": "persist_static"',
        problem(lengths=(3, 2), options={"algorithm": "persist_static"}),
        "ignored",
    ),
    Row("Lengths in device memory", problem(has_device_lengths=True)),
    Row("Resets", problem(has_resets=True)),
    Row("65536 time steps", problem(steps=2**16)),
    Row("2 time steps of 40000 rows", problem(steps=2, batch=40_000)),
)


def rows() -> list[tuple[str, ...]]:
    """One row for each of `ROWS`, in words."""
    return [(row.words, *(cell(row, backend) for backend in BACKENDS.values())) for row in ROWS]


def cell(row: Row, backend: Backend) -> str:
    """Return a backend's answer to the question of a row, before its library is called."""
    if backend.load is None and backend.pack is None:
        return row.reference
    library: Any = SimpleNamespace(
        version_text="", unsupported=partial(UnsupportedError, backend.title, "")
    )
    try:
        backend.check_network(row.asked, library)
    except UnsupportedError as error:
        for limit in backend.rnn_limits:
            if limit.mended is not None and limit.told(row.asked) == error.limit:
                return f"from {'.'.join(map(str, limit.mended[:2]))} on: {error.limit}"
        is_ours = backend.tunes and row.asked.options.algorithm == "auto"
        if is_ours and not limit_of(OWN_LIMITS, row.asked):
            return f"by dnnffi's own kernels alone; {backend.title} {error.limit}"
        return f"no: {error.limit}"
    return NO_LIMIT
