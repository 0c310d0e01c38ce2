"""The figures of the pages, from the records and from what the code of a page computes.

A figure has two layouts: a wide one, and a narrow one whose text stays legible on a phone. Its
colours are CSS variables, which _static/pages.css sets for the dark mode of the pages; a file on
its own follows the preference of the system.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from io import StringIO
from math import ceil, floor, log10
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure
from records import DOCS, Block, Html, Record, grouped, shows

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


class Colour(NamedTuple):
    """A colour of the figures: its CSS variable, and its values in light and in dark mode."""

    variable: str
    light: str
    dark: str


TEXT = Colour("--figure-text", "#1f2328", "#e6edf3")
MUTED = Colour("--figure-muted", "#57606a", "#9ea7b3")
GRID = Colour("--figure-grid", "#d0d7de", "#3d444d")
BACKGROUND = Colour("--figure-background", "#ffffff", "#0d1117")
PANEL = Colour("--figure-panel", "#f6f8fa", "#161b22")
HIGHLIGHT = Colour("--figure-highlight", "#ddf4ff", "#12304f")
OURS = Colour("--figure-dnnffi", "#1f6feb", "#4493f8")
TORCH = Colour("--figure-torch", "#c9510c", "#f0883e")
TORCH_GRAPH = Colour("--figure-torch-2", "#e6a574", "#a8703f")
JAX = Colour("--figure-jax", "#4d7f3e", "#7fb36d")
JAX_SCAN = Colour("--figure-jax-2", "#a3c496", "#567a4a")
COLOURS = (
    *(TEXT, MUTED, GRID, BACKGROUND, PANEL, HIGHLIGHT),
    *(OURS, TORCH, TORCH_GRAPH, JAX, JAX_SCAN),
)

MODELS = {  # with their colours, dnnffi's first
    FUNCTIONS: ("dnnffi", OURS.light),
    EAGER: ("PyTorch", TORCH.light),
    GRAPH: ("PyTorch in a CUDA graph", TORCH_GRAPH.light),
    "jax": ("JAX", JAX.light),
    "jax scan": ("JAX, lax.scan", JAX_SCAN.light),
}
STREAM_MODELS = {  # with their colours, in the order of the bars
    PADDED: ("PyTorch, padded", TORCH.light),
    PACKED: ("PyTorch, packed", TORCH_GRAPH.light),
    stream_model.FUNCTIONS: ("dnnffi", OURS.light),
}
STYLE = DOCS / "figures.mplstyle"
SMALL = 8  # points: 10.7 pixels
BAR, LINE = 0.18, 0.16  # inches from a bar or a line to the next


class Layout(NamedTuple):
    """Width of a figure in inches, and characters of a line of small text."""

    width: float
    characters: int

    @property
    def is_narrow(self) -> bool:
        """Whether names are above their bars instead of on their left."""
        return self is NARROW

    @property
    def bold(self) -> dict[str, Any]:
        """The font of a title."""
        return {"weight": "bold", "size": 9 if self.is_narrow else 11}

    def wrapped(self, lines: Sequence[str]) -> list[str]:
        """Return small text in lines that fit."""
        return [part for line in lines for part in textwrap.wrap(line, self.characters)]


WIDE = Layout(7.5, 110)  # 720 pixels
NARROW = Layout(3.4, 48)  # 326 pixels: a phone 360 pixels wide shows it without scaling
LAYOUTS = (WIDE, NARROW)
Draw = Callable[[Record, Layout], Figure | None]


@shows("bench_rnn.json")
def speed_figure(record: Record) -> Iterator[Block]:
    """Yield the figure of networks, which README.md shows from its file."""
    label = "Bars: milliseconds of a call of dnnffi and of its peers, by network and phase"
    return _kept("speed", label, speed, record)


@shows("stream.json")
def stream_figure(record: Record) -> Iterator[Block]:
    """Yield the figure of streams, which README.md shows from its file."""
    label = "Bars: milliseconds of a batch of changing length, of dnnffi and PyTorch, by stream"
    return _kept("stream", label, streams, record)


@shows("own_steps.json")
def steps_figure(record: Record) -> Iterator[Block]:
    """Yield the figure of steps."""
    label = "Curves: microseconds of a step over the hidden size, of cuDNN and of dnnffi's kernels"
    return _kept("own_steps", label, steps, record)


@shows()
def own_step_diagram() -> Iterator[Block]:
    """Yield a diagram that is drawn by hand, in the colours of the page."""
    label = (
        "Two blocks, each of which gathers h from L2, multiplies, adds up, computes its cells and "
        "sends its h to L2"
    )
    files = (DOCS / "own_step.svg", DOCS / "own_step_narrow.svg")
    drawn = (with_dark_mode(file.read_text(encoding="utf-8")) for file in files)
    yield in_both_layouts("own_step", label, *drawn)


def _kept(name: str, label: str, draw: Draw, record: Record) -> Iterator[Block]:
    """Yield a figure if there is one, and write its wide layout into the file of its name."""
    drawn = [draw(record, layout) for layout in LAYOUTS]
    if None not in drawn:
        wide, narrow = map(svg, drawn)
        path = DOCS / f"{name}.svg"
        if not path.exists() or path.read_text(encoding="utf-8") != wide:
            path.write_text(wide, encoding="utf-8")
        yield in_both_layouts(name, label, wide, narrow)


class Group(NamedTuple):
    """Bars of one problem: its name, its phase, and (model, length, label) of each bar."""

    name: str
    phase: str
    bars: tuple[tuple[str, float, str], ...]


def speed(record: Mapping[str, Any], layout: Layout = WIDE) -> Figure | None:
    """Draw milliseconds of a call on fastrnns' shapes by model; None if nothing was measured."""
    groups = []
    for shape in FASTRNNS:
        for phase, words in PHASE_WORDS.items():
            times = {model: figures(record, model, phase).get(shape.name) for model in MODELS}
            bars = tuple((one, ms, f"{ms:.2f}") for one, ms in times.items() if ms is not None)
            if times[FUNCTIONS] is not None:
                groups.append(Group(words_of(shape), words, bars))
    ((batch, hidden, dtype),) = {(one.batch, one.hidden_size, one.dtype) for one in FASTRNNS}
    title = f"Milliseconds of a call: batch of {batch}, hidden size {hidden}, {dtype}"
    below = [*summary(record), machine(record)]
    return _bars(groups, MODELS, title, below, layout) if groups else None


