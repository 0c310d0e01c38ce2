from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import bounded
import irregular
import numpy as np
import pytest

import dnnffi
from dnnffi.cli import demo, main, probe
from dnnffi.cli.charmodel import CharModel
from dnnffi.cli.convmodel import ConvModel
from dnnffi.device.cupy import INSTALL_CUPY

TEXT = "the quick brown fox jumps over the lazy dog. " * 40
SMALL = ["--backend", "reference", "--hidden", "16", "--batch", "4", "--window", "16"]
SMALL += ["--seconds", "3600"]  # the steps end it: time would be over sooner on a busy machine


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def run_demo(text: Path, output: Path, *more: str) -> int:
    return main(["demo", "--text", str(text), "--output", str(output), *SMALL, *more])


def test_no_command_prints_help(capsys):
    assert main([]) == 0
    assert "usage: dnnffi [-h]" in capsys.readouterr().out


def test_the_installed_command_is_this_one(monkeypatch, capsys):
    with (Path(__file__).parents[2] / "pyproject.toml").open("rb") as file:
        target = tomllib.load(file)["project"]["scripts"]["dnnffi"]
    command = EntryPoint("dnnffi", target, "console_scripts").load()
    monkeypatch.setattr(sys, "argv", ["dnnffi", "--version"])
    with pytest.raises(SystemExit) as stop:
        command()
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"dnnffi {dnnffi.__version__}\n"


