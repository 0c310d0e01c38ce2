"""The figures of the pages, from the records and from what the code of a page computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import StringIO
from math import ceil, floor, log10
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from dnnffi.bench.shapes import FASTRNNS, SHORT, Shape
from dnnffi.bench.streams import model as stream_model
from dnnffi.bench.streams import report
from dnnffi.bench.streams.model import PACKED, PADDED
from dnnffi.bench.summary import (
    EAGER,
    FUNCTIONS,
    GRAPH,
    PHASE_WORDS,
    compare,
    compared_shapes,
    figures,
)

MODELS = {  # with their colours, dnnffi's first
    FUNCTIONS: ("dnnffi", "#1f6feb"),
    EAGER: ("PyTorch", "#c9510c"),
    GRAPH: ("PyTorch in a CUDA graph", "#e6a574"),
    "jax": ("JAX", "#4d7f3e"),
    "jax scan": ("JAX, lax.scan", "#a3c496"),
}
STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.14,
    "font.sans-serif": ["DejaVu Sans"],  # which Matplotlib brings; where it is missing, sans-serif
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "dnnffi",  # the same names in every run
}
BOLD = {"weight": "bold", "size": 11}
WIDTH, BAR, LINE = 7.5, 0.18, 0.16  # inches: 720 pixels; from a bar or a line to the next


@rc_context(STYLE)
def speed(record: dict[str, Any]) -> Figure | None:
    """Milliseconds of a call on fastrnns' shapes, by who was measured; None where nothing was."""
    rows: dict[str, list[tuple[float, float]]] = {model: [] for model in MODELS}
    groups, place = [], 0.0
    for shape in FASTRNNS:
        for phase, words in PHASE_WORDS.items():
            times = {model: figures(record, model, phase).get(shape.name) for model in MODELS}
            found = [(model, time) for model, time in times.items() if time is not None]
            if times[FUNCTIONS] is None:
                continue
            groups.append((place + (len(found) - 1) / 2, words_of(shape), words))
            for row, (model, time) in enumerate(found):
                rows[model].append((place + row, time))
            place += len(found) + 0.9
    if not groups:
        return None
    middles, shapes, phases = zip(*groups, strict=True)
    below = [*summary(record), machine(record)]
    figure = Figure((WIDTH, 0.6 + place * BAR + len(below) * LINE), layout="constrained")
    axes = figure.subplots()
    for model, (words, colour) in MODELS.items():
        if rows[model]:
            bars = axes.barh(*zip(*rows[model], strict=True), 0.82, color=colour, label=words)
            axes.bar_label(bars, fmt="%.2f", padding=4)
    # Two ticks a group: the lines of one text are aligned in Matplotlib's font only.
    axes.set_yticks([middle - 0.45 for middle in middles], shapes, weight="bold")
    axes.set_yticks([middle + 0.45 for middle in middles], phases, minor=True)
    axes.set_ylim(place - 1.4, -0.5)  # the first shape on top
    axes.tick_params(axis="y", which="both", length=0)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    legend = {"ncols": len(MODELS), "frameon": False, "handlelength": 1, "alignment": "left"}
    figure.legend(loc="outside upper left", title=title(), title_fontproperties=BOLD, **legend)
    figure.supxlabel("\n".join(below), x=0.02, ha="left", size=8, color="#57606a")
    return figure


STREAM_MODELS = {  # with their colours, in the order of the bars
    PADDED: ("PyTorch, padded", "#c9510c"),
    PACKED: ("PyTorch, packed", "#e6a574"),
    stream_model.FUNCTIONS: ("dnnffi", "#1f6feb"),
}


