"""PyTorch's models of streams on the CPU, against the reference."""

from __future__ import annotations

import pytest
from bench import stream_models
from bench.stream_models import (
    RESET_STREAMS,
    STREAMS,
    check_against_the_reference,
    check_dropout,
    fitting,
)

torch = pytest.importorskip("torch")

from dnnffi.bench.streams import torch_models  # noqa: E402 - it imports PyTorch

CASES = [(creator, name) for creator in torch_models.CREATORS for name in fitting(creator)]
LEAVES_PADDING = ("torch padded", "dnnffi torch module padded")


@pytest.fixture(autouse=True)
def learning_rate(monkeypatch):
    monkeypatch.setattr(torch_models, "LEARNING_RATE", stream_models.RATE)


@pytest.mark.parametrize(
    ("creator", "name"), CASES, ids=lambda value: getattr(value, "name", value)
)
def test_each_batch_gives_what_the_reference_gives(creator, name):
    padding = creator.name not in LEAVES_PADDING
    check_against_the_reference(creator.create, STREAMS[name], padding)


@pytest.mark.parametrize("name", RESET_STREAMS)
@pytest.mark.parametrize("creator", torch_models.RESET_CREATORS, ids=lambda creator: creator.name)
def test_each_batch_with_resets_gives_what_the_reference_gives(creator, name):
    check_against_the_reference(creator.create, RESET_STREAMS[name])


@pytest.mark.parametrize("creator", torch_models.CREATORS, ids=lambda creator: creator.name)
def test_outputs_between_layers_are_dropped(creator):
    check_dropout(creator.create)


@pytest.mark.parametrize("creator", torch_models.CREATORS, ids=lambda creator: creator.name)
def test_each_batch_has_memory_of_its_own(creator):
    stream = STREAMS["ragged"]
    data = stream.draw()
    model = creator.create(stream, data, "cpu", True)
    loaded = [model.load(batch) for batch in data.epochs.later]
    tensors = [tensor for one in loaded for tensor in (one.x, one.dy)]
    assert [tensor.requires_grad for tensor in tensors] == [True, False] * len(loaded)
    assert all(tensor.is_contiguous() for tensor in tensors)
    storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    assert len(storages) == len(tensors)


def test_the_weights_that_are_descended_are_those_that_are_read():
    stream = STREAMS["ragged"]
    data = stream.draw()
    model = torch_models.padded(stream, data, "cpu", True)
    batch = data.epochs.later[0]
    first, second = (model.step(model.load(batch)) for _ in range(2))
    assert not torch.equal(first.y, second.y)


def test_inference_records_no_gradients():
    stream = STREAMS["inference"]
    data = stream.draw()
    for creator in torch_models.CREATORS:
        model = creator.create(stream, data, "cpu", False)
        assert not model.step(model.load(data.epochs.later[0])).y.requires_grad


def test_dnnffi_has_a_first_epoch_in_each_turn_and_pytorch_once():
    for creator in torch_models.CREATORS:
        assert creator.tunes is creator.name.startswith("dnnffi")


def test_the_models_are_those_of_this_version():
    names = {creator.name for creator in torch_models.CREATORS}
    assert {"torch padded", "torch packed", "dnnffi torch"} <= names
    modules = {"dnnffi torch module padded", "dnnffi torch module packed"}
    assert modules <= names if hasattr(torch_models.dnnffi.torch, "LSTM") else not modules & names