def test_help_names_the_program_as_it_was_called():
    command = [sys.executable, "-m", "dnnffi", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: python -m dnnffi [-h]")


def help_of(capsys, *command: str) -> str:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    return " ".join(capsys.readouterr().out.split())


def test_help_speaks_of_both_families_and_of_the_reference(capsys):
    for word in ("convolutions", "MIOpen", "DLPack", "reference"):
        assert word in help_of(capsys)


def test_help_of_the_demo_says_that_both_networks_run_on_either_backend(capsys):
    words = "The demos use cuDNN and CuPy on a GPU, else the NumPy reference."
    assert words in help_of(capsys, "demo")


def test_the_command_for_cupy_installs_what_the_extras_do():
    with open(Path(__file__).parents[2] / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for name in ("cuda12", "cuda13", "rocm"):
        (cupy,) = (one.split(">=")[0] for one in extras[name] if one.startswith("cupy"))
        assert cupy in INSTALL_CUPY


def test_a_command_without_standard_output_succeeds(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as after the shell's >&-
    assert main(["info"]) == 0


def test_package_reports_one_that_fails_to_import(tmp_path, monkeypatch):
    (tmp_path / "dnnffi_broken.py").write_text("raise RuntimeError('half\\ninstalled')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert probe.package("dnnffi_broken").problem == "half installed"


def test_demo_learns_and_writes_its_files(text, tmp_path, capsys, monkeypatch):
    courses = []
    follow = demo.follow
    monkeypatch.setattr(demo, "follow", lambda *args: courses.append(follow(*args)) or courses[0])
    output = tmp_path / "new" / "folder"
    assert run_demo(text, output, "--steps", "45") == 0
    assert len(courses[0].losses) == 45
    assert courses[0].items == 45 * 4 * 16
    assert courses[0].recent < 0.9 * courses[0].losses[0]
    assert (output / "loss.png").read_bytes().startswith(b"\x89PNG")
    sample = (output / "sample.txt").read_text(encoding="utf-8")
    assert len(sample) == len(demo.PROMPT) + demo.SAMPLE_LENGTH + 1
    out = capsys.readouterr().out
    assert sample in out
    assert str(output / "loss.png") in out


def test_demo_generates_what_the_trained_network_writes(text, tmp_path, capsys):
    assert run_demo(text, tmp_path, "--steps", "5") == 0
    capsys.readouterr()
    for _ in range(2):
        run = ["demo", "--generate", "--backend", "reference", "--output", str(tmp_path)]
        assert main([*run, "--seed", "7"]) == 0
    once, again = capsys.readouterr().out.split("Backend ")[1:]
    assert once == again
    assert len(once.partition("\n")[2]) == len(demo.PROMPT) + demo.SAMPLE_LENGTH + 1
    assert main([*run, "--seed", "8"]) == 0
    other_seed = capsys.readouterr().out.partition("Backend ")[2]
    assert run_demo(text, tmp_path, "--steps", "45") == 0
    capsys.readouterr()
    assert main([*run, "--seed", "7"]) == 0
    other_network = capsys.readouterr().out.partition("Backend ")[2]
    assert len({once, other_seed, other_network}) == 3


def test_demo_generates_from_no_folder_without_a_network(tmp_path, capsys):
    run = ["demo", "--generate", "--backend", "reference", "--output", str(tmp_path)]
    assert main(run) == 2
    assert "Train one first: python -m dnnffi demo" in capsys.readouterr().err
    (tmp_path / "head.npz").write_bytes(b"PK")
    assert main(run) == 1
    assert "head.npz" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["loss.png", "sample.txt", "head.npz", "network.npz"])
def test_demo_follows_no_link_out_of_its_folder_to_a_device(text, tmp_path, name, capsys):
    output = tmp_path / "output"
    output.mkdir()
    irregular.make(output / name, "character device")
    assert run_demo(text, output, "--steps", "5") == 2
    message = failure(capsys)
    assert f"--output {output / name}: is not a regular file but a " in message
    assert list(output.iterdir()) == [output / name]


@pytest.mark.parametrize("name", ["loss.png", "sample.txt", "head.npz"])
def test_demo_does_not_write_through_a_link(text, tmp_path, name, capsys):
    output, victim = tmp_path / "output", tmp_path / "victim"
    output.mkdir()
    victim.write_text("precious")
    (output / name).symlink_to(victim)
    assert run_demo(text, output, "--steps", "5") == 2
    assert f"{name}: is not a regular file but a link" in failure(capsys)
    assert victim.read_text() == "precious"


GENERATE = """
import sys
from dnnffi.cli import main
sys.stderr = sys.stdout
print(main(["demo", "--generate", "--backend", "reference", "--output", sys.argv[1]]))
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
@pytest.mark.parametrize("name", ["head.npz", "network.npz"])
def test_demo_generates_from_regular_files_alone(text, tmp_path, name):
    output = tmp_path / "output"
    assert run_demo(text, output, "--steps", "1") == 0
    (output / name).unlink()
    os.mkfifo(output / name)
    told = bounded.run(GENERATE, output)
    assert told.endswith(f"is not a regular file but a FIFO: '{output / name}'\n1\n")


def head(path, **changes):
    arrays = {"characters": np.array("?abc"), "w_out": np.zeros((4, 16)), "b_out": np.zeros(4)}
    np.savez(path, **arrays | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"characters": np.array("?ab")}, "the sizes of its arrays differ"),
        ({"b_out": np.zeros((4, 1))}, "the sizes of its arrays differ"),
        ({"w_out": np.array([print] * 4, object)}, "w_out.npy has Python objects, not numbers"),
        ({"characters": np.array(3)}, "characters is not a text"),
    ],
)
def test_demo_names_a_head_that_is_damaged(tmp_path, changes, message, capsys):
    path = tmp_path / "head.npz"
    head(path, **changes)
    assert main(["demo", "--generate", "--backend", "reference", "--output", str(tmp_path)]) == 1
    assert f"{path} is not a complete file of the demo: {message}" in failure(capsys)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float64"}, "dtype must be 'float32'; got 'float64'"),
        ({"mode": "gru"}, "mode must be 'lstm'; got 'gru'"),
        ({"bidirectional": True}, "num_directions must be 1; got 2"),
        ({"proj_size": 2}, "proj_size must be 0; got 2"),
        ({"input_size": 5}, "input_size must be 4; got 5"),
        ({"hidden_size": 8}, "hidden_size must be 16; got 8"),
    ],
)
def test_demo_generates_by_no_network_of_another_head(tmp_path, changes, message, capsys):
    head(tmp_path / "head.npz", w_out=np.zeros((4, 16), "f4"), b_out=np.zeros(4, "f4"))
    fields = {"mode": "lstm", "input_size": 4, "hidden_size": 16} | changes
    weights = dnnffi.RNNWeights.random(dnnffi.RNNSpec(**fields), np.random.default_rng(0))
    weights.save(tmp_path / "network.npz")
    assert main(["demo", "--generate", "--backend", "reference", "--output", str(tmp_path)]) == 1
    assert f"network.npz does not fit {tmp_path / 'head.npz'}: {message}" in failure(capsys)


def test_demo_without_finite_scores_saves_the_network_and_fails(
    text, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(CharModel, "embed", lambda model, inputs: np.nan * model._one_hot[inputs])
    assert run_demo(text, tmp_path, "--steps", "1") == 1
    assert "the model's scores must be finite" in failure(capsys)
    assert (tmp_path / "network.npz").exists()
    assert main(["demo", "--generate", "--backend", "reference", "--output", str(tmp_path)]) == 1
    assert "the model's scores must be finite" in failure(capsys)


@pytest.mark.parametrize(
    "option", ["text", "seconds", "steps", "hidden", "layers", "batch", "window"]
)
def test_demo_generates_without_options_of_the_training(option, capsys):
    assert main(["demo", "--generate", f"--{option}", "3"]) == 2
    assert f"--{option} cannot be combined with --generate" in failure(capsys)


def test_demo_expands_no_head(tmp_path, capsys):
    path = tmp_path / "head.npz"
    np.savez_compressed(
        path, characters=np.array("?abc"), w_out=np.zeros((4, 4)), b_out=np.zeros(4)
    )
    assert main(["demo", "--generate", "--backend", "reference", "--output", str(tmp_path)]) == 1
    assert f"{path} is not a complete file of the demo: " in failure(capsys)


def test_demo_does_not_train_on_vulkan(capsys):
    assert main(["demo", "--backend", "vulkan"]) == 2
    assert "runs inference only" in capsys.readouterr().err


def test_demo_is_reproducible_by_its_seed(text, tmp_path):
    for name, seed in (("one", "3"), ("two", "3"), ("three", "4")):
        assert run_demo(text, tmp_path / name, "--steps", "5", "--seed", seed) == 0
    one, two, three = (
        (tmp_path / name / "sample.txt").read_bytes() for name in ("one", "two", "three")
    )
    assert one == two != three


def test_demo_interrupted_writes_what_it_has(text, tmp_path, monkeypatch, capsys):
    steps = iter(range(12))
    whole = CharModel.loss_and_gradients

    def interrupted(*args):
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(CharModel, "loss_and_gradients", interrupted)
    assert run_demo(text, tmp_path) == 130
    assert "Stopped after 12 steps" in capsys.readouterr().out
    assert (tmp_path / "loss.png").exists()
    assert (tmp_path / "sample.txt").exists()


def test_demo_interrupted_at_once_writes_nothing(text, tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(CharModel, "loss_and_gradients", interrupted)
    assert run_demo(text, tmp_path / "output") == 130
    assert list((tmp_path / "output").iterdir()) == []


def test_demo_of_the_standard_library_reads_real_text():
    text, source = demo.read_text(None, 10_000)
    assert len(text) == 10_000
    assert "import" in text
    assert "standard library" in source


def failure(capsys) -> str:
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_demo_refuses_a_missing_text(tmp_path, capsys):
    path = tmp_path / "missing.txt"
    assert main(["demo", "--backend", "reference", "--text", str(path)]) == 2
    assert failure(capsys) == (f"dnnffi demo: error: --text {path}: No such file or directory\n")


def test_demo_refuses_a_text_that_is_too_short(tmp_path, capsys):
    path = tmp_path / "short.txt"
    path.write_text("abc", encoding="utf-8")
    assert run_demo(path, tmp_path) == 2
    assert "has 3 characters; at least 17" in failure(capsys)


def test_demo_refuses_an_output_that_is_a_file(text, capsys):
    assert run_demo(text, text) == 2
    assert f"--output {text}: File exists" in failure(capsys)


def test_demo_without_cudnn_refuses_to_use_it(monkeypatch, capsys):
    monkeypatch.setattr(probe, "cudnn_problem", lambda: "GPU: none here")
    assert main(["demo", "--backend", "cudnn"]) == 1
    assert "--backend cudnn: GPU: none here" in failure(capsys)


def test_demo_without_its_packages_names_the_install_command(monkeypatch, capsys):
    monkeypatch.setattr(probe, "absent", lambda *names: ["rich"])
    assert main(["demo"]) == 1
    assert "needs rich. Install: pip install rich matplotlib" in failure(capsys)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("--hidden", "0"), ("--seconds", "-1"), ("--steps", "many"), ("--seed", "-1")],
)
def test_demo_refuses_a_bad_number(argument, value, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["demo", argument, value])
    assert stop.value.code == 2
    assert argument in capsys.readouterr().err


def threads_of_numpy() -> set[int]:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}


@pytest.mark.parametrize("more", [[], ["--conv"]])
def test_the_demo_computes_on_one_thread(more, tmp_path, monkeypatch):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    seen = []

    def interrupted(*args):
        seen.append(threads_of_numpy())
        raise KeyboardInterrupt

    monkeypatch.setattr(CharModel, "loss_and_gradients", interrupted)
    monkeypatch.setattr(ConvModel, "loss_and_gradients", interrupted)
    with threadpoolctl.threadpool_limits(2):
        arguments = ["demo", "--backend", "reference", "--output", str(tmp_path), *more]
        assert main(arguments) == 130
        assert threads_of_numpy() == {2}
    assert seen == [{1}]
