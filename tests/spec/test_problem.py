"""RNNProblem: shapes by layout, what makes two problems the same, refusal of wrong ones."""

from __future__ import annotations

import pickle
from math import nan

import numpy as np
import pytest
from hypothesis import given

from dnnffi import RNNPlan, RNNProblem, RNNSpec, testing
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import BATCH_MAJOR, PACKED, SEQUENCE_MAJOR, check_dropout
from dnnffi.spec.sequences import lengths_to_batch_sizes

SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=5, num_layers=2, bidirectional=True)


@given(testing.problems())
def test_shapes(problem):
    spec, steps, batch = problem.spec, problem.steps, problem.batch
    rows = problem.row_lengths
    assert len(rows) == batch
    assert max(rows) <= steps
    leading = {
        SEQUENCE_MAJOR: (steps, batch),
        BATCH_MAJOR: (batch, steps),
        PACKED: (sum(rows),),
    }[problem.layout]
    assert problem.x_shape == (*leading, spec.input_size)
    assert problem.y_shape == (*leading, spec.output_size * spec.num_directions)
    assert problem.h_shape == spec.h_shape(batch)
    assert problem.c_shape == spec.c_shape(batch)


@given(testing.problems())
def test_problems_are_keys(problem):
    again = pickle.loads(pickle.dumps(problem))
    assert again == problem
    assert {problem: 1}[again] == 1


def test_full_lengths_are_no_lengths():
    full = RNNProblem.dense(SPEC, steps=4, batch=2, lengths=[4, 4])
    assert full == RNNProblem.dense(SPEC, steps=4, batch=2)
    assert full.lengths is None
    assert full.row_lengths == (4, 4)
    assert RNNProblem.dense(SPEC, steps=4, batch=2, lengths=[3, 3]).lengths == (3, 3)


WRONG = [
    ({"spec": "lstm"}, TypeError, "^spec must be an RNNSpec; got str$"),
    ({"training": "no"}, TypeError, "^training must be True or False; got 'no'$"),
    ({"training": 1}, TypeError, "^training must be True or False; got 1$"),
    ({"options": "own"}, TypeError, "^options must be a dict or None; got str$"),
    ({"options": {"algo": 1}}, ValueError, "^options: unknown key 'algo'; known are algorithm, "),
]


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG, ids=lambda case: str(case)[:40])
def test_a_wrong_argument_is_named(wrong, error, message):
    for make, sizes in (
        (RNNProblem.dense, {"steps": 5, "batch": 2}),
        (RNNProblem.packed, {"batch_sizes": [2, 1]}),
    ):
        with pytest.raises(error, match=message):
            make(**({"spec": SPEC} | sizes | wrong))


def test_batch_first_is_a_flag():
    with pytest.raises(TypeError, match=r"^batch_first must be True or False; got 1$"):
        RNNProblem.dense(SPEC, steps=5, batch=2, batch_first=1)


def test_options_may_be_a_dict_as_everywhere():
    checked = RNNOptions(algorithm="standard", clip=(-1.0, 1.0))
    options = {"algorithm": "standard", "clip": (-1, 1)}
    assert RNNProblem.dense(SPEC, steps=5, batch=2, options=options).options == checked
    assert RNNProblem.packed(SPEC, [2, 1], options=options).options == checked
    assert RNNProblem.dense(SPEC, steps=5, batch=2, options=None) == RNNProblem.dense(
        SPEC, steps=5, batch=2
    )


def test_the_options_of_another_problem_are_checked_for_the_network():
    options = RNNProblem.dense(SPEC, steps=5, batch=2, options={"clip": (-1, 1)}).options
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=4)
    with pytest.raises(ValueError, match=r"^options\['clip'\]: only an LSTM has a cell to clip"):
        RNNProblem.dense(spec, steps=5, batch=2, options=options)


@given(testing.batch_sizes())
def test_a_packed_problem_knows_steps_batch_and_lengths(sizes):
    problem = RNNProblem.packed(SPEC, np.array(sizes), sum(sizes))
    assert (problem.steps, problem.batch) == (len(sizes), sizes[0])
    assert list(problem.lengths) == sorted(problem.lengths, reverse=True)
    assert lengths_to_batch_sizes(problem.lengths) == sizes


