"""The rules of streams with resets, and the comparison of results before they are timed."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from bench.stream_models import RESET_STREAMS

from dnnffi.bench.creator import Creator
from dnnffi.bench.streams import array_models, comparison
from dnnffi.bench.streams.comparison import Comparison
from dnnffi.bench.streams.model import Results, StreamModel
from dnnffi.bench.streams.resets import RESET_RATES, SETS
from dnnffi.bench.streams.runner import Settings, StreamRunner

ALL = [stream for streams in SETS.values() for stream in streams]
STREAM = RESET_STREAMS["gru training"]
BATCH = STREAM.epochs().warm_up[0]


# Flags


@pytest.mark.parametrize("stream", ALL, ids=lambda stream: stream.name)
def test_all_batches_have_the_same_t_and_a_seed_of_their_own(stream):
    warm_up, later = stream.epochs()
    batches = warm_up + later
    assert {steps for batch in batches for steps in batch.lengths} == {stream.longest}
    assert len({batch.seed for batch in batches}) == len(batches) == 160


@pytest.mark.parametrize("rate", RESET_RATES)
def test_flags_are_true_at_the_rate(rate):
    flags = SETS["episodes"][0].epochs().later[0].resets(rate)
    assert flags.shape == (128, 256)
    assert flags.mean() == pytest.approx(rate, rel=0.1)


def test_a_batch_has_the_same_flags_in_each_call():
    np.testing.assert_array_equal(BATCH.resets(0.1), BATCH.resets(0.1))


def test_batches_have_different_flags():
    first, second = STREAM.epochs().later[:2]
    assert (first.resets(0.1) != second.resets(0.1)).any()


def test_the_episodes_are_four_networks_in_two_dtypes_and_both_phases():
    names = [stream.name for stream in SETS["episodes"]]
    networks = ("gru", "128 256 128 128"), ("lstm", "128 256 256 256")
    networks += ("lstm", "80 32 512 512"), ("gru", "64 16 1024 1024")
    assert names == [
        f"{mode} {dtype} {sizes} {phase}"
        for mode, sizes in networks
        for dtype in ("f16", "f32")
        for phase in ("inference", "training")
    ]


def test_the_record_has_the_rates():
    assert STREAM.as_json()["reset_rates"] == RESET_RATES


# Comparison


def model(y, dx=None, dweights=None, reset_rate=0.1):
    return StreamModel(lambda batch: batch, lambda _: Results(y, dx, dweights), reset_rate)


ONES = np.ones((2, 3, 4))


def compared(*models):
    """Compare models, named by their numbers."""
    made = Comparison()
    for number, one in enumerate(models):
        made.check(str(number), one, BATCH)


def test_results_that_differ_by_rounding_are_accepted():
    near = ONES * (1 + 0.9 * comparison.MAX_DIFFERENCE)
    compared(model(ONES, ONES, [ONES]), model(near, near, [near]))


@pytest.mark.parametrize(
    ("others", "what"),
    [
        ((1.1, 1, 1), "y"),
        ((1, 1.1, 1), "dx"),
        ((1, 1, 1.1), "the gradient of weight 1"),
        ((np.nan, 1, 1), "y"),
    ],
)
def test_a_result_that_differs_is_named(others, what):
    y, dx, dw = (ONES * factor for factor in others)
    with pytest.raises(ValueError, match=f"^{what} differs from that of 0 by"):
        compared(model(ONES, ONES, [ONES, ONES]), model(y, dx, [ONES, dw]))


def test_a_result_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"shape \(2, 3\); expected \(2, 3, 4\)"):
        compared(model(ONES), model(ONES[:, :, 0]))


def test_models_with_other_rates_are_not_compared():
    compared(model(ONES), model(2 * ONES, reset_rate=0.0))


def test_a_first_model_without_numbers_is_not_what_others_are_compared_with():
    made = Comparison()
    with pytest.raises(ValueError, match="y differs"):
        made.check("bad", model(ONES * np.nan), BATCH)
    made.check("good", model(ONES), BATCH)


def test_resets_that_are_left_out_are_found():
    stream = SETS["tiny"][0]
    data = stream.draw()
    batch = data.epochs.warm_up[0]
    made = Comparison()
    first = array_models.functions(stream, data, "cpu", False, reset_rate=0.1)
    made.check("first", first, batch)
    without = array_models.functions(stream, data, "cpu", False)._replace(reset_rate=0.1)
    with pytest.raises(ValueError, match="y differs from that of first"):
        made.check("without", without, batch)


def rows(creators):
    runner = StreamRunner("cpu", Settings(rounds=1, batches=3))
    return list(runner.rows(runner.prepared(STREAM), creators))


def test_a_model_with_other_results_fails_and_the_others_are_timed():
    def create(*arguments):
        return array_models.functions(*arguments)._replace(reset_rate=0.1)

    right = partial(array_models.functions, reset_rate=0.1)
    creators = [Creator("a", "array", right), Creator("b", "array", create)]
    found = rows([*creators, Creator("c", "array", right)])
    assert "y differs from that of a" in found[1].failed
    assert [row.ms is None for row in found] == [False, True, False]


def test_models_are_compared_before_their_first_epoch():
    log = []

    def create(stream, data, place, training):
        def load(batch):
            log.append(batch)
            return batch

        return StreamModel(load, lambda _: Results(ONES))

    rows([Creator("a", "array", create)])
    warm_up, later = STREAM.measured(3, 1).epochs()
    assert log == [warm_up[0], *warm_up, *later]


def test_each_rate_is_compared_with_itself():
    found = {creator.name: creator.create for creator in array_models.RESET_CREATORS}
    data = STREAM.draw()
    rates = [create(STREAM, data, "cpu", True).reset_rate for create in found.values()]
    assert list(found) == ["dnnffi", "dnnffi resets 1%", "dnnffi resets 10%"]
    assert rates == [0.0, *RESET_RATES]
