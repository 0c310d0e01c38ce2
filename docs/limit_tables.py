"""The tables of what each backend refuses, by asking the limits that the code checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from records import Block, shows

from dnnffi.backends.cudnn.graph.known_wrong import TABLE as WRONG_ENGINES
from dnnffi.backends.entry import Backend
from dnnffi.backends.own.recurrent.limits import LIMITS as OWN_LIMITS
from dnnffi.backends.registry import BACKENDS
from dnnffi.backends.vendor.limits import Limits, limit_of
from dnnffi.errors import UnsupportedError
from dnnffi.spec.conv import RANKS, ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import FORWARD, OPERATIONS, ConvProblem
from dnnffi.spec.layouts import CHANNELS_LAST
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

DTYPES = ("float16", "bfloat16", "float32", "float64")
NONE: Mapping[str, Any] = MappingProxyType({})
NO_LIMIT = "no limit"


class RNNRow(NamedTuple):
    """A question about networks as a problem.

    ``reference`` is the cell of backends without a library.
    """

    words: str
    asked: RNNProblem
    reference: str = NO_LIMIT


def network(
    *,
    steps: int = 3,
    batch: int = 2,
    lengths: Any = None,
    options: Mapping[str, Any] = NONE,
    training: bool = False,
    has_resets: bool = False,
    has_device_lengths: bool = False,
    **spec: Any,
) -> RNNProblem:
    """Return a small LSTM in float32, as far as nothing else is asked for."""
    made = RNNSpec(**{"mode": "lstm", "input_size": 4, "hidden_size": 4} | spec)
    asked = RNNOptions(**options)
    dense = RNNProblem.dense(
        made, steps=steps, batch=batch, lengths=lengths, options=asked, training=training
    )
    return dense._replace(has_resets=has_resets, has_device_lengths=has_device_lengths)


RNN_ROWS = (
    RNNRow("Training", network(training=True)),
    *(RNNRow(dtype, network(dtype=dtype)) for dtype in DTYPES),
    RNNRow("Projection of an LSTM", network(proj_size=2)),
    RNNRow("Clipping of the cell of an LSTM", network(options={"clip": (-1.0, 1.0)})),
    RNNRow('"math": "strict"', network(options={"math": "strict"}), "ignored"),
    RNNRow('"math": "fast"', network(options={"math": "fast"}), "ignored"),
    RNNRow("Rows of different length", network(lengths=(3, 2))),
    RNNRow("Rows of length 0", network(lengths=(3, 0))),
    RNNRow(
        'Rows of different length, "algorithm": "persist_static"',
        network(lengths=(3, 2), options={"algorithm": "persist_static"}),
        "ignored",
    ),
    RNNRow("Lengths in device memory", network(has_device_lengths=True)),
    RNNRow("Resets", network(has_resets=True)),
    RNNRow("A state of 2,147,483,648 elements", network(hidden_size=128, steps=1, batch=2**24)),
    RNNRow("Weights of 3,221,356,544 elements", network(input_size=2**15, hidden_size=2**14)),
    RNNRow("65536 time steps", network(steps=2**16)),
    RNNRow("2 time steps of 40000 rows", network(steps=2, batch=40_000)),
)


@shows()
def rnn_table() -> Iterator[Block]:
    """Yield what each backend refuses of networks."""
    yield [
        {"": row.words} | {backend.title: rnn_cell(row, backend) for backend in BACKENDS.values()}
        for row in RNN_ROWS
    ]


def rnn_cell(row: RNNRow, backend: Backend) -> str:
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
        is_tuned = backend.tunes and row.asked.options.algorithm == "auto"
        if is_tuned and not limit_of(OWN_LIMITS, row.asked):
            return f"by dnnffi's own kernels alone; {backend.title} {error.limit}"
        return f"no: {error.limit}"
    return NO_LIMIT


CONV_BACKENDS = {name: backend for name, backend in BACKENDS.items() if backend.pack is None}
"""The backends that have convolutions."""


LIMITS, FUSION, SUMS = (
    {
        name: found
        for name, one in CONV_BACKENDS.items()
        if (found := getattr(one, field)) is not None
    }
    for field in ("conv_limits", "fusion_limits", "bias_gradient_limits")
)
"""The limits of the backends of which a question can be asked."""

# The cells where no limit is exceeded and the code does not know that the answer is "yes".
IF_THERE_IS = dict.fromkeys(FUSION, "if the library has a kernel")
IGNORED = {name: "ignored" for name, backend in CONV_BACKENDS.items() if backend.load is None}
NOT_VERIFIED = dict.fromkeys(CONV_BACKENDS, "not verified")


class ConvRow(NamedTuple):
    """A question about convolutions as problems, and the limits that answer it by backend.

    ``otherwise`` has the text of a backend's cell if none of its limits is exceeded.
    """

    words: str
    asked: tuple[Any, ...]
    limits: Mapping[str, Limits[Any]] = LIMITS
    otherwise: Mapping[str, str] = NONE


def convs(
    *operations: str,
    ranks: Sequence[int] = (2,),
    batch: int = 2,
    options: Mapping[str, Any] = NONE,
    more: Mapping[str, Any] = NONE,
    layout: str = "channels_first",
    **spec: Any,
) -> tuple[ConvProblem, ...]:
    """Return small problems, of all operations unless some are named, in each rank."""
    more = {"layout": layout, "options": ConvOptions(**options), **more}
    made = []
    for rank in ranks:
        fields = {"in_channels": 4, "out_channels": 4, "kernel": (3,) * rank, "padding": 1}
        one = ConvSpec(**fields | spec)
        shape = one.x_shape(batch, (5, 6, 7)[-rank:])
        made += [ConvProblem.of(each, one, shape, **more) for each in operations or OPERATIONS]
    return tuple(made)


ALL_FUSED = {"bias": True, "residual": True, "alpha": 0.5, "activation": "relu"}
BIAS_AND_RELU = {"bias": True, "activation": "relu"}


def fused(words: str, more: Mapping[str, Any] = BIAS_AND_RELU, **fields: Any) -> ConvRow:
    """Return a row about one kernel for a forward pass and what is added to it."""
    asked = convs(FORWARD, more=more, **fields)
    return ConvRow(f"In one kernel: {words}", asked, FUSION, IF_THERE_IS)


def option(words: str, **options: Any) -> ConvRow:
    """Return a row about an option."""
    return ConvRow(words, convs(options=options), otherwise=IGNORED)


CONV_ROWS = (
    ConvRow("Forward, in one to three dimensions", convs(FORWARD, ranks=RANKS)),
    ConvRow("Backward data, in one to three dimensions", convs("backward_data", ranks=RANKS)),
    ConvRow("Backward weights, in one to three dimensions", convs("backward_weights", ranks=RANKS)),
    ConvRow("Groups", convs(groups=2)),
    ConvRow("Depthwise", convs(groups=4)),
    ConvRow("Stride", convs(stride=2)),
    ConvRow("Dilation", convs(dilation=2)),
    ConvRow("Asymmetric padding", convs(padding=((0, 1), (2, 1)))),
    ConvRow(
        "Asymmetric padding, transposed",
        convs(padding=((0, 1), (2, 1)), transposed=True, stride=2),
    ),
    ConvRow("Transposed", convs(ranks=RANKS, transposed=True, stride=2, output_padding=1)),
    ConvRow(
        "Transposed, an output padding of the stride or more",
        convs(transposed=True, dilation=2, output_padding=1),
    ),
    *(ConvRow(dtype, convs(dtype=dtype)) for dtype in DTYPES),
    ConvRow("Channels last", convs(layout=CHANNELS_LAST, ranks=RANKS)),
    ConvRow("Bias, residual and ReLU", convs(FORWARD, more=ALL_FUSED, ranks=RANKS)),
    ConvRow("Bias, residual and ReLU, transposed", convs(FORWARD, more=ALL_FUSED, transposed=True)),
    *(
        ConvRow(f"Bias, residual and ReLU, {dtype}", convs(FORWARD, more=ALL_FUSED, dtype=dtype))
        for dtype in ("float16", "bfloat16")
    ),
    fused("bias and ReLU", ranks=(1, 2)),
    fused("bias, residual and ReLU", ALL_FUSED),
    fused("bias and ReLU, float16", dtype="float16"),
    fused("bias and ReLU, channels last", layout=CHANNELS_LAST),
    fused("bias and ReLU, three dimensions", ranks=(3,)),
    fused("bias and ReLU, transposed", transposed=True),
    fused("bias and ReLU, deterministic", options={"deterministic": True}),
    option('"math": "strict"', math="strict"),
    option('"math": "fast"', math="fast"),
    option('"deterministic": True', deterministic=True),
    option('"workspace_limit"', workspace_limit=2**30),
    ConvRow("Without CuPy", convs(), dict.fromkeys(FUSION, ())),
    *(ConvRow(f"Without CuPy: gradient of a bias, {dtype}", (dtype,), SUMS) for dtype in DTYPES),
    ConvRow(
        "An array of more than 2147483647 positions in one dimension",
        convs(FORWARD, batch=2**31),
        otherwise=NOT_VERIFIED,
    ),
    ConvRow(
        "An array of more than 2147483647 elements",
        convs(FORWARD, batch=2**31 // (4 * 6 * 7) + 1),
        otherwise=NOT_VERIFIED,
    ),
)


@shows()
def conv_table() -> Iterator[Block]:
    """Yield what each backend refuses of convolutions."""
    yield [
        {"": row.words} | {one.title: conv_cell(row, name) for name, one in CONV_BACKENDS.items()}
        for row in CONV_ROWS
    ]


def conv_cell(row: ConvRow, backend: str) -> str:
    """Return a backend's answer to the question of a row."""
    if backend not in row.limits:
        return "-"
    told = [limit_of(row.limits[backend], one) for one in row.asked]
    if not any(told):
        return row.otherwise.get(backend, "yes")
    limits = "; ".join(dict.fromkeys(filter(None, told)))
    return f"{'no' if all(told) else 'in part'}: {limits}"


@shows()
def wrong_engines() -> Iterator[Block]:
    """Yield the engines of cuDNN that are not used because their results are wrong."""
    yield [
        {
            "Operation": one.operation.replace("_", " "),
            "Engine": str(one.engine),
            "For": one.when,
            "Why": one.reason,
        }
        for one in WRONG_ENGINES
    ]
