"""The example of voice activity: a network like Silero's with random weights, streams, segments."""

from __future__ import annotations

import runpy
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

PATH = Path(__file__).parents[2] / "examples" / "voice_activity.py"
EXAMPLE = runpy.run_path(str(PATH))
CONVOLUTIONS = ((129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1))
"""Channels before and after, and stride, of the encoder's convolutions."""


def model_of(seed=0):
    """The graph of silero-vad's `_sequence.onnx` with random weights: T chunks, one stream."""
    rng = np.random.default_rng(seed)

    def floats(*shape):
        scale = (3 / np.prod(shape[1:])) ** 0.5
        return (scale * rng.uniform(-1, 1, shape)).astype("float32")

    pads, nodes = np.array([0, 0, 0, 64]), []
    arrays = {"pads": pads, "axis": np.array([1]), "basis": floats(258, 1, 256)}
    arrays |= {"parts": np.array([129, 129]), "flat": np.array([-1])}

    def add(operator, inputs, output, **attributes):
        nodes.append(helper.make_node(operator, inputs.split(), output.split(), **attributes))

    add("Pad", "input pads", "padded", mode="reflect")
    add("Unsqueeze", "padded axis", "image")
    add("Conv", "image basis", "spectrum", strides=[128])
    add("Split", "spectrum parts", "real imag", axis=1)
    add("Mul", "real real", "real2")
    add("Mul", "imag imag", "imag2")
    add("Add", "real2 imag2", "power")
    add("Sqrt", "power", "x0")
    for at, (before, after, stride) in enumerate(CONVOLUTIONS):
        arrays |= {f"w{at}": floats(after, before, 3), f"b{at}": floats(after) / 3}
        add("Conv", f"x{at} w{at} b{at}", f"y{at}", strides=[stride], pads=[1, 1])
        add("Relu", f"y{at}", f"x{at + 1}")
    add("Transpose", "x4", "steps", perm=[0, 2, 1])
    arrays |= {"W": 60 * floats(1, 512, 128), "R": 30 * floats(1, 512, 128), "B": floats(1, 1024)}
    inputs = ["steps", "W", "R", "B", "", "h", "c"]
    nodes.append(helper.make_node("LSTM", inputs, ["y", "hn", "cn"], name="LSTM", hidden_size=128))
    arrays |= {"out": 8 * floats(1, 128, 1), "bias": floats(1)}
    add("Squeeze", "y axis", "squeezed")
    add("Relu", "squeezed", "rectified")
    add("Transpose", "rectified", "last", perm=[1, 2, 0])
    add("Conv", "last out bias", "logits")
    add("Sigmoid", "logits", "sigmoid")
    add("Reshape", "sigmoid flat", "speech_probs")
    state = [1, 1, 128]
    inputs = {"input": ["T", 576], "h": state, "c": state}
    outputs = {"speech_probs": ["T"], "hn": state, "cn": state}
    infos = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in group]
        for group in (inputs.items(), outputs.items())
    ]
    tensors = [numpy_helper.from_array(one, name) for name, one in arrays.items()]
    graph = helper.make_graph(nodes, "like Silero's", *infos, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def frames_of(chunks):
    """Return the inputs of the model: each chunk [512] with the 64 samples before it."""
    before = np.concatenate([np.zeros((1, 64), "float32"), chunks[:-1, -64:]])
    return np.concatenate([before, chunks], axis=1)


def in_branch(model):
    """The same network in a branch, with weights in nodes Constant, as in silero_vad.onnx."""
    graph = model.graph
    constants = [
        helper.make_node("Constant", [], [one.name], value=one) for one in graph.initializer
    ]
    for one in constants:
        one.attribute[0].t.name = ""
    outputs = [one.name for one in graph.output]
    branch = helper.make_graph([*constants, *graph.node], "16 kHz", [], graph.output)
    choice = helper.make_node("If", ["is_16k"], outputs, then_branch=branch, else_branch=branch)
    inputs = [*graph.input, helper.make_tensor_value_info("is_16k", TensorProto.BOOL, [])]
    return helper.make_model(helper.make_graph([choice], "both", inputs, graph.output))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(model_of(), found)
    return found


@pytest.fixture(scope="module")
def network(path):
    return EXAMPLE["read_network"](path)


@pytest.fixture(scope="module")
def chunks():
    return EXAMPLE["chunks_of"](EXAMPLE["synthetic_speech"](3)[20000:26000])


@pytest.fixture(scope="module")
def expected(chunks):
    state = np.zeros((1, 1, 128), "float32")
    feeds = {"input": frames_of(chunks), "h": state, "c": state}
    return ReferenceEvaluator(model_of()).run(["speech_probs"], feeds)[0]


def test_streamed_chunks_have_the_probabilities_of_onnx(network, chunks, expected):
    found, _ = EXAMPLE["run"](network, chunks, 1)
    assert expected.std() > 0.01
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-5)


def test_chunks_at_once_have_the_same_probabilities(network, chunks, expected):
    frames = np.zeros((len(chunks), 640), "float32")
    EXAMPLE["fill"](frames, frames_of(chunks)[:, :64], chunks)
    found, _ = network.probabilities(frames[:, None], None)
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-5)


def test_streams_do_not_depend_on_each_other(network, chunks, expected):
    found, _ = EXAMPLE["run"](network, chunks, len(chunks) + 5)
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-5)
    silence = np.zeros((1, 512), "float32")
    streams = EXAMPLE["Streams"](network, 2)
    for chunk, probability in zip(chunks, expected, strict=True):
        both = streams.add(np.concatenate([silence, chunk[None]]))
        np.testing.assert_allclose(both[1], probability, atol=1e-5)


