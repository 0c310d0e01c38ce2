from __future__ import annotations

import json
import os
import re
import shlex
import sys
from contextlib import nullcontext
from functools import partial
from itertools import chain
from operator import setitem
from pathlib import Path
from types import SimpleNamespace

import bounded
import irregular
import pytest

from dnnffi.bench import array_models, runner
from dnnffi.bench.creator import Creator
from dnnffi.bench.shapes import draw_shapes
from dnnffi.bench.streams import images as image_streams
from dnnffi.bench.streams import problems as streams
from dnnffi.bench.streams import resets as reset_streams
from dnnffi.bench.streams import runner as stream_runner
from dnnffi.bench.suites import IMAGE_STREAMS, RESET_STREAMS, SUITES
from dnnffi.cli import bench, main, probe

RNN = SUITES["rnn"]
ONE = "tiny rnn"  # one shape of the set tiny
SHORT = ["bench", "rnn", "--device", "cpu", "--quick", "--rounds", "1", "--warm-up", "1"]


def failure(capsys) -> str:
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_bench_writes_its_record_and_picture(tmp_path, capsys):
    record, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    assert main([*SHORT, "--only", "tiny", "--json", str(record), "--plot", str(picture)]) == 0
    found = json.loads(record.read_text(encoding="utf-8"))
    assert found["machine"]["device"] == "CPU"
    assert found["settings"]["rounds"] == 1
    assert {tuple(shape["sets"]) for shape in found["shapes"]} == {("tiny",)}
    measured = [row for row in found["rows"] if "ms" in row]
    assert {row["shape"] for row in measured} == {shape["name"] for shape in found["shapes"]}
    assert {row["phase"] for row in measured} == {"inference", "training"}
    assert {"dnnffi", "array plain", "array layer norm"} <= {row["model"] for row in measured}
    assert not [row for row in found["rows"] if "failed" in row]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench.png"]
    out = capsys.readouterr().out
    assert f"Shapes: {RNN.naming}\n" in out
    assert "Forward + backward" in out
    assert f"Wrote {picture}" in out


