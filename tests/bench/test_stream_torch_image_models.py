"""PyTorch's models of image streams on the CPU, compared with dnnffi's on NumPy arrays."""

from __future__ import annotations

import pytest
from bench import stream_models
from bench.bench_models import host

torch = pytest.importorskip("torch")

from dnnffi.bench.streams import image_models, model, torch_models  # noqa: E402
from dnnffi.bench.streams import torch_image_models as models  # noqa: E402
from dnnffi.bench.streams.images import ImageStream  # noqa: E402


@pytest.fixture(autouse=True)
def learning_rate(monkeypatch):
    for module in (model, torch_models):
        monkeypatch.setattr(module, "LEARNING_RATE", stream_models.RATE)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("creator", models.CREATORS, ids=lambda creator: creator.name)
def test_each_batch_gives_what_dnnffi_gives(creator, training):
    stream = ImageStream("float64", 8, 24, 3, 4, 2, 4, training, multiple=4, num_batches=4)
    data = stream.draw(seed=1)
    made = creator.create(stream, data, "cpu", training)
    other = image_models.functions(stream, data, "cpu", training)
    for batch in data.epochs.warm_up:
        results, expected = made.step(made.load(batch)), other.step(other.load(batch))
        stream_models.close(host(results.y)[0], expected.y)
        if training:
            stream_models.close(host(results.dx)[0], expected.dx)
            for one, gradient in zip(host(results.dweights), expected.dweights, strict=True):
                stream_models.close(one, gradient)


def test_each_batch_has_memory_of_its_own_with_the_channels_last():
    stream = ImageStream("float32", 8, 24, 3, 4, 2, 4, multiple=4, num_batches=4)
    data = stream.draw()
    made = models.model(stream, data, "cpu", True)
    loaded = [made.load(batch) for batch in data.epochs.warm_up]
    tensors = [tensor for one in loaded for tensor in one]
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors)
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)


def test_a_model_sets_the_switch_of_pytorchs_search():
    stream = ImageStream("float32", 8, 24, 3, 4, 2, 4, multiple=4, num_batches=4)
    data = stream.draw()
    before = torch.backends.cudnn.benchmark
    try:
        for search in (True, False):
            made = models.model(stream, data, "cpu", True, search=search)
            made.step(made.load(data.epochs.warm_up[0]))
            assert torch.backends.cudnn.benchmark is search
    finally:
        torch.backends.cudnn.benchmark = before
