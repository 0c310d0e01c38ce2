"""First weights, the optimizer, drawn pictures and the sizes of the images that the demo writes."""

from __future__ import annotations

from argparse import ArgumentTypeError
from itertools import count
from math import pi, sqrt
from types import SimpleNamespace

import numpy as np
import pytest

import dnnffi
from dnnffi.cli import convdemo, demo, learning, main, pictures, training
from dnnffi.cli.charmodel import Alphabet, CharModel, write_on
from dnnffi.cli.command import COUNT
from dnnffi.cli.convmodel import ConvModel
from dnnffi.cli.learning import Adam, clip_by_norm
from dnnffi.cli.pictures import SHAPES, draw_pictures
from dnnffi.cli.training import Progress, plot_losses

AREAS = {
    "disc": pi * 0.8**2,
    "ring": pi * (1 - 0.6**2),
    "square": 1.4**2,
    "cross": 2 * 0.5 * 2 - 0.5**2,
    "triangle": 1.5 * 1.5 / sqrt(3),
    "stripes": pi / 2,
}
"""Areas of the shapes where they reach from -1 to 1; half of the disc is striped."""


def test_shapes_have_their_areas_and_contrasts():
    drawn, numbers = draw_pictures(6000, 24, 0.0, np.random.default_rng(0))
    squared_radius = (0.75**3 - 0.45**3) / 3 / 0.3  # the mean for radii from 0.45 to 0.75
    for number, name in enumerate(SHAPES):
        area = (drawn[numbers == number] > 0).mean() * 24**2 * (2 / 23) ** 2
        assert area == pytest.approx(AREAS[name] * squared_radius, rel=0.06)
    contrasts = drawn.max(axis=(1, 2, 3))
    assert 0.5 <= contrasts.min() < 0.51
    assert 0.99 < contrasts.max() <= 1


def test_shapes_lie_anywhere_and_whole():
    drawn, _ = draw_pictures(3000, 41, 0.0, np.random.default_rng(1))
    shown = drawn[:, 0] > 0
    axis = np.linspace(-1, 1, 41)
    for sums in (shown.sum(axis=1), shown.sum(axis=2)):
        middles = (sums * axis).sum(axis=1) / sums.sum(axis=1)
        assert abs(middles.mean()) < 0.02
        assert 0.2 < np.abs(middles).max() < 0.36
    assert not shown[:, [0, -1]].all(axis=2).any()


def test_convolutions_begin_with_the_variance_of_he():
    model = ConvModel(np, (3, 64, 64), 40, "reference", np.random.default_rng(0))
    assert model.strides == [1, 2]
    weights, biases = model.parameters[::2], model.parameters[1::2]
    assert [one.shape for one in weights] == [(64, 3, 3, 3), (64, 64, 3, 3), (40, 64)]
    for one in weights:
        assert one.std() == pytest.approx(sqrt(2 / np.prod(one.shape[1:])), rel=0.05)
    assert not any(one.any() for one in biases)


def test_an_lstm_begins_small_with_open_forget_gates():
    spec = dnnffi.RNNSpec(mode="lstm", input_size=9, hidden_size=16, num_layers=2)
    model = CharModel(np, spec, "reference", np.random.default_rng(0))
    assert not model.b_out.any()
    found = {**model.rnn.to_torch(), "w_out": model.w_out}
    for name, array in found.items():
        first = np.array(array)
        if name.startswith("bias_ih"):
            first[16:32] -= 1
        assert 0.15 < abs(first).max() <= 1 / 4 + 1e-6
        assert abs(first.mean()) < 0.08


def test_adam_is_that_of_the_paper():
    rng = np.random.default_rng(0)
    parameters = [rng.standard_normal(shape) for shape in ((2, 3), (4,))]
    expected = [one.copy() for one in parameters]
    means, squares = ([0 * one for one in parameters] for _ in range(2))
    adam = Adam(parameters, 0.1)
    for step in range(1, 5):
        gradients = [rng.standard_normal(one.shape) for one in parameters]
        adam.step(gradients)
        for at, gradient in enumerate(gradients):
            means[at] = 0.9 * means[at] + 0.1 * gradient
            squares[at] = 0.99 * squares[at] + 0.01 * gradient**2
            mean, square = means[at] / (1 - 0.9**step), squares[at] / (1 - 0.99**step)
            expected[at] -= 0.1 * mean / np.sqrt(square)
    for one, other in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def size_of(image):
    """Width and height of a PNG in pixels."""
    header = bytes(image[16:24])
    return int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")