def test_bench_beside_torch_shows_ratios(tmp_path, capsys):
    pytest.importorskip("torch")
    picture = tmp_path / "ratios.png"
    assert main([*SHORT, "--only", ONE, "--peers", "torch", "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "x torch eager" in out
    assert "dnnffi compared with torch eager, forward + backward" in out
    assert picture.exists()


def test_image_cnns_beside_torch(tmp_path, capsys):
    pytest.importorskip("torch")
    record, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    arguments = ["--json", str(record), "--plot", str(picture), "--peers", "torch"]
    assert main(["bench", "cnn", *SHORT[2:], "--only", "tiny resnet18", *arguments]) == 0
    found = json.loads(record.read_text(encoding="utf-8"))
    (shape,) = found["shapes"]
    assert (shape["arch"], shape["layout"], shape["sets"]) == (
        *("resnet18", "channels_first"),
        ["tiny"],
    )
    measured = {(row["model"], row["phase"]) for row in found["rows"] if "ms" in row}
    models = ("dnnffi", "torch eager", "torch traced")
    phases = ("inference", "training")
    assert measured == {(model, phase) for model in models for phase in phases}
    assert not [row for row in found["rows"] if "failed" in row]
    assert picture.read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "dnnffi compared with torch eager, forward + backward" in out
    assert "Not measured: dnnffi tuned, dnnffi captured, torch" in out


STREAM = ["bench", "stream", "--device", "cpu", "--quick"]


def test_streams_of_batches_write_their_record(tmp_path, capsys):
    record = tmp_path / "stream.json"
    assert main([*STREAM, "--json", str(record), "--only", "tiny"]) == 0
    found = json.loads(record.read_text(encoding="utf-8"))
    assert found["settings"] == {"rounds": 1, "batches": 16}
    assert [shape["name"] for shape in found["shapes"]] == [one.name for one in streams.TINY]
    assert {shape["num_batches"] for shape in found["shapes"]} == {16}
    assert found["shapes"][0]["epoch_seeds"] == [1, 2]
    assert {row["model"] for row in found["rows"]} == {"dnnffi", "tuned plan"}
    assert all(row["ms"] > 0 and row["first_epoch_s"] > 0 for row in found["rows"])
    out = capsys.readouterr().out
    assert "Streams: mode, dtype, shortest-longest row" in out
    assert "geometric mean, tiny" in out


def test_streams_beside_torch(capsys):
    pytest.importorskip("torch")
    assert main([*STREAM, "--peers", "torch", "--only", "tiny lstm*ragged", "--rounds", "2"]) == 0
    out = capsys.readouterr().out
    assert "x the better of PyTorch's" in out
    assert "torch packed" in out


def test_drawn_streams_have_their_seed_in_the_record(monkeypatch, tmp_path):
    monkeypatch.setattr(stream_runner.StreamRunner, "rows", lambda *_: [])
    record = tmp_path / "stream.json"
    assert main([*STREAM, "--shapes", "random", "--seed", "5", "--json", str(record)]) == 0
    found = json.loads(record.read_text(encoding="utf-8"))
    assert found["seed"] == 5
    names = [shape["name"] for shape in found["shapes"]]
    assert names == [stream.name for stream in streams.draw_streams(5)]


@pytest.mark.parametrize("kind", ["--conv", "--resets"])
def test_a_seed_of_streams_that_are_not_drawn_is_refused(kind, capsys):
    assert main([*STREAM, kind, "--seed", "0"]) == 2
    assert "--seed 0: for streams of " in failure(capsys)


def test_callers_write_their_record(tmp_path, capsys):
    record = tmp_path / "callers.json"
    arguments = ["bench", "callers", *SHORT[2:], "--json", str(record)]
    assert main(arguments) == 0
    found = json.loads(record.read_text(encoding="utf-8"))
    assert {row["model"] for row in found["rows"]} == {"dnnffi", "dnnffi new arrays"}
    assert all(row["host_us"] > 0 for row in found["rows"])
    assert "Forward + backward" in capsys.readouterr().out


def test_callers_beside_torch(capsys):
    pytest.importorskip("torch")
    assert main(["bench", "callers", *SHORT[2:], "--peers", "torch", "--only", "lstm"]) == 0
    out = capsys.readouterr().out
    assert "dnnffi torch flat" in out
    assert "empty autograd function" in out
    on_a_gpu = "dnnffi allocator, dnnffi torch module, one graph, torch graph"
    assert f"Not measured: {on_a_gpu} (needs a GPU: 1 shape)" in out


def test_streams_of_images_are_measured_instead(tmp_path, capsys):
    record = tmp_path / "stream.json"
    assert main([*STREAM, "--conv", "--rounds", "2", "--json", str(record)]) == 0
    found = json.loads(record.read_text(encoding="utf-8"))
    assert [shape["name"] for shape in found["shapes"]] == [one.name for one in image_streams.TINY]
    assert {shape["num_turns"] for shape in found["shapes"]} == {2}
    assert {row["model"] for row in found["rows"]} == {"dnnffi", "dnnffi tuned"}
    assert "Streams: dtype, smallest-largest height and width" in capsys.readouterr().out


def test_streams_with_resets_are_measured_instead(tmp_path, capsys):
    record = tmp_path / "stream.json"
    assert main([*STREAM, "--resets", "--json", str(record)]) == 0
    found = json.loads(record.read_text(encoding="utf-8"))
    assert [shape["name"] for shape in found["shapes"]] == [one.name for one in reset_streams.TINY]
    assert {tuple(shape["reset_rates"]) for shape in found["shapes"]} == {(0.01, 0.1)}
    models = {"dnnffi", "dnnffi resets 1%", "dnnffi resets 10%"}
    assert {row["model"] for row in found["rows"]} == models
    assert all(row["ms"] > 0 for row in found["rows"])
    out = capsys.readouterr().out
    assert "Streams: mode, dtype, steps, rows" in out
    assert "x dnnffi" in out


def test_streams_with_resets_beside_torch(capsys):
    pytest.importorskip("torch")
    arguments = ["--resets", "--peers", "torch", "--only", "tiny gru*training"]
    assert main([*STREAM, *arguments]) == 0
    out = capsys.readouterr().out
    assert "x torch eager" in out
    assert "dnnffi torch resets 10%" in out


def test_images_and_resets_exclude_each_other(capsys):
    with pytest.raises(SystemExit) as stop:
        main([*STREAM, "--conv", "--resets"])
    assert stop.value.code == 2
    assert "--resets: not allowed with argument --conv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--shapes", "everyday", "--conv"],
            "for streams of image batches, each with images of another size, choose from detection",
        ),
        (
            ["--shapes", "detection"],
            "for streams of batches, each with rows of other lengths, choose from everyday",
        ),
        (["--conv", "--peers", "jax"], "--peers jax: for streams of image batches, each with"),
        (["--shapes", "everyday", "--resets"], "states are reset between steps, choose from epis"),
        (["--peers", "torchrl"], "--peers torchrl: for streams of batches, each with"),
    ],
)
def test_sets_and_peers_of_the_other_kind_of_stream_are_refused(arguments, words, capsys):
    assert main([*STREAM, *arguments]) == 2
    assert words in failure(capsys)