@rc_context(STYLE)
def streams(record: dict[str, Any]) -> Figure | None:
    """Milliseconds of a batch of the everyday streams; None where nothing was measured.

    The bars of a stream are scaled to its longest one: times of streams differ by a factor of 100.
    """
    names = report.streams_of(record, "everyday")
    times = {model: report.figures(record, model) for model in STREAM_MODELS}
    shown = [name for name in names if name in times[stream_model.FUNCTIONS]]
    if not shown:
        return None
    shapes = {shape["name"]: shape for shape in record["shapes"]}
    bars: dict[str, list[tuple[float, float, str]]] = {model: [] for model in STREAM_MODELS}
    middles, place = [], 0.0
    for name in shown:
        found = [model for model in STREAM_MODELS if name in times[model]]
        middles.append(place + (len(found) - 1) / 2)
        longest = max(times[model][name] for model in found)
        for row, model in enumerate(found):
            time = times[model][name]
            bars[model].append((place + row, time / longest, f"{time:.3g}"))
        place += len(found) + 0.9
    below = [
        "The bars of a stream are scaled to its longest one.",
        *stream_means(record, shown),
        machine(record),
    ]
    figure = Figure((WIDTH, 0.7 + place * BAR + len(below) * LINE), layout="constrained")
    axes = figure.subplots()
    for model, (words, colour) in STREAM_MODELS.items():
        if bars[model]:
            places, lengths, labels = zip(*bars[model], strict=True)
            drawn = axes.barh(places, lengths, 0.82, color=colour, label=words)
            axes.bar_label(drawn, labels, padding=4)
    first, second = zip(*(words_of_stream(shapes[name]) for name in shown), strict=True)
    axes.set_yticks([middle - 0.45 for middle in middles], first, weight="bold")
    axes.set_yticks([middle + 0.45 for middle in middles], second, minor=True)
    axes.set_ylim(place - 1.4, -0.5)  # the first stream on top
    axes.tick_params(axis="y", which="both", length=0)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    legend = {"ncols": len(STREAM_MODELS), "frameon": False, "handlelength": 1}
    title = "Milliseconds of a batch, each of another length"
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside upper left",
        alignment="left",
        title=title,
        title_fontproperties=BOLD,
        **legend,
    )
    figure.supxlabel("\n".join(below), x=0.02, ha="left", size=8, color="#57606a")
    return figure


def words_of_stream(shape: dict[str, Any]) -> tuple[str, str]:
    """The network of a stream of a record, and its batches, as people say it."""
    layers = f"{shape['layers']} layers" if shape["layers"] > 1 else "1 layer"
    name = shape["mode"].upper().removeprefix("RNN_")
    network = f"{name}, {layers}, H {shape['hidden_size']}, {SHORT[shape['dtype']]}"
    if shape["dropout"]:
        network += f", dropout {shape['dropout']:g}"
    rows = f"{shape['batch']} rows" if shape["batch"] > 1 else "1 row"
    kind = "each of" if shape["ragged"] else "all of"
    batches = f"{rows}, {kind} {shape['shortest']} to {shape['longest']} steps"
    return network, f"{batches}, {'training' if shape['training'] else 'inference'}"


def stream_means(record: dict[str, Any], names: Sequence[str]) -> Iterator[str]:
    """Yield a line for each way of PyTorch: its time over that of dnnffi's functions."""
    for model, (words, _) in STREAM_MODELS.items():
        found = report.ratios(record, model, stream_model.FUNCTIONS, names)
        if found and model != stream_model.FUNCTIONS:
            mean = report.mean_ratio(record, model, stream_model.FUNCTIONS, names)
            streams = f"{len(found)} stream{'s' * (len(found) > 1)}"
            yield (
                f"dnnffi's functions are {mean:.2f} times as fast as {words}, geometric mean over "
                f"{streams} (lowest {min(found.values()):.2f})"
            )


def title() -> str:
    """What is shown, with what all shapes have in common."""
    (sizes,) = {(shape.batch, shape.hidden_size, shape.dtype) for shape in FASTRNNS}
    batch, hidden, dtype = sizes
    return f"Milliseconds of a call: batch of {batch}, hidden size {hidden}, {dtype}"


def words_of(shape: Shape) -> str:
    """A shape of fastrnns as people say it."""
    steps = f"{shape.steps} steps"
    if shape.lengths:
        steps = f"{min(shape.lengths)} to {max(shape.lengths)} steps"
    layers = f"{shape.layers} layers" if shape.layers > 1 else "1 layer"
    return f"{shape.mode.upper()}, {layers}, {steps}"