def streams(record: Mapping[str, Any], layout: Layout = WIDE) -> Figure | None:
    """Draw milliseconds of a batch of the everyday streams; None if nothing was measured.

    The bars of a stream are scaled to its longest one: times of streams differ by a factor of 100.
    """
    times = {model: report.figures(record, model) for model in STREAM_MODELS}
    names = report.streams_of(record, "everyday")
    shown = [name for name in names if name in times[stream_model.FUNCTIONS]]
    shapes = {shape["name"]: shape for shape in record["shapes"]}
    groups = []
    for name in shown:
        found = {model: times[model][name] for model in STREAM_MODELS if name in times[model]}
        longest = max(found.values())
        bars = tuple((model, ms / longest, f"{ms:.3g}") for model, ms in found.items())
        groups.append(Group(*words_of_stream(shapes[name]), bars))
    below = [
        "The bars of a stream are scaled to its longest one.",
        *stream_means(record, shown),
        machine(record),
    ]
    title = "Milliseconds of a batch, each of another length"
    return _bars(groups, STREAM_MODELS, title, below, layout) if groups else None


@rc_context(fname=STYLE)
def _bars(
    groups: Sequence[Group],
    models: Mapping[str, tuple[str, str]],
    title: str,
    below: Sequence[str],
    layout: Layout,
) -> Figure:
    """Draw groups of horizontal bars with a legend above and lines of small text below."""
    bars: dict[str, list[tuple[float, float, str]]] = {model: [] for model in models}
    middles, place = [], 0.0
    for group in groups:
        if layout.is_narrow:
            place += 1.8  # two lines of text
        middles.append(place - 1.35 if layout.is_narrow else place + (len(group.bars) - 1) / 2)
        for row, (model, length, label) in enumerate(group.bars):
            bars[model].append((place + row, length, label))
        place += len(group.bars) + (0.4 if layout.is_narrow else 0.9)
    below = layout.wrapped(below)
    titles = textwrap.wrap(title, layout.characters - 8)
    keys = sum(map(bool, bars.values())) + len(titles) if layout.is_narrow else 3
    height = 0.15 + keys * LINE + place * BAR + len(below) * LINE
    figure = Figure((layout.width, height), layout="constrained")
    axes = figure.subplots()
    for model, (words, colour) in models.items():
        if bars[model]:
            places, lengths, labels = zip(*bars[model], strict=True)
            drawn = axes.barh(places, lengths, 0.82, color=colour, label=words)
            axes.bar_label(drawn, labels, padding=4)
    if layout.is_narrow:
        beside = {"transform": axes.get_yaxis_transform(), "va": "center", "size": SMALL}
        for middle, group in zip(middles, groups, strict=True):
            axes.text(0, middle - 0.6, group.name, weight="bold", **beside)
            axes.text(0, middle + 0.3, group.phase, **beside)
        axes.set_yticks([])
    else:
        # Two ticks a group: the lines of one text are aligned in Matplotlib's font only.
        names, phases = [group.name for group in groups], [group.phase for group in groups]
        axes.set_yticks([middle - 0.45 for middle in middles], names, weight="bold")
        axes.set_yticks([middle + 0.45 for middle in middles], phases, minor=True)
    # The first group on top.
    axes.set_ylim(place - (0.9 if layout.is_narrow else 1.4), -0.2 if layout.is_narrow else -0.5)
    axes.tick_params(axis="y", which="both", length=0)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    _write_around(figure, axes, "\n".join(titles), below, layout, handlelength=1)
    return figure


