"""The benchmark on a GPU: its models against each other, its clocks, and the command."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from bench.bench_models import SHAPES, fitting, host, run
from comparison import assert_near

from dnnffi.bench import array_models, clocks, image_models, raw_models, relu
from dnnffi.bench.images import ImageShape
from dnnffi.bench.shapes import Shape
from dnnffi.bench.streams import array_models as stream_models
from dnnffi.bench.streams.comparison import Comparison
from dnnffi.bench.streams.resets import ResetStream
from dnnffi.cli import main
from dnnffi.device.arrays import in_layout

pytestmark = pytest.mark.gpu

DROPOUT = "array dropout"  # draws other masks on each
CASES = [
    (creator, name)
    for creator in (*array_models.CREATORS, *raw_models.CREATORS)
    for name in fitting(creator)
    if creator.name != DROPOUT
]


@pytest.fixture(autouse=True)
def cupy():
    module = pytest.importorskip("cupy")
    if not module.cuda.is_available():
        pytest.skip("no GPU")
    return module


def results(create, shape, place, training=True):
    """y, states and, in training, all gradients, on the host."""
    outputs, gradients = run(create, shape, place=place, training=training)
    return host([*outputs[:2], *(gradients or ())])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(
    ("creator", "name"), CASES, ids=lambda value: getattr(value, "name", value)
)
def test_cupy_gives_what_numpy_gives(creator, name, dtype):
    shape = replace(SHAPES[name], dtype=dtype)
    limit = {"float64": 1e-9, "float32": 5e-3, "float16": 5e-2}[dtype]  # float32 may be TF32
    on_host = creator if "cpu" in creator.places else array_models.CREATORS[0]
    found, expected = results(creator.create, shape, "gpu"), results(on_host.create, shape, "cpu")
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, limit)


@pytest.mark.parametrize("mode", ["gru", "lstm"])
@pytest.mark.parametrize("creator", stream_models.RESET_CREATORS, ids=lambda creator: creator.name)
def test_a_batch_with_resets_on_cupy_gives_what_numpy_gives(creator, mode):
    stream = ResetStream(mode, "float32", 30, 30, 8, 16, 32)
    data = stream.draw(seed=1)
    compared = Comparison()
    for place in ("cpu", "gpu"):
        model = creator.create(stream, data, place, True)
        compared.check(place, model, data.epochs.later[0])


def test_peak_memory_of_cupy_is_that_of_the_call(cupy):
    clock = clocks.CupyClock()
    kept = cupy.zeros(1 << 20, "uint8")
    before = clock.used()

    def call():
        for _ in range(3):
            cupy.empty(4 << 20, "uint8")  # freed before the next
        both = cupy.empty(4 << 20, "uint8"), cupy.empty(2 << 20, "uint8")
        return len(both)

    assert clock.peak(call) - before == 6 << 20
    assert clock.used() == before
    assert kept.size == 1 << 20


def test_a_clock_takes_times_of_the_device(cupy):
    a = cupy.ones((2048, 2048), "float32")
    clock = clocks.CupyClock()
    clock.time(lambda: a @ a, 3)
    ms, host_us = clock.time(lambda: a @ a, 20)
    assert host_us > 0
    assert ms > 0


@pytest.mark.parametrize("training", [False, True])
def test_a_graph_of_torch_gives_what_torch_gives(training):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    from dnnffi.bench import torch_models

    shape = Shape("lstm", "float32", 5, 3, 4, 8, layers=2)
    eager, graph = (
        results(create, shape, "gpu", training)
        for create in (torch_models.eager, torch_models.captured)
    )
    assert len(eager) == (3 + 3 + 8 if training else 3)
    for one, other in zip(eager, graph, strict=True):
        assert_near(one, other, 1e-3)


IMAGES = {
    "resnet18": ImageShape("resnet18", "float64", "channels_first", 4, 40, width=16),
    "resnet50": ImageShape("resnet50", "float64", "channels_last", 4, 40, width=16),
}


def image_results(create, shape, place, training=True):
    """The scores and, in training, all gradients, on the host, in float64."""
    outputs, gradients = create(shape, shape.draw(seed=1), place, training).once()
    return [array.astype("float64") for array in host([outputs[0], *(gradients or ())])]


def check_images(found, expected, *, rounded=False):
    """Every array to the last digits; where much is rounded the scores, and gradients coarsely.

    By rounding a ReLU near 0 lets a gradient through or not. In float16 on NumPy that puts most
    gradients off by hundredths, and the scores by a thousandth.
    """
    assert [one.shape for one in found] == [one.shape for one in expected]
    off = [
        np.linalg.norm(one - other) / np.linalg.norm(other)
        for one, other in zip(found, expected, strict=True)
    ]
    if not rounded:
        assert max(off) <= 1e-9
        return
    assert off[0] <= 0.01
    assert np.median(off) <= 0.15


# Searching takes long, and is the same for all.
@pytest.mark.parametrize(
    ("creator", "arch", "dtype"),
    [
        (creator, arch, dtype)
        for creator in image_models.CREATORS
        for arch in IMAGES
        for dtype in ("float64", "float32", "float16")
        if creator.name == "dnnffi" or (arch, dtype) == ("resnet18", "float32")
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_image_cnns_on_cupy_give_what_numpy_gives(creator, arch, dtype):
    exact = IMAGES[arch]
    rounded = dtype != "float64"  # float32 may be TF32
    expected = image_results(image_models.functions, exact, "cpu")
    shape = replace(exact, dtype=dtype)
    check_images(image_results(creator.create, shape, "gpu"), expected, rounded=rounded)
    check_images(image_results(creator.create, shape, "gpu", False), expected[:1], rounded=rounded)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_kernel_of_a_relu_is_what_numpy_computes(cupy, dtype, channels_last):
    rng = np.random.default_rng(0)
    on_host = [rng.standard_normal((2, 3, 5, 6)).astype(dtype) for _ in range(3)]
    on_gpu = [in_layout(cupy.asarray(one), channels_last=channels_last) for one in on_host]
    means = rng.standard_normal((2, 3, 1, 1)).astype(dtype)
    for count in (1, 2):
        found = relu.relu_backward(cupy, *on_gpu[: 1 + count])
        assert found.strides == on_gpu[0].strides
        expected = relu.relu_backward(np, *on_host[: 1 + count])
        np.testing.assert_array_equal(found.get(), expected)
    found = relu.relu_backward(cupy, on_gpu[0], cupy.asarray(means))
    np.testing.assert_array_equal(found.get(), relu.relu_backward(np, on_host[0], means))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["torch benchmark", "torch traced", "torch graph"])
def test_image_cnns_of_torch_give_what_torch_gives(name, training):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    from dnnffi.bench import torch_image_models

    (creator,) = [one for one in torch_image_models.CREATORS if one.name == name]
    expected = image_results(torch_image_models.eager, IMAGES["resnet18"], "gpu", training)
    found = image_results(creator.create, IMAGES["resnet18"], "gpu", training)
    check_images(found, expected)


def test_image_cnns_by_the_command_on_a_gpu(tmp_path):
    record = tmp_path / "bench.json"
    arguments = ["--quick", "--rounds", "1", "--only", "tiny", "--json", str(record)]
    assert main(["bench", "cnn", "--device", "gpu", *arguments]) == 0
    rows = json.loads(record.read_text(encoding="utf-8"))["rows"]
    assert not [row for row in rows if "failed" in row]
    for creator in image_models.CREATORS:
        measured = [row for row in rows if row["model"] == creator.name]
        assert len(measured) == 4  # two shapes, two phases
        assert all(row["ms"] > 0 and row["peak_bytes"] > 0 for row in measured)


def test_the_command_on_a_gpu(tmp_path):
    record = tmp_path / "bench.json"
    arguments = ["--quick", "--rounds", "1", "--only", "tiny", "--json", str(record)]
    assert main(["bench", "rnn", "--device", "gpu", *arguments]) == 0
    rows = json.loads(record.read_text(encoding="utf-8"))["rows"]
    assert not [row for row in rows if "failed" in row]
    measured = [row for row in rows if row["model"] == "dnnffi"]
    assert len(measured) == 10  # five shapes, two phases
    assert all(row["ms"] > 0 and row["host_us"] > 0 and row["peak_bytes"] > 0 for row in measured)
    assert all(row["about"]["algorithm"] for row in measured)
    raw = [row["about"]["algorithms"]["standard"] for row in rows if row["model"] == "cudnn raw"]
    assert len(raw) == 10
    assert all(one["workspace_bytes"] > 0 for one in raw)  # a far slower one has no "ms"
