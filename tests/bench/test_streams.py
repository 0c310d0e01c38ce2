"""The rules of streams, their ranges, and dnnffi's models on NumPy arrays."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from bench import stream_models
from bench.stream_models import (
    RESET_STREAMS,
    STREAMS,
    check_against_the_reference,
    check_dropout,
)

from dnnffi.bench.streams import array_models, model, problems
from dnnffi.bench.streams.problems import SETS, Stream, draw_streams

ALL = [stream for streams in SETS.values() for stream in streams]


@pytest.fixture(autouse=True)
def learning_rate(monkeypatch):
    monkeypatch.setattr(model, "LEARNING_RATE", stream_models.RATE)


# Ranges


@pytest.mark.parametrize("stream", ALL, ids=lambda stream: stream.name)
def test_an_epoch_has_its_ranges_and_a_smaller_last_batch(stream):
    for epoch in stream.epochs():
        assert len(epoch) == 80
        *full, last = epoch
        assert {batch.rows for batch in full} == {stream.batch}
        assert last.rows == min(stream.batch, stream.batch // 2 + 1)
        lengths = [steps for batch in epoch for steps in batch.lengths]
        assert stream.shortest <= min(lengths) <= max(lengths) <= stream.longest
        if not stream.ragged:
            assert all(len(set(batch.lengths)) == 1 for batch in epoch)


@pytest.mark.parametrize("stream", ALL, ids=lambda stream: stream.name)
def test_no_pair_of_the_later_epoch_occurs_in_the_warm_up(stream):
    warm_up, later = (
        {(batch.steps, batch.lengths) for batch in epoch} for epoch in stream.epochs()
    )
    assert not warm_up & later


@pytest.mark.parametrize("seed", range(20))
def test_no_pair_is_in_both_epochs_of_what_any_seed_draws(seed):
    for stream in draw_streams(seed):
        warm_up, later = stream.epochs()
        assert not set(warm_up) & set(later)


def test_a_range_that_is_too_small_for_two_epochs_is_refused():
    for ragged in (True, False):
        stream = Stream("lstm", "float32", 3, 3, 2, 4, 5, ragged=ragged)
        with pytest.raises(ValueError, match=r"3-3 2 4 5 .*: the range of lengths is too small"):
            stream.epochs()


def test_equal_rows_take_steps_from_both_halves_and_ragged_ones_many_lengths():
    equal = Stream("lstm", "float32", 5, 100, 1, 256, 256, ragged=False)
    first, later = ({batch.steps for batch in epoch} for epoch in equal.epochs())
    assert min(len(first), len(later)) > 30
    assert abs(np.mean(list(first)) - np.mean(list(later))) < 15
    ragged = Stream("lstm", "float32", 10, 150, 32, 256, 256)
    lengths = [steps for batch in ragged.epochs().later for steps in batch.lengths]
    assert 55 < np.median(lengths) < 70  # around 160 / 2.6
    assert lengths.count(150) > 20  # clipped


def test_the_figures_of_drawn_epochs_are_theirs():
    epochs = STREAMS["ragged"].epochs()
    lengths = [np.array(batch.lengths) for batch in epochs.later]
    assert epochs.mean_steps == round(np.mean([one.max() for one in lengths]))
    filled = sum(one.sum() for one in lengths) / sum(one.max() * len(one) for one in lengths)
    assert epochs.filled == pytest.approx(filled)
    assert STREAMS["ragged"].as_json()["mean_steps"] == epochs.mean_steps


def test_the_everyday_set_has_the_ranges_that_were_measured_first():
    names = [stream.name for stream in SETS["everyday"]]
    assert names == [
        "lstm f16 10-150 32 512 512 2 0 ragged training",
        "lstm f16 10-150 32 512 512 2 0.2 ragged training",
        "lstm f16 10-150 32 512 512 2 0 equal training",
        "gru f32 5-60 64 128 256 1 0 ragged training",
        "lstm f16 20-200 16 512 1024 1 0 ragged inference",
        "lstm f32 5-100 1 256 256 1 0 equal inference",
    ]


def test_drawn_streams_have_the_ranges_that_are_written_down():
    for seed in range(5):
        streams = draw_streams(seed)
        assert len(streams) == 20
        counts = {mode: sum(one.mode == mode for one in streams) for mode in ("lstm", "gru")}
        assert counts == {"lstm": 9, "gru": 7}
        assert sum(one.dtype == "bfloat16" for one in streams) == 3
        assert sum(one.training for one in streams) == 13
        assert sum(one.layers == 1 for one in streams) == 12
        assert sum(one.ragged for one in streams) <= 13
        for one in streams:
            assert 30 <= one.longest <= 300
            assert 1 <= one.shortest <= one.longest // 4
            assert 1 <= one.batch <= 128
            assert one.batch > 1 or not one.ragged
            assert 8 <= one.input_size <= 1024
            assert 32 <= one.hidden_size <= 1024
            assert one.layers * one.longest <= problems.MAX_LAYER_STEPS
    assert draw_streams(1) == draw_streams(1)
    assert draw_streams(1) != draw_streams(2)


# Models


@pytest.mark.parametrize("name", STREAMS)
def test_functions_give_what_the_reference_gives_after_each_descent(name):
    check_against_the_reference(array_models.functions, STREAMS[name])


@pytest.mark.parametrize("name", RESET_STREAMS)
@pytest.mark.parametrize("creator", array_models.RESET_CREATORS, ids=lambda creator: creator.name)
def test_functions_with_resets_give_what_the_reference_gives(creator, name):
    check_against_the_reference(creator.create, RESET_STREAMS[name])


def test_functions_drop_outputs_between_layers():
    check_dropout(array_models.functions)


@pytest.mark.parametrize("name", ["ragged", "equal"])
def test_weights_change_before_a_batch_by_the_gradient_of_the_one_before(name, monkeypatch):
    steps = []
    descend = array_models.descend

    def note(xp, weights, gradient):
        steps.append((weights, weights.copy(), gradient.copy()))
        descend(xp, weights, gradient)

    monkeypatch.setattr(array_models, "descend", note)
    stream = STREAMS[name]
    data = stream.draw()
    for create in (array_models.functions, array_models.tuned_plan):
        steps.clear()
        made = create(stream, data, "cpu", True)
        found = [made.step(made.load(batch)) for batch in data.epochs.later[:3]]
        assert len(steps) == 3
        assert not steps[0][2].any()
        assert len({id(weights) for weights, _, _ in steps}) == 1
        for (_, before, gradient), (_, after, _) in pairwise(steps):
            np.testing.assert_array_equal(after, before - stream_models.RATE * gradient)
        np.testing.assert_array_equal(steps[2][2], found[1].dweights.flat)


def test_inference_changes_no_weights(monkeypatch):
    monkeypatch.setattr(array_models, "descend", None)
    stream = STREAMS["inference"]
    data = stream.draw()
    for create in (array_models.functions, array_models.tuned_plan):
        made = create(stream, data, "cpu", False)
        assert made.step(made.load(data.epochs.later[0])).y.shape[-1] == stream.hidden_size


def test_each_batch_has_memory_of_its_own():
    stream = STREAMS["ragged"]
    data = stream.draw()
    made = array_models.functions(stream, data, "cpu", True)
    loaded = [made.load(batch) for batch in data.epochs.later]
    arrays = [array for one in loaded for array in (one.x, one.dy)]
    sources = [data.x, data.dy]
    for number, array in enumerate(arrays):
        assert array.flags.c_contiguous
        others = arrays[:number] + sources
        assert not any(np.shares_memory(array, other) for other in others)


def test_the_tuned_plan_is_of_the_mean_steps_and_full_rows():
    stream = STREAMS["ragged"]
    data = stream.draw()
    made = array_models.tuned_plan(stream, data, "cpu", True)
    results = [made.step(made.load(batch)) for batch in data.epochs.later]
    mean = data.epochs.mean_steps
    assert {one.y.shape for one in results} == {(mean, stream.batch, stream.hidden_size)}
    assert {one.dx.shape for one in results} == {(mean, stream.batch, stream.input_size)}


def test_the_functions_have_a_first_epoch_in_each_turn_and_the_plan_once():
    assert [(one.name, one.tunes) for one in array_models.CREATORS] == [
        ("dnnffi", True),
        ("tuned plan", False),
    ]


def test_numbers_of_sixteen_bits_are_descended_in_place():
    for dtype in ("float16", "bfloat16"):
        stream = Stream("gru", dtype, 2, 9, 2, 4, 6, num_batches=3)
        data = stream.draw()
        made = array_models.functions(stream, data, "cpu", True)
        for batch in data.epochs.later:
            results = made.step(made.load(batch))
        assert results.dweights.flat.dtype.name == dtype