def test_a_model_with_its_network_in_a_branch_is_read(network, tmp_path, chunks):
    path = tmp_path / "branch.onnx"
    onnx.save(in_branch(model_of()), path)
    other = EXAMPLE["read_network"](path)
    found = [EXAMPLE["run"](one, chunks[:2], 1)[0] for one in (network, other)]
    np.testing.assert_array_equal(*found)


def test_a_model_without_such_a_network_is_named(tmp_path):
    path = tmp_path / "other.onnx"
    model = model_of()
    del model.graph.node[3:]
    onnx.save(model, path)
    with pytest.raises(SystemExit, match=r"other\.onnx has no network of Silero VAD for 16 kHz"):
        EXAMPLE["read_network"](path)


def test_a_file_that_is_no_model_is_named(tmp_path):
    path = tmp_path / "text.onnx"
    path.write_text("text")
    with pytest.raises(SystemExit, match=r"text\.onnx cannot be read as an ONNX model"):
        EXAMPLE["read_network"](path)
    with pytest.raises(SystemExit, match=r"none\.onnx cannot be read as an ONNX model"):
        EXAMPLE["read_network"](tmp_path / "none.onnx")


def test_the_missing_package_onnx_is_named(monkeypatch, path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(SystemExit, match="needs the package onnx: pip install onnx"):
        EXAMPLE["read_network"](path)


def test_the_missing_model_is_named(monkeypatch):
    def none(name):
        raise EXAMPLE["PackageNotFoundError"](name)

    monkeypatch.setitem(EXAMPLE["installed_model"].__globals__, "files", none)
    with pytest.raises(SystemExit, match=r"^No model: pip install --no-deps silero-vad==6\.2\.3, "):
        EXAMPLE["installed_model"]()


def test_the_missing_package_cupy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(SystemExit, match=r"--device gpu needs CuPy and cuDNN: pip install"):
        EXAMPLE["arrays_on"]("gpu")


def test_segments_begin_and_end_by_their_thresholds():
    # 0.4 is neither below 0.35 nor speech: it ends nothing, and begins nothing.
    probabilities = [0.4, *[0.9] * 10, 0.4, *[0.9] * 5, *[0.1] * 4, 0.4, *[0.9] * 3, *[0.0] * 9]
    found = list(EXAMPLE["segments"](probabilities))
    assert found == [(0.032, pytest.approx(17 * 0.032))]


def test_a_short_silence_is_part_of_speech():
    found = list(EXAMPLE["segments"]([*[0.9] * 10, *[0.1] * 3, *[0.9] * 10]))
    assert found == [(0, pytest.approx(23 * 0.032))]


def test_the_last_chunk_is_filled_with_zeros():
    found = EXAMPLE["chunks_of"](np.ones(513, "float32"))
    assert found.shape == (2, 512)
    assert found.sum() == 513


def write_wav(path, samples, channels=1, width=2, rate=16000):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())


def test_a_recording_is_read(tmp_path):
    samples = np.array([0, 16384, -32768], "<i2")
    write_wav(tmp_path / "a.wav", samples)
    assert EXAMPLE["read_wav"](tmp_path / "a.wav").tolist() == [0, 0.5, -1]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ({"channels": 2}, "2 of 16 bits at 16000"),
        ({"width": 1}, "1 of 8 bits"),
        ({"rate": 8000}, "8000"),
    ],
)
def test_a_recording_of_another_format_is_refused(format, text, tmp_path):
    path = tmp_path / "a.wav"
    write_wav(path, np.zeros(4, "<i2"), **format)
    with pytest.raises(SystemExit, match=rf"got .*{text}.*ffmpeg -i .*a\.wav"):
        EXAMPLE["read_wav"](path)


def test_a_recording_that_was_cut_ends_with_its_last_whole_sample(tmp_path):
    path = tmp_path / "a.wav"
    write_wav(path, np.array([16384, 1], "<i2"))
    path.write_bytes(path.read_bytes()[:-1])
    assert EXAMPLE["read_wav"](path).tolist() == [0.5]


def test_a_recording_without_samples_is_named(tmp_path):
    write_wav(tmp_path / "a.wav", np.zeros(0, "<i2"))
    with pytest.raises(SystemExit, match=r"a\.wav has no samples"):
        EXAMPLE["read_wav"](tmp_path / "a.wav")


def test_a_file_that_is_no_recording_is_named(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    with pytest.raises(SystemExit, match=r"a\.wav cannot be read as WAV"):
        EXAMPLE["read_wav"](tmp_path / "a.wav")


def ran(*arguments):
    return subprocess.run(
        [sys.executable, PATH, *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_as_a_program(path, tmp_path):
    samples = EXAMPLE["synthetic_speech"](1.0)
    write_wav(tmp_path / "a.wav", (32767 * np.clip(samples, -1, 1)).astype("<i2"))
    done = ran(tmp_path / "a.wav", "--model", path, "--streams", 2)
    assert "a.wav: 1.00 s; speech" in done.stdout, done.stderr
    assert "2 streams on numpy: " in done.stdout


def test_there_is_at_least_one_stream(path):
    done = ran("--model", path, "--streams", 0)
    assert done.returncode == 2
    assert "argument --streams: must be at least 1; got 0" in done.stderr
