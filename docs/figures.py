"""The figures of the pages as SVG, from the records and from what the code of a page computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor, log10
from typing import Any
from xml.sax.saxutils import escape

from dnnffi.bench.shapes import FASTRNNS, Shape
from dnnffi.bench.summary import EAGER, FUNCTIONS, GRAPH, PHASE_WORDS, compare, figures

WIDTH = 720
MODELS = {  # with their colours, dnnffi's first
    FUNCTIONS: ("dnnffi", "#1f6feb"),
    EAGER: ("PyTorch", "#c9510c"),
    GRAPH: ("PyTorch in a CUDA graph", "#e6a574"),
    "jax": ("JAX", "#4d7f3e"),
    "jax scan": ("JAX, lax.scan", "#a3c496"),
}
LEFT, BAR, GAP = 232, 17, 14


def speed(record: dict[str, Any]) -> str | None:
    """Milliseconds of a call on fastrnns' shapes, by who was measured; None where nothing was."""
    groups = [
        (words_of(shape), PHASE_WORDS[phase], found)
        for shape in FASTRNNS
        for phase in PHASE_WORDS
        if FUNCTIONS in (found := measured(record, shape, phase))
    ]
    if not groups:
        return None
    longest = max(time for _, _, found in groups for time in found.values())
    shown = [model for model in MODELS if any(model in found for _, _, found in groups)]
    scale = (WIDTH - LEFT - 80) / longest
    parts = [_text(16, 26, title(), size=15, weight="bold")]
    x = 16.0
    for model in shown:
        words, colour = MODELS[model]
        parts += [_bar(x, 40, 12, 12, colour), _text(x + 18, 50, words)]
        x += 36 + 6.8 * len(words)
    y = 74.0
    for shape, phase, found in groups:
        middle = y + len(found) * BAR / 2
        parts += [_text(16, middle - 3, shape, weight="bold"), _text(16, middle + 13, phase)]
        for model in shown:
            if model not in found:
                continue
            parts.append(_bar(LEFT, y, found[model] * scale, BAR - 3, MODELS[model][1]))
            parts.append(_text(LEFT + found[model] * scale + 6, y + 11, f"{found[model]:.2f}"))
            y += BAR
        y += GAP
    for line in (*summary(record), machine(record)):
        y += 16
        parts.append(_text(16, y - 8, line, colour="#57606a"))
    return _svg(y + 6, parts)


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


def measured(record: dict[str, Any], shape: Shape, phase: str) -> dict[str, float]:
    """The milliseconds of each model that was measured on a shape."""
    found = {model: figures(record, model, phase).get(shape.name) for model in MODELS}
    return {model: time for model, time in found.items() if time is not None}


def summary(record: dict[str, Any]) -> Iterator[str]:
    """What the record says of all its shapes, a line for each phase."""
    for phase, words in PHASE_WORDS.items():
        one = compare(record, FUNCTIONS, EAGER, phase)
        if one is not None:
            yield (
                f"All {one.over}, {words}: {one.mean:.2f} times as fast as PyTorch "
                f"(geometric mean), lowest {one.worst:.2f}"
            )


def machine(record: dict[str, Any]) -> str:
    """Where the record was taken, and by which versions."""
    found = record["machine"]
    names = {"cudnn": "cuDNN", "torch": "PyTorch", "jax": "JAX"}
    versions = [f"{words} {found[name]}" for name, words in names.items() if name in found]
    return ", ".join([found["device"], *versions, found["date"]])


def curve(losses: Sequence[float], title: str) -> str:
    """A loss over the steps of a training, on a logarithmic axis."""
    height, left, top, right, bottom = 260, 64, 44, 20, 44
    low, high = floor(log10(min(losses))), floor(log10(max(losses))) + 1
    across, down = WIDTH - left - right, height - top - bottom

    def place(step: int, loss: float) -> tuple[float, float]:
        y = top + down * (high - log10(loss)) / (high - low)
        return left + across * step / (len(losses) - 1), y

    parts = [_text(16, 26, title, size=15, weight="bold")]
    for power in range(low, high + 1):
        _, y = place(0, 10.0**power)
        parts.append(_line([(left, y), (WIDTH - right, y)], "#d0d7de", 1))
        parts.append(_text(left - 8, y + 4, f"{10.0**power:g}", anchor="end"))
    for step in range(0, len(losses) + 1, max(1, len(losses) // 4)):
        x = left + across * min(step, len(losses) - 1) / (len(losses) - 1)
        parts.append(_text(x, height - bottom + 18, str(step), anchor="middle"))
    parts.append(_text(left + across / 2, height - 8, "step", anchor="middle"))
    parts.append(_line([place(*one) for one in enumerate(losses)], MODELS[FUNCTIONS][1], 2))
    return _svg(height, parts)


def _svg(height: float, parts: Sequence[str]) -> str:
    # On white, so that it can be read where the page around it is dark.
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
            f'viewBox="0 0 {WIDTH} {height:.0f}" font-family="sans-serif">',
            _bar(0, 0, WIDTH, height, "#ffffff"),
            *parts,
            "</svg>\n",
        ]
    )


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    weight: str = "normal",
    colour: str = "#1f2328",
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _line(points: Sequence[tuple[float, float]], colour: str, width: int) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
