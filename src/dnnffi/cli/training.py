"""A training run: its limits on time and steps, its progress bar, and the picture of its losses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dnnffi.bench.plot import png

SHOWN_EVERY = 0.2
"""Seconds after which the figures are updated even if few steps were made."""


@dataclass
class Progress:
    """A training run so far: the loss of each step, the items that were read, and the seconds."""

    losses: list[float] = field(default_factory=list)
    items: int = 0
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def recent(self) -> float:
        """Mean loss of the last 20 steps."""
        last = self.losses[-20:]
        return sum(last) / len(last)

    @property
    def speed(self) -> float:
        """Items per second."""
        return self.items / self.seconds if self.seconds else 0.0


def follow(
    losses: Iterator[Any], items: int, unit: str, item: str, seconds: float, steps: int | None
) -> Progress:
    """Train for ``seconds`` or ``steps``, or until Ctrl-C, and show the progress.

    Each item of ``losses`` is the loss of a step on ``items`` items, which may be on a device.
    """
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    progress = Progress()
    pending: list[Any] = []
    columns = (
        TextColumn("Training "),
        BarColumn(),
        TextColumn(f"{{task.fields[loss]}} {unit}  {{task.fields[speed]}} {item}/s"),
        TimeElapsedColumn(),
    )

    def collect(bar: Bar) -> None:
        # Only this waits for the device.
        progress.losses += [float(loss) for loss in pending]
        progress.items += len(pending) * items
        progress.seconds = time.perf_counter() - start
        pending.clear()
        done = progress.seconds / seconds
        if steps is not None:
            done = max(done, len(progress.losses) / steps)
        bar.update(
            bar.task_ids[0],
            completed=min(done, 1.0),
            loss=f"{progress.recent:.2f}",
            speed=f"{progress.speed:,.0f}",
        )

    with Bar(*columns) as bar:
        bar.add_task("", total=1.0, loss="-", speed="-")
        start = time.perf_counter()
        try:
            for loss in losses:
                pending.append(loss)
                done = len(progress.losses)
                last = done + len(pending) == steps
                late = time.perf_counter() - start - progress.seconds >= SHOWN_EVERY
                if last or late or not done or len(pending) == 10:
                    collect(bar)
                    if last or progress.seconds >= seconds:
                        break
        except KeyboardInterrupt:
            progress.interrupted = True
            if pending:
                collect(bar)
    return progress


def plot_losses(progress: Progress, items: str, unit: str) -> memoryview:
    """Return the loss curve as PNG."""
    import numpy as np
    from matplotlib.figure import Figure

    losses = np.array(progress.losses)
    scale, scale_word = _scale(progress.items)
    read = np.linspace(0, progress.items, len(losses) + 1)[1:] / scale
    width = len(losses) // 50

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    if width > 1:
        smooth = np.convolve(losses, np.full(width, 1 / width), "valid")
        axes.plot(read, losses, color="0.75", linewidth=0.8, label="each step")
        axes.plot(read[width - 1 :], smooth, color="C0", label=f"mean of {width} steps")
    else:  # a mean would hide the few steps
        axes.plot(read, losses, color="C0", marker=".", label="each step")
    axes.set_xlabel(f"{items}{scale_word}")
    axes.set_ylabel(unit)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return png(figure)


def _scale(items: int) -> tuple[int, str]:
    """Return the unit of an axis that ends at ``items``, and its name."""
    for scale, word in ((1_000_000, " (millions)"), (1000, " (thousands)")):
        if items >= 2 * scale:
            return scale, word
    return 1, ""
