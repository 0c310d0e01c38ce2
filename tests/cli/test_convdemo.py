from __future__ import annotations

import numpy as np
import pytest

from dnnffi.cli import convdemo, main, probe
from dnnffi.cli.convmodel import ConvModel
from dnnffi.cli.pictures import SHAPES, draw_pictures


def make_model(channels=(1, 3, 4), kinds=5):
    model = ConvModel(np, channels, kinds, "reference", np.random.default_rng(7))
    model.parameters = [parameter.astype("f8") for parameter in model.parameters]
    rng = np.random.default_rng(8)
    for parameter in model.parameters[1::2]:
        parameter += rng.normal(size=parameter.shape)  # biases begin at zero
    return model


def run_demo(output, *more):
    # The steps end it: the time would be over sooner on a busy machine.
    small = "--batch", "16", "--seconds", "3600"
    return main(["demo", "--conv", "--output", str(output), *small, *more])


def test_gradients_by_finite_differences():
    rng = np.random.default_rng(1)
    model = make_model()
    pictures, targets = rng.normal(size=(6, 1, 7, 8)), rng.integers(0, 5, 6)
    _, gradients = model.loss_and_gradients(pictures, targets)

    def loss(parameter, change):
        parameter += change
        value = float(model.loss_and_gradients(pictures, targets)[0])
        parameter -= change
        return value

    assert len(gradients) == len(model.parameters) == 6
    for parameter, gradient in zip(model.parameters, gradients, strict=True):
        assert gradient.shape == parameter.shape
        for _ in range(3):
            change = 1e-6 * rng.standard_normal(parameter.shape)
            expected = (loss(parameter, change) - loss(parameter, -change)) / 2
            assert float((gradient * change).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-13)


def test_all_but_the_first_convolution_halve_the_picture():
    model = make_model((1, 2, 3, 4))
    assert [f.shape for f in model._features(np.zeros((2, 1, 9, 12)))] == [
        (2, 1, 9, 12),
        (2, 2, 9, 12),
        (2, 3, 5, 6),
        (2, 4, 3, 3),
    ]


def test_pictures_show_their_shapes():
    pictures, numbers = draw_pictures(400, 24, 0.0, np.random.default_rng(0))
    assert pictures.shape == (400, 1, 24, 24)
    assert pictures.dtype == np.float32
    assert set(numbers.tolist()) == set(range(len(SHAPES)))
    area = [(pictures[numbers == number] > 0).mean() for number in range(len(SHAPES))]
    assert min(area) > 0.05
    # A disc is filled and a ring is not, in the middle of what is seen of it.
    for name, filled in (("disc", True), ("ring", False)):
        for picture in pictures[numbers == SHAPES.index(name), 0]:
            rows, columns = np.nonzero(picture)
            middle = picture[round(rows.mean()), round(columns.mean())]
            assert (middle > 0) is np.bool_(filled)


def test_noise_has_its_deviation():
    quiet, _ = draw_pictures(50, 24, 0.0, np.random.default_rng(0))
    loud, _ = draw_pictures(50, 24, 0.5, np.random.default_rng(0))
    assert (loud - quiet).std() == pytest.approx(0.5, rel=0.02)


def test_demo_learns_and_writes_its_files(tmp_path, capsys, monkeypatch):
    courses = []
    follow = convdemo.follow
    monkeypatch.setattr(
        convdemo, "follow", lambda *args: courses.append(follow(*args)) or courses[0]
    )
    monkeypatch.setattr(convdemo, "NOISE", 0.1)
    output = tmp_path / "new" / "folder"
    assert run_demo(output, "--steps", "120") == 0
    assert len(courses[0].losses) == 120
    assert courses[0].items == 120 * 16
    assert courses[0].recent < 0.8 * courses[0].losses[0]
    out = capsys.readouterr().out
    for name in ("pictures_loss.png", "pictures.png"):
        assert (output / name).read_bytes().startswith(b"\x89PNG")
        assert str(output / name) in out
    assert "of 1000 new pictures" in out


def test_demo_is_reproducible_by_its_seed(tmp_path):
    for name, seed in (("one", "5"), ("two", "5"), ("three", "6")):
        assert run_demo(tmp_path / name, "--steps", "3", "--seed", seed) == 0
    one, two, three = (
        (tmp_path / name / "pictures.png").read_bytes() for name in ("one", "two", "three")
    )
    assert one == two != three


@pytest.mark.parametrize("steps", [0, 4])
def test_demo_interrupted_writes_what_it_has(steps, tmp_path, monkeypatch, capsys):
    left = iter(range(steps))
    whole = ConvModel.loss_and_gradients

    def interrupted(*args):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(ConvModel, "loss_and_gradients", interrupted)
    assert run_demo(tmp_path / "output") == 130
    out = capsys.readouterr().out
    assert ("Stopped after 4 steps" in out) is (steps == 4)
    assert (tmp_path / "output" / "pictures.png").exists() is (steps == 4)


@pytest.mark.parametrize(
    ("wrong", "title"),
    [
        (
            0,
            "40 of 40 new pictures were classified correctly (100.0%).\n"
            "Shown: 32 of the 40 right answers (green)",
        ),
        (
            3,
            "37 of 40 new pictures were classified correctly (92.5%).\n"
            "Shown: 3 of the 3 wrong answers (red, correct shape in brackets), "
            "then 29 of the 37 right answers (green)",
        ),
        (
            20,
            "20 of 40 new pictures were classified correctly (50.0%).\n"
            "Shown: 16 of the 20 wrong answers (red, correct shape in brackets), "
            "then 16 of the 20 right answers (green)",
        ),
        (
            40,
            "0 of 40 new pictures were classified correctly (0.0%).\n"
            "Shown: 32 of the 40 wrong answers (red, correct shape in brackets)",
        ),
    ],
)
def test_the_grid_says_which_answers_it_shows(wrong, title, monkeypatch):
    figures = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, *args, **keys: figures.append(figure)
    )
    pictures, numbers = draw_pictures(40, 24, 0.1, np.random.default_rng(0))
    answers = numbers.copy()
    answers[:wrong] = (answers[:wrong] + 1) % len(SHAPES)
    convdemo.plot_grid(pictures, numbers, answers)
    (figure,) = figures
    assert figure.get_suptitle() == title
    red = [axes.title.get_color() == "tab:red" for axes in figure.axes]
    assert red == sorted(red, reverse=True)
    assert sum(red) == {0: 0, 3: 3, 20: 16, 40: 32}[wrong]


@pytest.mark.parametrize("argument", ["--text", "--hidden", "--layers", "--window"])
def test_arguments_of_the_other_demo_are_refused(argument, tmp_path, capsys):
    assert run_demo(tmp_path, argument, "3") == 2
    assert capsys.readouterr().err == (
        f"dnnffi demo: error: {argument} cannot be combined with --conv: it is for text\n"
    )


def test_without_cudnn_it_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(probe, "cudnn_problem", lambda: "GPU: none here")
    assert run_demo(tmp_path, "--backend", "cudnn") == 1
    assert "--backend cudnn: GPU: none here" in capsys.readouterr().err


def test_a_batch_that_no_array_holds_is_refused(tmp_path, capsys):
    assert run_demo(tmp_path, "--backend", "reference", "--batch", "9" * 20) == 2
    assert f"dnnffi demo: error: --batch {'9' * 20}: " in capsys.readouterr().err
