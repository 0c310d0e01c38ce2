"""The table of what each backend convolves, by asking the limits that the code checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from dnnffi.backends.backend import Backend
from dnnffi.backends.registry import BACKENDS as ALL
from dnnffi.backends.vendor.limits import Limits, limit_of
from dnnffi.spec.conv import RANKS, ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import (
    BACKWARD_DATA,
    BACKWARD_WEIGHTS,
    FORWARD,
    OPERATIONS,
    ConvProblem,
)
from dnnffi.spec.layouts import CHANNELS_LAST

RECORDS = {name: record for name, record in ALL.items() if record.pack is None}
"""The records of the backends that have convolutions."""
BACKENDS = tuple(RECORDS)
HEAD = ("", *(record.title for record in RECORDS.values()))


def limits_by(of: Callable[[Backend], Limits[Any] | None]) -> dict[str, Limits[Any]]:
    """Limits by backend; where it is not among them the question does not arise."""
    found = ((name, of(record)) for name, record in RECORDS.items())
    return {name: limits for name, limits in found if limits is not None}


LIMITS = limits_by(lambda record: record.conv_limits)
FUSION = limits_by(lambda record: record.fusion_limits)
SUMS = limits_by(lambda record: record.bias_gradient_limits)

DTYPES = ("float16", "bfloat16", "float32", "float64")

# What stands where no limit does, if not "yes": this no code can know.
IF_THERE_IS = dict.fromkeys(FUSION, "if the library has a kernel")
IGNORED = {name: "ignored" for name, record in RECORDS.items() if record.load is None}
NOT_VERIFIED = dict.fromkeys(BACKENDS, "not verified")


class Row(NamedTuple):
    """A question as problems, and the backends whose limits answer it.

    ``otherwise`` has the text of a backend's cell if none of its limits is exceeded.
    """

    words: str
    asked: tuple[Any, ...]
    limits: Mapping[str, Limits[Any]] = LIMITS
    otherwise: Mapping[str, str] = MappingProxyType({})


EVERYTHING = {"bias": True, "residual": True, "alpha": 0.5, "activation": "relu"}
BIAS_AND_RELU = {"bias": True, "activation": "relu"}


def problems(
    *operations: str,
    ranks: tuple[int, ...] = (2,),
    batch: int = 2,
    options: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    layout: str = "channels_first",
    **spec: Any,
) -> tuple[ConvProblem, ...]:
    """Small problems, of all operations unless some are named, in each rank."""
    made = []
    for rank in ranks:
        fields = {"in_channels": 4, "out_channels": 4, "kernel": (3,) * rank, "padding": 1}
        one = ConvSpec(**fields | spec)
        shape = one.x_shape(batch, (5, 6, 7)[-rank:])
        made += [
            ConvProblem.of(
                *(operation, one, shape),
                layout=layout,
                options=ConvOptions(**options or {}),
                **more or {},
            )
            for operation in operations or OPERATIONS
        ]
    return tuple(made)


def fused(words: str, more: Mapping[str, Any] = BIAS_AND_RELU, **fields: Any) -> Row:
    """Return a row about one kernel for a forward and what is added to it."""
    asked = problems(FORWARD, more=more, **fields)
    return Row(f"In one kernel: {words}", asked, FUSION, IF_THERE_IS)


def options(words: str, **chosen: Any) -> Row:
    """Return a row about an option."""
    return Row(words, problems(options=chosen), otherwise=IGNORED)


ROWS = (
    Row("Forward, in one to three dimensions", problems(FORWARD, ranks=RANKS)),
    Row("Backward data, in one to three dimensions", problems(BACKWARD_DATA, ranks=RANKS)),
    Row("Backward weights, in one to three dimensions", problems(BACKWARD_WEIGHTS, ranks=RANKS)),
    Row("Groups", problems(groups=2)),
    Row("Depthwise", problems(groups=4)),
    Row("Stride", problems(stride=2)),
    Row("Dilation", problems(dilation=2)),
    Row("Asymmetric padding", problems(padding=((0, 1), (2, 1)))),
    Row(
        "Asymmetric padding, transposed",
        problems(padding=((0, 1), (2, 1)), transposed=True, stride=2),
    ),
    Row("Transposed", problems(ranks=RANKS, transposed=True, stride=2, output_padding=1)),
    Row(
        "Transposed, an output padding of the stride or more",
        problems(transposed=True, dilation=2, output_padding=1),
    ),
    *(Row(dtype, problems(dtype=dtype)) for dtype in DTYPES),
    Row("Channels last", problems(layout=CHANNELS_LAST, ranks=RANKS)),
    Row("Bias, residual and ReLU", problems(FORWARD, more=EVERYTHING, ranks=RANKS)),
    Row("Bias, residual and ReLU, transposed", problems(FORWARD, more=EVERYTHING, transposed=True)),
    Row("Bias, residual and ReLU, float16", problems(FORWARD, more=EVERYTHING, dtype="float16")),
    Row("Bias, residual and ReLU, bfloat16", problems(FORWARD, more=EVERYTHING, dtype="bfloat16")),
    fused("bias and ReLU", ranks=(1, 2)),
    fused("bias, residual and ReLU", EVERYTHING),
    fused("bias and ReLU, float16", dtype="float16"),
    fused("bias and ReLU, channels last", layout=CHANNELS_LAST),
    fused("bias and ReLU, three dimensions", ranks=(3,)),
    fused("bias and ReLU, transposed", transposed=True),
    fused("bias and ReLU, deterministic", options={"deterministic": True}),
    options('"math": "strict"', math="strict"),
    options('"math": "fast"', math="fast"),
    options('"deterministic": True', deterministic=True),
    options('"workspace_limit"', workspace_limit=2**30),
    Row("Without CuPy", problems(), dict.fromkeys(FUSION, ())),
    *(Row(f"Without CuPy: gradient of a bias, {dtype}", (dtype,), SUMS) for dtype in DTYPES),
    Row(
        "An array of more than 2147483647 elements",
        problems(FORWARD, batch=2**31 // (4 * 6 * 7) + 1),
        otherwise=NOT_VERIFIED,
    ),
)


def rows() -> list[tuple[str, ...]]:
    """One row for each of `ROWS`, in words."""
    return [(row.words, *(cell(row, backend) for backend in BACKENDS)) for row in ROWS]


def cell(row: Row, backend: str) -> str:
    """Return a backend's answer to the question of a row."""
    if backend not in row.limits:
        return "-"
    told = [limit_of(row.limits[backend], one) for one in row.asked]
    if not any(told):
        return row.otherwise.get(backend, "yes")
    limits = "; ".join(dict.fromkeys(filter(None, told)))
    return f"{'no' if all(told) else 'in part'}: {limits}"
