"""Streams in float64, and comparisons with the reference, for the tests of streams."""

from __future__ import annotations

import numpy as np
from bench.bench_models import host

import dnnffi
from dnnffi.bench.creator import Limits
from dnnffi.bench.streams.problems import Stream
from dnnffi.bench.streams.resets import ResetStream

RATE = 0.05
"""A learning rate at which a step that is left out is seen in the results."""

STREAMS = {
    "ragged": Stream("lstm", "float64", 1, 9, 4, 3, 5, layers=2, num_batches=4),
    "equal": Stream("gru", "float64", 2, 9, 3, 4, 6, ragged=False, num_batches=4),
    "inference": Stream("lstm", "float64", 1, 9, 5, 3, 4, training=False, num_batches=4),
    "one row": Stream(
        "rnn_tanh", "float64", 2, 9, 1, 3, 4, ragged=False, training=False, num_batches=4
    ),
}
DROPOUT = Stream("lstm", "float64", 3, 9, 40, 3, 20, layers=2, dropout=0.4, num_batches=3)
RESET_STREAMS = {
    f"{mode} {'training' if training else 'inference'}": ResetStream(
        *(mode, "float64", 20, 20, 6, 3, 5), training=training, num_batches=4
    )
    for mode in ("lstm", "gru")
    for training in (True, False)
}
"""Streams in which each epoch has resets at 1 % of the steps, too."""


def fitting(creator):
    """The streams that a creator takes."""
    limits = creator.limits or Limits()
    return [name for name, stream in STREAMS.items() if not limits.why_not(stream)]


def inside(batch):
    """[T, B, 1]: 1 up to the end of a row, then 0."""
    return (np.arange(batch.steps)[:, None] < np.array(batch.lengths)).astype(float)[..., None]


def expected(stream, data, rate, reset_rate=0.0):
    """y, dx and the gradients of the weights of each batch, by the reference, one row at a time."""
    weights = [array.copy() for array in data.weights]
    gradients = [np.zeros_like(array) for array in weights]
    forward = getattr(dnnffi, f"{stream.mode}_forward")
    for batch in data.epochs.later:
        if stream.training:
            weights = [w - rate * g for w, g in zip(weights, gradients, strict=True)]
        gradients = [np.zeros_like(array) for array in weights]
        y = np.zeros((batch.steps, batch.rows, stream.hidden_size))
        dx = np.zeros((batch.steps, batch.rows, stream.input_size))
        resets = batch.resets(reset_rate) if reset_rate else None
        for row, steps in enumerate(batch.lengths):
            only = (slice(steps), slice(row, row + 1))
            keywords = {"num_layers": stream.layers, "backend": "reference"}
            if resets is not None:
                keywords["resets"] = resets[only]
            y[only], _, context = forward(data.x[only], None, weights, **keywords)
            found = context.backward(data.dy[only])
            dx[only] = found.x
            for total, one in zip(gradients, found.weights, strict=True):
                total += one
        yield batch, y, dx, gradients


def check_against_the_reference(create, stream, padding=True, place="cpu"):
    """Each batch of an epoch; ``padding`` says whether y and dx are zeros beyond a row's end."""
    data = stream.draw(seed=1)
    model = create(stream, data, place, stream.training)
    for batch, y, dx, dweights in expected(stream, data, RATE, model.reset_rate):
        results = model.step(model.load(batch))
        mask = 1.0 if padding else inside(batch)
        close(cut(results.y, batch) * mask, y)
        if not stream.training:
            assert results.dx is None
            assert results.dweights is None
            continue
        close(cut(results.dx, batch) * mask, dx)
        for one, other in zip(host(results.dweights), dweights, strict=True):
            close(one, other)


def cut(array, batch):
    """The steps and rows of a batch, of an array that may be padded further."""
    (array,) = host(array)
    return array[: batch.steps, : batch.rows]


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)


def check_dropout(create):
    """Check that training drops outputs between the layers, and other ones in each batch."""
    data = DROPOUT.draw(seed=1)
    model = create(DROPOUT, data, "cpu", True)
    first = data.epochs.later[0]
    one, other = (cut(model.step(model.load(first)).y, first) for _ in range(2))
    _, y, _, _ = next(expected(DROPOUT, data, 0.0))
    difference = abs(one - y).max()
    assert difference > 1e-3
    assert abs(one - other).max() > 1e-3
