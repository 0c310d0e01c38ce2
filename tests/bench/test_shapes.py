from __future__ import annotations

from math import prod

import pytest

from dnnffi.bench.shapes import (
    DEEPBENCH,
    FASTRNNS,
    PERFORMANCE,
    SEED,
    SETS,
    VARYING,
    draw_shapes,
    shapes_of,
)


@pytest.mark.parametrize("name", SETS)
def test_every_shape_of_a_set_is_a_network_and_there_once(name):
    shapes = SETS[name]
    assert len(set(shapes)) == len(shapes)
    for shape in shapes:
        assert shape.spec.x_shape(shape.steps, shape.batch)[2] == shape.input_size


def test_different_shapes_have_different_names():
    names = [shape.name for shape in shapes_of(SETS, SETS)]
    assert len(set(names)) == len(names)


def test_the_performance_set_has_the_cells_of_the_first_measurements():
    names = [shape.name for shape in PERFORMANCE if not shape.lengths]
    assert len(names) == 22
    assert names[0] == "lstm f32 100 64 512 512 1 uni"
    assert names[-1] == "lstm f16 500 8 256 256 2 bi"


def test_varying_lengths_are_those_of_fastrnns():
    assert VARYING in PERFORMANCE
    assert VARYING in FASTRNNS
    assert len(VARYING.lengths) == VARYING.batch == 64
    assert 30 <= min(VARYING.lengths) <= 40  # of 64 draws
    assert 90 <= max(VARYING.lengths) == VARYING.steps <= 99
    assert list(VARYING.lengths) != sorted(VARYING.lengths, reverse=True)


def test_deepbench_is_complete():
    counted = {
        (mode, training): sum(s.mode == mode and s.training is training for s in DEEPBENCH)
        for mode in ("rnn_relu", "lstm", "gru")
        for training in (True, False)
    }
    # Counted in rnn_problems.h, the commented GRU with them, LSTM 256 1 150 of two sets once.
    assert counted == {
        ("rnn_relu", True): 12,
        ("lstm", True): 22,
        ("gru", True): 19,
        ("rnn_relu", False): 2,
        ("lstm", False): 15,
        ("gru", False): 54,
    }
    assert all(shape.input_size == shape.hidden_size for shape in DEEPBENCH)
    assert "gru f16 1500 32 2816 2816 1 uni" in [shape.name for shape in DEEPBENCH]


def test_a_shape_for_training_in_one_set_is_for_training_in_all():
    (shape,) = [
        s for s in shapes_of(["deepbench", "performance"], SETS) if "f16 50 1 1536" in s.name
    ]
    assert shape.training
    (shape,) = [s for s in shapes_of(["deepbench"], SETS) if "f16 50 1 1536" in s.name]
    assert not shape.training


def test_a_shape_of_two_sets_comes_once_and_knows_both():
    found = shapes_of(["fastrnns", "performance"], SETS)
    assert found[VARYING] == ("performance", "fastrnns")
    assert len(found) == len({*FASTRNNS, *PERFORMANCE})


def test_a_seed_draws_the_same_shapes_everywhere():
    names = [shape.name for shape in draw_shapes(0)]
    assert (names[0], names[-1]) == (
        "rnn_tanh f32 85 60 26 670 1 bi",
        "rnn_relu bf16 86 20 258 161 1 uni",
    )
    assert draw_shapes(0) == draw_shapes(0) != draw_shapes(1)


@pytest.mark.parametrize("seed", [0, 1, SEED])
def test_twenty_are_drawn_of_every_kind(seed):
    drawn = draw_shapes(seed)
    assert len(set(drawn)) == 20
    for field, count in {"mode": 4, "dtype": 3, "layers": 3, "directions": 2}.items():
        assert len({getattr(shape, field) for shape in drawn}) == count
    round_ones = [s for s in drawn if s.input_size % 16 == s.hidden_size % 16 == 0]
    assert 10 <= len(round_ones) <= 12


@pytest.mark.parametrize("seed", range(20))
def test_what_is_drawn_takes_milliseconds(seed):
    for shape in draw_shapes(seed):
        assert 10 <= shape.steps <= 300
        assert 1 <= shape.batch <= 128
        assert 8 <= shape.input_size <= 1024
        assert 32 <= shape.hidden_size <= 2048
        assert shape.steps * shape.layers * shape.directions <= 600
        weights = sum(prod(parameter.shape) for parameter in shape.spec.parameter_shapes())
        assert 2 * weights * shape.steps * shape.batch <= 2e11
