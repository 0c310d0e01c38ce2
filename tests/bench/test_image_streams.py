"""The rules of streams of images, and dnnffi's model on NumPy arrays."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from bench import stream_models

from dnnffi.bench.streams import image_models, model
from dnnffi.bench.streams.images import NUM_SHARES, SETS, ImageBatch, ImageStream

ALL = [stream for streams in SETS.values() for stream in streams]
TRAINED = ImageStream("float64", 8, 24, 3, 4, 2, 4, multiple=4, num_batches=4)


@pytest.fixture(autouse=True)
def learning_rate(monkeypatch):
    monkeypatch.setattr(model, "LEARNING_RATE", stream_models.RATE)


@pytest.mark.parametrize("stream", ALL, ids=lambda stream: stream.name)
def test_an_epoch_has_its_sizes_and_a_smaller_last_batch(stream):
    epochs = stream.epochs()
    assert len(epochs.later) == 3
    for turn, epoch in enumerate((*epochs.later, epochs.warm_up)):
        *full, last = epoch
        assert len(full) == 79
        assert {batch.images for batch in full} == {stream.batch}
        assert last.images == stream.batch // 2 + 1
        if turn < 3:
            assert epoch is epochs.of_turn(turn)
        for batch in epoch:
            for side in (batch.height, batch.width):
                assert stream.smallest <= side * stream.stride <= stream.largest
                assert side * stream.stride % stream.multiple == 0


@pytest.mark.parametrize("stream", ALL, ids=lambda stream: stream.name)
@pytest.mark.parametrize("num_turns", [1, 3, 5])
def test_no_size_of_an_epoch_occurs_in_another_one_of_the_layers(stream, num_turns):
    sizes = []
    for training, share in product((True, False), range(NUM_SHARES)):
        measured = replace(stream, training=training).measured(80, num_turns)
        epochs = measured.epochs(share)
        sizes += [
            {(batch.height, batch.width) for batch in epoch}
            for epoch in (epochs.warm_up, *epochs.later)
        ]
    assert len(sizes) == 2 * NUM_SHARES * (1 + num_turns)
    assert all(not one & other for one, other in combinations(sizes, 2))


def test_more_epochs_than_sizes_are_refused():
    stream = ImageStream("float32", 32, 64, 2, 4, 2, 4, num_turns=4)
    with pytest.raises(ValueError, match=r"9 sizes are too few for 20 epochs"):
        stream.epochs()


def test_the_detection_set_has_the_sizes_that_are_written_down():
    for stream in SETS["detection"]:
        assert (stream.smallest, stream.largest, stream.batch) == (320, 640, 8)
        assert (stream.multiple, stream.dtype) == (16, "float16")
        assert [size for _, _, size in stream.kernels] == [1, 3, 1]
    assert {stream.training for stream in SETS["detection"]} == {True, False}


def test_gradients_are_those_of_finite_differences():
    data = TRAINED.draw(seed=1)
    made = image_models.functions(TRAINED, data, "cpu", True)
    batch = ImageBatch(2, 3, 5)
    loaded = made.load(batch)
    results = made.step(loaded)
    inference = image_models.functions(TRAINED, data, "cpu", False)

    def loss(x, weights):
        other = image_models.functions(TRAINED, data._replace(weights=weights), "cpu", False)
        return float((other.step(image_models.Loaded(x, None)).y * loaded.dy).sum())

    np.testing.assert_allclose(inference.step(loaded).y, results.y)
    rng = np.random.default_rng(0)
    arrays = [loaded.x, *data.weights]
    for number, gradient in enumerate((results.dx, *results.dweights)):
        for _ in range(4):
            at = tuple(rng.integers(0, size) for size in arrays[number].shape)
            values = []
            for step in (1e-6, -1e-6):
                moved = [array.copy() for array in arrays]
                moved[number][at] += step
                values.append(loss(moved[0], moved[1:]))
            assert gradient[at] == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4, abs=1e-6)


def test_weights_change_before_a_batch_by_the_gradients_of_the_one_before():
    data = TRAINED.draw(seed=1)
    made = image_models.functions(TRAINED, data, "cpu", True)
    first, second = (made.load(batch) for batch in data.epochs.warm_up[:2])
    gradients = made.step(first).dweights
    weights = [w - stream_models.RATE * g for w, g in zip(data.weights, gradients, strict=True)]
    changed = image_models.functions(TRAINED, data._replace(weights=weights), "cpu", True)
    results, expected = made.step(second), changed.step(second)
    stream_models.close(results.y, expected.y)
    stream_models.close(results.dx, expected.dx)


def test_each_batch_has_memory_of_its_own_with_the_channels_last():
    data = TRAINED.draw()
    made = image_models.functions(TRAINED, data, "cpu", True)
    loaded = [made.load(batch) for batch in data.epochs.warm_up]
    arrays = [array for one in loaded for array in one]
    for array, other in combinations([*arrays, data.x, data.dy], 2):
        assert not np.shares_memory(array, other)
    assert all(array.transpose(0, 2, 3, 1).flags.c_contiguous for array in arrays)
    for one, batch in zip(loaded, data.epochs.warm_up, strict=True):
        shape = batch.images, TRAINED.channels, batch.height, batch.width
        assert one.x.shape == one.dy.shape == shape


def test_what_searches_is_measured_only_where_it_is_named():
    names = {creator.name: creator.always for creator in image_models.CREATORS}
    assert names == {"dnnffi": True, "dnnffi tuned": False}
