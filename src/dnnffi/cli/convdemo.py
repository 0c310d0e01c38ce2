"""``dnnffi demo --conv``: train a small network to classify shapes in noisy pictures."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dnnffi import files
from dnnffi.bench.plot import png
from dnnffi.cli.command import INTERRUPTED, CommandError
from dnnffi.cli.training import follow, plot_losses

if TYPE_CHECKING:
    from dnnffi.cli.convmodel import ConvModel

BATCH = 64
CHANNELS = (1, 8, 16, 32)
SIZE = 24  # pixels
NOISE = 0.25
RATE = 1e-2
TESTED = 1000
ROWS, COLUMNS = 4, 8
"""Size of the grid of pictures that is written."""
CURVE, GRID = "pictures_loss.png", "pictures.png"
"""The files that the demo writes."""


def run(options: argparse.Namespace, backend: str, xp: ModuleType) -> int:
    """Train, then write the loss curve and the grid of pictures. Ctrl-C ends training early."""
    import numpy as np

    from dnnffi.cli.convmodel import ConvModel
    from dnnffi.cli.pictures import SHAPES, draw_pictures
    from dnnffi.device.arrays import to_host

    rng = np.random.default_rng(options.seed)
    model = ConvModel(xp, CHANNELS, len(SHAPES), backend, rng)
    count = sum(int(parameter.size) for parameter in model.parameters)
    print(f"Pictures  {SIZE} x {SIZE} with noise: {', '.join(SHAPES)}")
    print(f"Network   {len(CHANNELS) - 1} convolutions of 3 x 3, {count:,} parameters")

    batch = options.batch or BATCH
    losses = _losses(model, xp, batch, rng)
    progress = follow(losses, batch, "nats", "pictures", options.seconds, options.steps)
    if not progress.losses:
        print("Interrupted before the first step; no files were written.")
        return INTERRUPTED
    pictures, numbers = draw_pictures(TESTED, SIZE, NOISE, np.random.default_rng(options.seed + 1))
    answers = to_host(model.scores(xp.asarray(pictures)).argmax(axis=1))
    curve, grid = options.output / CURVE, options.output / GRID
    files.write(curve, plot_losses(progress, "pictures seen", "loss (nats)"))
    files.write(grid, plot_grid(pictures, numbers, answers))
    right = int((answers == numbers).sum())
    word = "Stopped after" if progress.interrupted else "Trained"
    print(
        f"{word} {len(progress.losses)} steps, {progress.items:,} pictures in "
        f"{progress.seconds:.1f} s, {progress.speed:,.0f} pictures/s"
    )
    chance = 1 / len(SHAPES)
    print(f"Accuracy    {right / TESTED:.1%} of {TESTED} new pictures (guessing: {chance:.1%})")
    print(f"Loss curve  {curve}")
    print(f"Pictures    {grid}")
    return INTERRUPTED if progress.interrupted else 0


def _losses(model: ConvModel, xp: ModuleType, batch: int, rng: Any) -> Iterator[Any]:
    """Train on new pictures without end; yield the loss of each step."""
    from dnnffi.cli.learning import Adam
    from dnnffi.cli.pictures import draw_pictures

    adam = Adam(model.parameters, RATE)
    while True:
        try:
            drawn = draw_pictures(batch, SIZE, NOISE, rng)
        except ValueError as error:
            raise CommandError(
                f"--batch {batch}: too many pictures for an array ({error}); pass fewer, as "
                f"--batch {BATCH}"
            ) from error
        loss, gradients = model.loss_and_gradients(*map(xp.asarray, drawn))
        adam.step(gradients)
        yield loss


def plot_grid(pictures: Any, numbers: Any, answers: Any) -> memoryview:
    """Return pictures with their answers as PNG; wrong answers fill at most half of the grid."""
    import numpy as np
    from matplotlib.figure import Figure

    from dnnffi.cli.pictures import SHAPES

    wrong, right = np.flatnonzero(answers != numbers), np.flatnonzero(answers == numbers)
    cells = ROWS * COLUMNS
    front = wrong[: max(cells // 2, cells - len(right))]
    shown = [*front, *right[: cells - len(front)]]
    parts = [
        f"{count} of the {of} {what}"
        for count, of, what in (
            (len(front), len(wrong), "wrong answers (red, correct shape in brackets)"),
            (cells - len(front), len(right), "right answers (green)"),
        )
        if count
    ]
    figure = Figure(figsize=(1.3 * COLUMNS, 1.5 * ROWS + 0.8))
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.86, wspace=0.05, hspace=0.2)
    figure.suptitle(
        f"{len(right)} of {len(answers)} new pictures were classified correctly "
        f"({len(right) / len(answers):.1%}).\nShown: {', then '.join(parts)}",
        fontsize=11,
    )
    for axes, index in zip(figure.subplots(ROWS, COLUMNS).flat, shown, strict=True):
        answer, truth = SHAPES[answers[index]], SHAPES[numbers[index]]
        axes.imshow(pictures[index, 0], cmap="gray")
        axes.set_title(
            answer if answer == truth else f"{answer} ({truth})",
            color="tab:green" if answer == truth else "tab:red",
            fontsize=8,
        )
        axes.set_axis_off()
    return png(figure)
