"""JAX's scan on buckets, on the CPU, against the reference."""

from __future__ import annotations

import pytest
from bench import stream_models
from bench.stream_models import (
    DROPOUT,
    RESET_STREAMS,
    STREAMS,
    check_against_the_reference,
)

jax = pytest.importorskip("jax")

from dnnffi.bench.streams import jax_models  # noqa: E402 - it imports JAX
from dnnffi.bench.streams.problems import Batch  # noqa: E402


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    monkeypatch.setattr(jax_models, "LEARNING_RATE", stream_models.RATE)
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", STREAMS)
def test_each_batch_gives_what_the_reference_gives(name):
    check_against_the_reference(jax_models.scan, STREAMS[name], padding=False)


@pytest.mark.parametrize("name", RESET_STREAMS)
def test_each_batch_with_resets_gives_what_the_reference_gives(name):
    (creator,) = jax_models.RESET_CREATORS
    check_against_the_reference(creator.create, RESET_STREAMS[name], padding=False)


def test_steps_and_rows_are_padded_to_a_bucket():
    stream = STREAMS["ragged"]
    model = jax_models.scan(stream, stream.draw(), "cpu", True)
    for lengths, steps in (((2, 3, 1, 2), 4), ((5, 1, 1), 8), ((9, 9, 1, 1), 9)):
        loaded = model.load(Batch(lengths))
        assert loaded.x.shape == (steps, stream.batch, stream.input_size)
        padded = lengths + (0,) * (stream.batch - len(lengths))
        for row, length in enumerate(padded):
            assert not loaded.x[length:, row].any()
            assert not loaded.dy[length:, row].any()


def test_batches_of_a_bucket_share_a_program(caplog):
    stream = STREAMS["inference"]
    model = jax_models.scan(stream, stream.draw(), "cpu", False)

    def compiled(lengths):
        caplog.clear()
        with jax.log_compiles():
            model.step(model.load(Batch(lengths)))
        return [one for one in caplog.messages if one.startswith("Compiling")]

    assert compiled((5, 6, 1, 1, 1))
    assert not compiled((8, 2, 3))
    assert compiled((3, 3, 3))


def test_dropout_is_refused_with_the_reason():
    (creator,) = jax_models.CREATORS
    assert creator.why_not(DROPOUT, creator.places[0]) == "no dropout"