@pytest.mark.parametrize("option", ["--plot", "--warm-up"])
def test_what_streams_do_not_have_is_refused(option, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*STREAM, option, "1"])
    assert stop.value.code == 2
    written = capsys.readouterr().err
    assert f"unrecognized arguments: {option}" in written
    assert "bench stream [-h]" in written  # the usage of this command


@pytest.mark.parametrize(
    "suite", [*SUITES.values(), IMAGE_STREAMS, RESET_STREAMS], ids=[*SUITES, "images", "resets"]
)
def test_each_part_of_a_name_is_explained(suite):
    for shape in chain(*suite.sets.values()):
        assert len(shape.name.split()) == len(suite.naming.split(", "))


def test_help_explains_a_name(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "rnn", "--help"])
    assert stop.value.code == 0
    assert "Example: 'lstm f32 100 64 512 512 1 uni'" in " ".join(capsys.readouterr().out.split())


def test_models_can_be_picked(capsys):
    assert main([*SHORT, "--only", "tiny lstm*1 uni", "--models", "array p*bias"]) == 0
    out = capsys.readouterr().out
    assert "array premultiplied bias" in out
    assert "array plain" not in out


def test_on_a_cpu_everything_is_measured_on_one_thread(monkeypatch):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    seen = []

    def rows(self, shape, creators):
        seen.extend(pool["num_threads"] for pool in threadpoolctl.threadpool_info())
        return []

    monkeypatch.setattr(runner.Runner, "rows", rows)
    with threadpoolctl.threadpool_limits(2):
        assert main([*SHORT, "--only", ONE]) == 0
    assert set(seen) == {1}


def test_other_models_only_on_their_sets(monkeypatch):
    asked = {}

    def rows(self, shape, creators):
        asked[shape.name] = [creator.name for creator in creators]
        return []

    monkeypatch.setattr(runner.Runner, "rows", rows)
    only = ["--only", "lstm f32 100 64 512 512 1 uni"]
    assert main([*SHORT, *only, "--shapes", "performance"]) == 0
    (names,) = asked.values()
    assert "dnnffi" in names
    assert not any(name.startswith("array") for name in names)
    assert main([*SHORT, *only, "--shapes", "performance,fastrnns"]) == 0
    (names,) = asked.values()
    assert "array plain" in names
    assert main([*SHORT, *only, "--shapes", "performance", "--models", "array *bias"]) == 0
    assert list(asked.values()) == [["array premultiplied bias"]]