def test_images_have_their_sizes():
    assert size_of(plot_losses(Progress([2.0, 1.0], 2), "items", "loss")) == (840, 480)
    drawn, numbers = draw_pictures(40, 24, 0.1, np.random.default_rng(0))
    assert size_of(convdemo.plot_grid(drawn, numbers, numbers)) == (1248, 816)


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        (
            ["--conv", "--batch", "8"],
            [
                "Pictures  24 x 24 with noise: disc, ring, square, cross, triangle, stripes\n",
                "Network   3 convolutions of 3 x 3, 6,086 parameters\n",
                "of 1000 new pictures (guessing: 16.7%)\n",
            ],
        ),
        (
            ["--batch", "2", "--window", "8"],
            ["LSTM with 1 layer of size 192, ", "2,000,000 characters"],
        ),
    ],
)
def test_the_demo_has_these_sizes(more, lines, tmp_path, capsys):
    arguments = ["--backend", "reference", "--seconds", "3600", "--steps", "1"]
    assert main(["demo", *arguments, "--output", str(tmp_path), *more]) == 0
    out = capsys.readouterr().out
    assert not [line for line in lines if line not in out]


def test_likely_characters_are_favoured():
    alphabet = Alphabet("?abc")
    shares = np.array([0.0, 0.6, 0.3, 0.1])
    head = np.eye(4), np.zeros((4, 2)), np.log(np.maximum(shares, 0.2))
    head[2][1:] = np.log(shares[1:])
    text = write_on(
        lambda x: np.zeros((len(x), 1, 2)), head, alphabet, "ab", 4000, np.random.default_rng(0)
    )
    assert text[:2] == "ab"
    assert len(text) == 4002
    counted = np.array([text[2:].count(letter) for letter in "?abc"]) / 4000
    expected = shares ** (1 / 0.8)
    np.testing.assert_allclose(counted, expected / expected.sum(), atol=0.02)


def test_the_demo_of_pictures_draws_these(tmp_path, monkeypatch):
    drawn, rates = [], []

    def draw(count, size, noise, rng):
        drawn.append((count, size, noise))
        return draw_pictures(count, size, noise, rng)

    class Recorded(Adam):
        def __init__(self, parameters, rate):
            rates.append(rate)
            super().__init__(parameters, rate)

    monkeypatch.setattr(pictures, "draw_pictures", draw)
    monkeypatch.setattr(learning, "Adam", Recorded)
    arguments = ["--conv", "--backend", "reference", "--seconds", "3600", "--steps", "2"]
    assert main(["demo", *arguments, "--output", str(tmp_path)]) == 0
    assert drawn == [(64, 24, 0.25), (64, 24, 0.25), (1000, 24, 0.25)]
    assert rates == [0.01]


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("20", 20), ("0", None), ("-3", None)])
def test_a_count_is_at_least_1(text, value):
    if value is None:
        with pytest.raises(ArgumentTypeError, match=f"^must be at least 1; got {text}$"):
            COUNT(text)
    else:
        assert COUNT(text) == value


@pytest.mark.parametrize("count", [1, 3])
def test_the_norm_is_that_of_all_gradients(count):
    gradients = [np.full(4, 2.0) for _ in range(count)]
    clip_by_norm(gradients, 1.0)
    np.testing.assert_allclose(gradients, np.full((count, 4), 0.5 / sqrt(count)))
    clip_by_norm(gradients, 2.0)
    np.testing.assert_allclose(gradients, np.full((count, 4), 0.5 / sqrt(count)))


@pytest.mark.parametrize("sizes", demo.SIZES.values(), ids=list(demo.SIZES))
def test_the_demo_of_text_learns_at_a_usual_rate(sizes):
    assert 1e-3 <= sizes.rate <= 1e-2


@pytest.mark.parametrize("begin", [0.0, 1000.0])
def test_progress_is_shown_whenever_the_clock_began(begin, monkeypatch):
    now, shown = [begin], []

    def losses():
        for step in count(1):
            now[0] += 0.15
            yield float(step)

    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(
        "rich.progress.Progress.update",
        lambda bar, task, **fields: shown.append((fields["loss"], fields["speed"])),
    )
    progress = training.follow(losses(), 3, "nats", "pictures", 3600.0, 4)
    assert shown == [("1.00", "20"), ("2.00", "20"), ("2.50", "20")]
    assert progress.seconds == pytest.approx(0.6)


def test_a_short_text_is_read_in_fewer_rows(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("abcdefg" * 9, encoding="utf-8")  # 63 characters: 3 rows of 16 and the next one
    arguments = ["--backend", "reference", "--text", str(text), "--output", str(tmp_path)]
    arguments += ["--hidden", "8", "--batch", "4", "--window", "16", "--steps", "1"]
    assert main(["demo", *arguments, "--seconds", "3600"]) == 0
    out = capsys.readouterr().out
    assert "Trained 1 steps, 48 characters" in out
