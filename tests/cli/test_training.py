from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from rich.progress import Progress as Bar

from dnnffi.cli import training
from dnnffi.cli.training import Progress, follow, plot_losses


def updates_of(monkeypatch, count: int, seconds_of_a_step: float) -> list[tuple[int, str]]:
    """After how many of ``count`` steps the bar is updated, and the loss that it shows."""
    now, begun, updates = [0.0], [0], []

    def losses():
        for loss in itertools.count(1):
            begun[0] = loss
            now[0] += seconds_of_a_step
            yield 1.0

    def update(bar, task, **fields):
        updates.append((begun[0], fields["loss"]))

    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Bar, "update", update)
    follow(losses(), 2, "nats", "pictures", 3600.0, count)
    return updates


def test_slow_steps_are_shown_one_by_one(monkeypatch):
    assert updates_of(monkeypatch, 3, 0.3) == [(1, "1.00"), (2, "1.00"), (3, "1.00")]


def test_of_fast_steps_the_first_is_shown_and_then_every_tenth(monkeypatch):
    assert [step for step, _ in updates_of(monkeypatch, 25, 1e-3)] == [1, 11, 21, 25]


def test_steps_in_between_are_shown_after_a_while(monkeypatch):
    assert [step for step, _ in updates_of(monkeypatch, 7, 0.0703)] == [1, 4, 7]


def drawn(monkeypatch, progress: Progress):
    figures = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, *args, **keys: figures.append(figure)
    )
    plot_losses(progress, "characters read", "bits")
    return figures[0].axes[0]


@pytest.mark.parametrize(
    ("items", "label", "end"),
    [
        (1999, "characters read", 1999),
        (70_000, "characters read (thousands)", 70),
        (1_999_999, "characters read (thousands)", 1999.999),
        (16_000_000, "characters read (millions)", 16),
    ],
)
def test_the_axis_counts_in_what_suits_its_length(items, label, end, monkeypatch):
    axes = drawn(monkeypatch, Progress([3.0, 2.0], items))
    assert axes.get_xlabel() == label
    assert axes.lines[0].get_xdata()[-1] == pytest.approx(end)
    assert axes.get_xlim()[0] == 0


@pytest.mark.parametrize(
    ("steps", "labels"),
    [
        (1, ["each step"]),
        (99, ["each step"]),
        (100, ["each step", "mean of 2 steps"]),
        (1000, ["each step", "mean of 20 steps"]),
    ],
)
def test_the_legend_names_each_line(steps, labels, monkeypatch):
    axes = drawn(monkeypatch, Progress([2.0] * steps, steps))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == labels