def test_what_is_drawn_is_measured_beside_cudnn_alone(monkeypatch, tmp_path, capsys):
    asked = {}

    def rows(self, shape, creators):
        asked[shape] = [creator.name for creator in creators]
        return []

    monkeypatch.setattr(runner.Runner, "rows", rows)
    record = tmp_path / "bench.json"
    assert main([*SHORT, "--shapes", "random", "--seed", "7", "--json", str(record)]) == 0
    assert tuple(asked) == draw_shapes(7)
    assert set(chain(*asked.values())) == {"dnnffi", "dnnffi plan captured", "cudnn raw"}
    assert json.loads(record.read_text(encoding="utf-8"))["seed"] == 7
    assert "drawn from the seed 7" in capsys.readouterr().out
    assert main([*SHORT, "--shapes", "tiny", "--json", str(record)]) == 0
    assert "seed" not in json.loads(record.read_text(encoding="utf-8"))


def test_commands_of_the_makefile_and_the_pages_are_understood():
    root = Path(__file__).parents[2]
    texts = [
        path.read_text(encoding="utf-8") for path in (root / "Makefile", *root.glob("docs/*.md"))
    ]
    lines = "\n".join(texts).replace("\\\n", " ").replace("$(BENCH_ARGS)", "").splitlines()
    found = [line.partition("-m dnnffi bench ")[2] for line in lines if "-m dnnffi bench " in line]
    commands = [shlex.split(text.partition("`")[0], comments=True) for text in found]
    parser = bench.argparse.ArgumentParser()
    bench.add_arguments(parser)
    parsed = [parser.parse_args(command) for command in commands if command[1:]]
    assert len(parsed) > 8


def test_without_matplotlib_the_picture_is_skipped_and_the_rest_done(monkeypatch, tmp_path, capsys):
    absent = probe.absent
    monkeypatch.setattr(
        probe, "absent", lambda *names: [n for n in names if n == "matplotlib"] or absent(*names)
    )
    picture = tmp_path / "bench.png"
    assert main([*SHORT, "--only", ONE, "--plot", str(picture)]) == 0
    assert (
        "No picture is drawn: --plot needs matplotlib. Install: pip install"
        in capsys.readouterr().out
    )
    assert not picture.exists()


def broken(error):
    def create(shape, data, place, training):
        raise error

    return Creator("broken", "array", create, always=True)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [(MemoryError(), 0, "out of memory"), (ValueError("odd"), 1, "ValueError: odd")],
)
def test_a_failure_is_shown_and_the_run_goes_on(monkeypatch, capsys, error, code, words):
    creators = (broken(error), *array_models.CREATORS)
    monkeypatch.setattr(array_models, "CREATORS", creators)
    assert main([*SHORT, "--only", ONE]) == code
    out = capsys.readouterr().out
    assert f"Failed: broken on rnn_tanh f32 5 3 4 6 1 uni, inference: {words}" in out
    assert "array plain" in out


def test_interrupted_keeps_what_was_measured(monkeypatch, tmp_path, capsys):
    rows = runner.Runner.rows
    shapes = iter(["first"])

    def interrupted(self, shape, creators):
        if next(shapes, None) is None:
            raise KeyboardInterrupt
        return rows(self, shape, creators)

    monkeypatch.setattr(runner.Runner, "rows", interrupted)
    record = tmp_path / "bench.json"
    assert main([*SHORT, "--only", "tiny", "--json", str(record)]) == 130
    measured = {row["shape"] for row in json.loads(record.read_text(encoding="utf-8"))["rows"]}
    assert measured == {"lstm f32 5 3 4 6 1 uni"}
    assert "Inference" in capsys.readouterr().out


def test_only_written_files_are_reported(monkeypatch, tmp_path, capsys):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.Runner, "rows", interrupted)
    record, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    record.write_text("old")
    picture.write_text("old")
    files = ["--json", str(record), "--plot", str(picture)]
    assert main([*SHORT, "--only", ONE, *files]) == 130
    assert "Wrote" not in capsys.readouterr().out
    assert record.read_text() == picture.read_text() == "old"


