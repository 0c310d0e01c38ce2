"""The picture of a run: bars of ratios or of times."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from dnnffi.bench.summary import PEERS, PHASE_WORDS, Record, figures, ratios

MODEL = "dnnffi"


def plot(record: Record) -> memoryview:
    """Return a PNG with a bar for each shape: dnnffi's speed over each peer's, or dnnffi's time."""
    from matplotlib.figure import Figure

    peers = [
        peer for peer in PEERS if any(ratios(record, MODEL, peer, phase) for phase in PHASE_WORDS)
    ]
    shapes = [shape["name"] for shape in record["shapes"]]
    figure = Figure(
        figsize=(4 + 4.5 * max(1, len(peers)), 1.6 + 0.34 * len(shapes)), layout="constrained"
    )
    panels = figure.subplots(1, max(1, len(peers)), sharey=True, squeeze=False)[0]
    for panel, peer in zip(panels, peers, strict=False):
        bars = {phase: ratios(record, MODEL, peer, phase) for phase in PHASE_WORDS}
        _bars(panel, shapes, bars)
        panel.axvline(1, color="0.2", linewidth=1)
        panel.set_xlabel(f"times as fast as {peer}")
    if not peers:
        _bars(panels[0], shapes, {phase: figures(record, MODEL, phase) for phase in PHASE_WORDS})
        panels[0].set_xlabel("milliseconds per call")
    panels[0].set_yticks(range(len(shapes)), shapes, fontsize=8)
    panels[0].set_ylim(len(shapes) - 0.4, -0.6)  # the first shape on top
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8
    )
    machine = record["machine"]
    figure.suptitle(f"{MODEL} {machine['dnnffi']} on {machine['device']}", fontsize=10)
    return png(figure)


def png(figure: Any) -> memoryview:
    """Return a figure of Matplotlib as PNG."""
    file = BytesIO()
    figure.savefig(file, dpi=120, format="png")
    return file.getbuffer()


def _bars(panel: Any, shapes: list[str], by_phase: dict[str, dict[str, float]]) -> None:
    width = 0.8 / len(by_phase)
    for number, (phase, values) in enumerate(by_phase.items()):
        places = [row - 0.4 + (number + 0.5) * width for row in range(len(shapes))]
        lengths = [values.get(shape, 0.0) for shape in shapes]
        drawn = panel.barh(places, lengths, height=width, label=PHASE_WORDS[phase])
        texts = [f"{length:.2f}" if length else "" for length in lengths]
        panel.bar_label(drawn, texts, fontsize=6, padding=2)
    panel.margins(x=0.12)
    panel.grid(axis="x", alpha=0.3)
    panel.set_axisbelow(True)