def _write_around(
    figure: Figure, axes: Any, title: str, below: Sequence[str], layout: Layout, **legend: Any
) -> None:
    """Write a title and the legend of ``axes`` above a figure, and lines of small text below."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        alignment="left",
        title=title,
        title_fontproperties=layout.bold,
        ncols=1 if layout.is_narrow else len(labels),
        frameon=False,
        **legend,
    )
    figure.supxlabel("\n".join(below), x=0.02, ha="left", size=SMALL, color=MUTED.light)


def words_of_stream(shape: Mapping[str, Any]) -> tuple[str, str]:
    """Return the network of a stream of a record, and its batches, as people say it."""
    layers = f"{shape['layers']} layers" if shape["layers"] > 1 else "1 layer"
    name = shape["mode"].upper().removeprefix("RNN_")
    network = f"{name}, {layers}, H {shape['hidden_size']}, {SHORT[shape['dtype']]}"
    if shape["dropout"]:
        network += f", dropout {shape['dropout']:g}"
    rows = f"{shape['batch']} rows" if shape["batch"] > 1 else "1 row"
    kind = "each of" if shape["ragged"] else "all of"
    batches = f"{rows}, {kind} {shape['shortest']} to {shape['longest']} steps"
    return network, f"{batches}, {'training' if shape['training'] else 'inference'}"


def stream_means(record: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
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


def words_of(shape: Shape) -> str:
    """Return a shape of fastrnns as people say it."""
    steps = f"{shape.steps} steps"
    if shape.lengths:
        steps = f"{min(shape.lengths)} to {max(shape.lengths)} steps"
    layers = f"{shape.layers} layers" if shape.layers > 1 else "1 layer"
    return f"{shape.mode.upper()}, {layers}, {steps}"


def summary(record: Mapping[str, Any]) -> Iterator[str]:
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


def machine(record: Mapping[str, Any]) -> str:
    """Return the device, the versions and the date of a record."""
    found = record["machine"]
    names = {"cudnn": "cuDNN", "torch": "PyTorch", "jax": "JAX"}
    versions = [f"{words} {found[name]}" for name, words in names.items() if name in found]
    return ", ".join([found["device"], *versions, found["date"]])


STEP_LINES = {  # keys of a row of own_steps.json, with their words and their look
    "cudnn": ("cuDNN's fastest algorithm", {"color": TORCH.light, "marker": "o"}),
    "own": ("dnnffi's own kernels", {"color": OURS.light, "marker": "o"}),
    "limit_us": ("what the device allows", {"color": MUTED.light, "linestyle": "--"}),
}
PRECISIONS = {"float16": "float16", "float32": "float32, products in TF32"}


@rc_context(fname=STYLE)
def steps(record: Mapping[str, Any], layout: Layout = WIDE) -> Figure | None:
    """Draw microseconds of an LSTM's step over its hidden size, a panel by dtype and batch."""
    kinds = grouped(record["rows"], "dtype", "batch")
    if not kinds:
        return None
    across = 1 if layout.is_narrow else len({batch for _, batch in kinds})
    down = ceil(len(kinds) / across)
    height = 1.5 + 2 * down if layout.is_narrow else 0.9 + 2.5 * down
    figure = Figure((layout.width, height), layout="constrained")
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes, ((dtype, batch), rows) in zip(panels.flat, sorted(kinds.items()), strict=False):
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
        axes.grid(color=GRID.light)
        if layout.is_narrow:
            axes.tick_params(labelsize=SMALL)
            axes.tick_params(axis="x", rotation=45)
    for axes in panels[-1]:
        axes.set_xlabel("hidden size")
    below = layout.wrapped([machine(record)])
    _write_around(figure, panels.flat[0], "Microseconds of a step of an LSTM", below, layout)
    return figure