def test_more_rounds_than_sizes_of_images_are_refused(capsys):
    (largest,) = {shape.max_turns for shape in IMAGE_STREAMS.sets["tiny"]}
    tiny = ["bench", "stream", "--conv", "--device", "cpu", "--quick", "--shapes", "tiny"]
    assert main([*tiny, "--rounds", str(largest + 1)]) == 2
    assert f"--rounds {largest + 1}: must be at most {largest} for " in failure(capsys)
    for shape in IMAGE_STREAMS.sets["tiny"]:
        assert len(shape.measured(2, largest).epochs(1).later) == largest
        with pytest.raises(ValueError, match="sizes are too few"):
            shape.measured(2, largest + 1).epochs(1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shapes", "huge"], "unknown set of shapes 'huge'; choose from performance, fastrnns"),
        (["--peers", "tensorflow"], "unknown peer 'tensorflow'; choose from torch, jax, none"),
        (["--rounds", "0"], "must be 1 or more; got 0"),
        (["--seed", "-1"], "must be 0 or more; got -1"),
        (["--warm-up", "many"], "invalid int value: 'many'"),
        (["--device", "tpu"], "invalid choice"),
    ],
)
def test_a_bad_argument_is_refused(arguments, words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "rnn", *arguments])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shapes", "fastrnns"], "unknown set of shapes 'fastrnns'; choose from imagenet, tiny"),
        (["--peers", "jax"], "unknown peer 'jax'; choose from torch, none"),
    ],
)
def test_what_only_recurrent_networks_have_is_refused(arguments, words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "cnn", *arguments])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("what", [["conv"], []])
def test_something_that_cannot_be_measured_is_refused(what, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", *what])
    assert stop.value.code == 2
    assert re.search(
        "invalid choice: 'conv'|WHAT is missing: choose from rnn, ", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "transformer"], "--only transformer: no shape of the set tiny contains this"),
        (["--only", ONE, "--models", "x"], "--models x: no model's name contains this"),
        (["--only", ONE, "--peers", "none,torch"], "--peers: none cannot be combined with others"),
        (["--only", ONE, "--json", "no/such/f"], "--json no/such/f: folder does not exist"),
        (["--only", ONE, "--plot", "."], "--plot .: is not a regular file but a folder"),
        (["--only", ONE, "--json", "f", "--plot", "./f"], "--json and --plot must name two files"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments, words, capsys):
    assert main([*SHORT, *arguments]) == 2
    assert words in failure(capsys)


# Existing files at the path