def summary(record: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each peer: the mean of its time over dnnffi's, on `compared_shapes`."""
    shapes = compared_shapes(record) or None
    yield "How many times as fast dnnffi's functions are (geometric means, rows of equal length):"
    for peer, (words, _) in list(MODELS.items())[1:]:
        compared = (compare(record, FUNCTIONS, peer, phase, shapes) for phase in PHASE_WORDS)
        if found := [one for one in compared if one is not None]:
            over = " and ".join(dict.fromkeys(one.over for one in found))
            said = (
                f"{PHASE_WORDS[one.phase]} {one.mean:.2f} (lowest {one.worst:.2f})" for one in found
            )
            yield f"as {words}, {over}: {', '.join(said)}"


def machine(record: dict[str, Any]) -> str:
    """Where the record was taken, and by which versions."""
    found = record["machine"]
    names = {"cudnn": "cuDNN", "torch": "PyTorch", "jax": "JAX"}
    versions = [f"{words} {found[name]}" for name, words in names.items() if name in found]
    return ", ".join([found["device"], *versions, found["date"]])


STEP_LINES = {  # what a row of own_steps.json has, in words, with its look
    "cudnn": ("cuDNN's fastest algorithm", {"color": "#c9510c", "marker": "o"}),
    "own": ("our own kernels", {"color": MODELS[FUNCTIONS][1], "marker": "o"}),
    "limit_us": ("what the device allows", {"color": "#57606a", "linestyle": "--"}),
}
PRECISIONS = {"float16": "float16", "float32": "float32, products in TF32"}


@rc_context(STYLE)
def steps(record: dict[str, Any]) -> Figure | None:
    """Microseconds of an LSTM's step over its hidden size, a panel for each dtype and batch."""
    kinds = list(dict.fromkeys((row["dtype"], row["batch"]) for row in record["rows"]))
    if not kinds:
        return None
    across = len({batch for _, batch in kinds})
    down = ceil(len(kinds) / across)
    figure = Figure((WIDTH, 0.9 + 2.5 * down), layout="constrained")
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes, (dtype, batch) in zip(panels.flat, sorted(kinds), strict=False):
        rows = [row for row in record["rows"] if (row["dtype"], row["batch"]) == (dtype, batch)]
        for key, (words, look) in STEP_LINES.items():
            points = [(row["hidden_size"], _microseconds(row[key])) for row in rows]
            points = [(hidden, taken) for hidden, taken in points if taken]
            if points:
                axes.plot(*zip(*points, strict=True), markersize=3, label=words, **look)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(f"{PRECISIONS[dtype]}, batch of {batch}", loc="left", size=9)
        axes.grid(color="#d0d7de")
    for axes in panels[-1]:
        axes.set_xlabel("hidden size")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    legend = {"ncols": len(labels), "frameon": False, "alignment": "left"}
    title = "Microseconds of a step of an LSTM"
    figure.legend(
        handles, labels, loc="outside upper left", title=title, title_fontproperties=BOLD, **legend
    )
    figure.supxlabel(machine(record), x=0.02, ha="left", size=8, color="#57606a")
    return figure


def _microseconds(found: Any) -> float | None:
    """Of a candidate that was measured, or as they are."""
    return found["us"] if isinstance(found, dict) else found


@rc_context(STYLE)
def curve(losses: Sequence[float], title: str) -> Figure:
    """A loss over the steps of a training, on a logarithmic axis."""
    figure = Figure((WIDTH, 2.7), layout="constrained")
    axes = figure.subplots()
    axes.semilogy(losses, color=MODELS[FUNCTIONS][1])
    axes.set_title(title, BOLD, loc="left")
    axes.set_ylim(10.0 ** floor(log10(min(losses))), 10.0 ** ceil(log10(max(losses))))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel("step")
    axes.margins(x=0)
    axes.grid(color="#d0d7de")
    return figure


@rc_context(STYLE)
def svg(figure: Figure) -> str:
    """A figure as SVG on white; equal figures give equal text."""
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Creator": None, "Date": None})
    return out.getvalue()