@pytest.mark.parametrize(
    "other",
    [
        RNNProblem.dense(SPEC, steps=5, batch=2),
        RNNProblem.dense(SPEC, steps=4, batch=3),
        RNNProblem.dense(SPEC, steps=4, batch=2, batch_first=True),
        RNNProblem.dense(SPEC, steps=4, batch=2, lengths=(4, 3)),
        RNNProblem.dense(SPEC, steps=4, batch=2, training=True),
        RNNProblem.packed(SPEC, (2, 2, 2, 2)),
    ],
    ids=str,
)
def test_other_problems_differ(other):
    assert other != RNNProblem.dense(SPEC, steps=4, batch=2)


def test_in_words():
    problem = RNNProblem.dense(SPEC, steps=4, batch=2, lengths=(4, 3), training=True, dropout=0.5)
    for part in (str(SPEC), "[4, 2, 3]", "sequence_major", "lengths [4, 3]", "training", "0.5"):
        assert part in str(problem)
    many = str(RNNProblem.dense(SPEC, steps=4, batch=1000, lengths=(1,) * 1000))
    assert "1000 rows" in many
    assert len(many) < 400
    assert "inference" in str(RNNProblem.packed(SPEC, (2, 1)))


def test_there_is_a_step():
    with pytest.raises(ValueError, match=r"^x must have at least one time step; got T = 0$"):
        RNNProblem.dense(SPEC, steps=0, batch=2)
    with pytest.raises(ValueError, match=r"^x must have at least one time step; got T = 0$"):
        RNNProblem.dense(SPEC, steps=0, batch=0)


def test_a_batch_may_be_empty():
    problem = RNNProblem.dense(SPEC, steps=2, batch=0, batch_first=True, lengths=[])
    assert problem == RNNProblem.dense(SPEC, steps=2, batch=0, batch_first=True)
    assert problem.x_shape == (0, 2, SPEC.input_size)
    assert problem.h_shape[1] == 0
    packed = RNNProblem.packed(SPEC, (0, 0), 0)
    assert (packed.steps, packed.batch, packed.row_lengths) == (2, 0, ())
    assert packed.y_shape == (0, SPEC.output_size * SPEC.num_directions)
    assert "lengths []" in str(packed)


def test_an_empty_batch_has_no_lengths():
    message = r"^lengths must have one entry for each of the 0 rows of the batch; got 1$"
    with pytest.raises(ValueError, match=message):
        RNNProblem.dense(SPEC, steps=2, batch=0, lengths=[2])


def test_no_batch_is_less_than_empty():
    with pytest.raises(ValueError, match=r"^x must have 0 or more rows in its batch; got B = -1$"):
        RNNProblem.dense(SPEC, steps=2, batch=-1)


@pytest.mark.parametrize("dropout", [0, 1, 0.5, np.float32(0.5), np.float64(1)], ids=repr)
def test_dropout_is_a_float_from_0_to_1(dropout):
    assert check_dropout(dropout) == dropout
    assert type(check_dropout(dropout)) is float


@pytest.mark.parametrize("dropout", [-0.1, 1.001, nan, float("inf"), 2], ids=repr)
def test_dropout_outside_0_to_1(dropout):
    with pytest.raises(ValueError, match=r"^dropout must be from 0 to 1; got"):
        check_dropout(dropout)
    with pytest.raises(ValueError, match=r"^dropout must be from 0 to 1; got"):
        RNNProblem.dense(SPEC, steps=1, batch=1, dropout=dropout)
    with pytest.raises(ValueError, match=r"^dropout must be from 0 to 1; got"):
        RNNProblem.packed(SPEC, (1,), dropout=dropout)


@pytest.mark.parametrize("dropout", ["0.5", None, True, [0.5], 1j, np.array([0.5])], ids=repr)
def test_dropout_is_a_number(dropout):
    with pytest.raises(TypeError, match=r"^dropout must be a number; got"):
        check_dropout(dropout)


@pytest.mark.parametrize(("rows", "end"), [(8, "1]"), (9, "1, ... 9 rows]")])
def test_up_to_eight_lengths_are_in_the_text(rows, end):
    problem = RNNProblem.dense(SPEC, steps=4, batch=rows, lengths=(2,) * 7 + (1,) * (rows - 7))
    assert f"lengths [2, 2, 2, 2, 2, 2, 2, {end}" in str(problem)


def test_steps_and_batch_are_passed_by_name():
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=4)
    for make in (RNNProblem.dense, RNNPlan):
        with pytest.raises(TypeError, match="positional"):
            make(spec, 5, 2)
        make(spec, steps=5, batch=2)