def _microseconds(found: Any) -> float | None:
    """Return the microseconds of a candidate that was measured, or of a limit."""
    return found["us"] if isinstance(found, dict) else found


@rc_context(fname=STYLE)
def curve(losses: Sequence[float], title: str, layout: Layout = WIDE) -> Figure:
    """Draw a loss over the steps of a training, on a logarithmic axis."""
    figure = Figure((layout.width, 2.7), layout="constrained")
    axes = figure.subplots()
    axes.semilogy(losses, color=OURS.light)
    axes.set_title("\n".join(textwrap.wrap(title, layout.characters - 4)), layout.bold, loc="left")
    axes.set_ylim(10.0 ** floor(log10(min(losses))), 10.0 ** ceil(log10(max(losses))))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel("step")
    axes.margins(x=0)
    axes.grid(color=GRID.light)
    return figure


@rc_context(fname=STYLE)
def svg(figure: Figure) -> str:
    """Return a figure as SVG whose colours follow the system; equal figures give equal text."""
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Creator": None, "Date": None})
    return with_dark_mode(out.getvalue())


def with_dark_mode(text: str) -> str:
    """Replace the colours of an SVG by CSS variables, and set these where the system is dark."""
    for colour in COLOURS:
        text = text.replace(colour.light, f"var({colour.variable}, {colour.light})")
    values = " ".join(f"{colour.variable}: {colour.dark};" for colour in COLOURS)
    style = f"<style>@media (prefers-color-scheme: dark) {{ svg {{ {values} }} }}</style>"
    return re.sub(r"<svg\b[^>]*>", lambda tag: f"{tag[0]}\n{style}", text, count=1)


def inlined(text: str, name: str, label: str) -> str:
    """Return the ``<svg>`` element of a file for a page, which sets its colours.

    name : prefix of its ids, which are those of the whole page
    label : description for readers who do not see it
    """
    text = re.sub(r"<style>@media.*?</style>\n|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Matplotlib's rule for all elements would apply to the whole page.
    text = re.sub(r"<style type=.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id=")([^"]+)', rf"\g<1>{name}-\2", text)
    text = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", text)
    _, _, width, height = re.search(r'viewBox="([^"]+)"', text)[1].split()
    pixels = float(width) * (4 / 3 if 'pt"' in text[:600] else 1)
    style = f"width: 100%; max-width: {pixels:.0f}px; stroke-linejoin: round; stroke-linecap: butt"
    opening = (
        f'<svg class="{name}" role="img" aria-label="{escape(label)}" viewBox="0 0 {width} '
        f'{height}" style="{style}">'
    )
    return opening + text.partition("<svg")[2].partition(">")[2]


def in_both_layouts(name: str, label: str, wide: str, narrow: str) -> Html:
    """Return a figure for a page, which shows the layout that fits."""
    return Html(
        f'<div class="record-figure"><div class="wide">{inlined(wide, f"{name}-wide", label)}</div>'
        f'<div class="narrow">{inlined(narrow, f"{name}-narrow", label)}</div></div>'
    )