RUN = """
import sys
from dnnffi.cli import main
print(main(sys.argv[1:]))
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("kind", ["FIFO", "link"])
def test_only_a_regular_file_is_replaced(tmp_path, option, kind):
    path = tmp_path / "out"
    irregular.make(path, "character device" if kind == "link" else kind)
    before = os.lstat(path).st_ino
    code = f"import sys\nsys.stderr = sys.stdout{RUN}"
    told = bounded.run(code, *SHORT, "--only", ONE, option, path).splitlines()
    assert told == [
        f"dnnffi bench: error: {option} {path}: is not a regular file but a {kind}",
        "2",
    ], "nothing was measured"
    assert os.lstat(path).st_ino == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_device_is_not_replaced_by_root(tmp_path, option, capsys):
    path = tmp_path / "device"
    irregular.make_device(path)
    assert main([*SHORT, "--only", ONE, option, str(path)]) == 2
    assert failure(capsys).endswith("is not a regular file but a character device\n")
    assert path.is_char_device()


def test_a_link_beside_the_record_is_not_followed(tmp_path):
    victim, record = tmp_path / "victim", tmp_path / "bench.json"
    victim.write_text("precious")
    (tmp_path / "bench.json.new").symlink_to("victim")
    assert main([*SHORT, "--only", ONE, "--json", str(record)]) == 0
    assert victim.read_text() == "precious"
    assert json.loads(record.read_text(encoding="utf-8"))["rows"]


def test_a_record_may_have_a_long_name_and_keeps_the_permissions(tmp_path):
    record = tmp_path / ("n" * 250 + ".json")
    record.touch()
    record.chmod(0o600)
    assert main([*SHORT, "--only", ONE, "--json", str(record)]) == 0
    assert record.stat().st_mode & 0o777 == 0o600
    assert json.loads(record.read_text(encoding="utf-8"))["rows"]
    assert list(tmp_path.iterdir()) == [record]


def test_a_peer_that_is_not_installed_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(probe, "absent", lambda *names: list(names))
    assert main([*SHORT, "--only", ONE, "--peers", "jax"]) == 1
    message = failure(capsys)
    assert "--peers: jax not installed. Install: pip install " in message
    assert "[jax]" in message


def test_a_peer_that_is_no_extra_is_installed_by_its_name(monkeypatch, capsys):
    monkeypatch.setattr(probe, "absent", lambda *names: list(names))
    assert main([*STREAM, "--resets", "--peers", "torchrl"]) == 1
    message = failure(capsys)
    assert message.endswith("--peers: torchrl not installed. Install: pip install torchrl\n")
    assert main([*STREAM, "--resets", "--peers", "torch,torchrl"]) == 1
    message = failure(capsys)
    assert "torch and torchrl not installed. Install: pip install " in message
    assert re.search(r"\[torch\]\S* && pip install torchrl$", message)


def test_a_default_peer_that_is_not_installed_is_left_out_with_a_line(monkeypatch, capsys):
    monkeypatch.setattr(probe, "absent", lambda *names: ["jax", "torchrl"])
    assert bench._peers(RESET_STREAMS, None, "gpu") == ("torch",)
    assert capsys.readouterr().out == (
        "jax is skipped: not installed\ntorchrl is skipped: not installed\n"
    )


def test_a_peer_that_is_broken_is_refused_if_asked_for_and_else_left_out(monkeypatch, capsys):
    def broken(name):
        raise RuntimeError("half installed")

    monkeypatch.setattr(bench, "import_module", broken)
    monkeypatch.setattr(probe, "absent", lambda *names: [])
    monkeypatch.setattr(bench, "_same_device", lambda place: nullcontext())  # there is no GPU
    assert main([*SHORT, "--only", ONE, "--peers", "torch"]) == 1
    assert "--peers torch: half installed" in failure(capsys)
    assert bench._peer_creators(RNN, None, "gpu") == {}
    assert capsys.readouterr().out == (
        "torch is skipped: half installed\njax is skipped: half installed\n"
    )


@pytest.mark.parametrize("error", [None, RuntimeError("half installed")])
def test_a_peer_that_changes_the_current_device_finds_it_put_back(monkeypatch, error):
    current = [1]
    runtime = SimpleNamespace(getDevice=lambda: current[0], setDevice=partial(setitem, current, 0))
    cuda = SimpleNamespace(runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    expected = nullcontext() if error is None else pytest.raises(RuntimeError, match="half inst")
    with expected, bench._same_device("gpu"):
        current[0] = 3
        if error is not None:
            raise error
    assert current == [1]


def test_a_gpu_that_is_not_there_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(probe, "cudnn_problem", lambda: "GPU: none here")
    assert main(["bench", "rnn", "--device", "gpu"]) == 1
    assert "--device gpu: GPU: none here" in failure(capsys)


def test_defaults_by_place(monkeypatch):
    options = bench.argparse.Namespace(shapes=None, only=None, seed=0)
    assert set(bench._shapes(RNN, options, "gpu").values()) == {("performance",)}
    assert set(bench._shapes(RNN, options, "cpu").values()) == {("tiny",)}
    images = SUITES["cnn"]
    assert set(bench._shapes(images, options, "gpu").values()) == {("imagenet",)}
    assert set(bench._shapes(images, options, "cpu").values()) == {("tiny",)}
    options.only = "lstm"
    assert set(chain(*bench._shapes(RNN, options, "gpu").values())) == set(RNN.sets)
    assert set(bench._shapes(RNN, options, "cpu").values()) == {("tiny",)}
    monkeypatch.setattr(probe, "absent", lambda *names: ["jax"])
    assert bench._peers(RNN, None, "gpu") == ("torch",)
    assert bench._peers(RNN, None, "cpu") == ()
