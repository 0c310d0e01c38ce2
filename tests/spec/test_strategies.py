"""dnnffi.testing: everything drawn is right, restrictions hold, and the hard cases are reached."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

import dnnffi
from dnnffi import RNNProblem, RNNSpec, testing
from dnnffi.device.dtypes import dtype_object
from dnnffi.installing import install_extra
from dnnffi.reference import rnn as reference
from dnnffi.spec.options import rnn_options
from dnnffi.spec.problem import PACKED

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=30)


@given(testing.specs())
def test_specs_are_small(spec):
    assert isinstance(spec, RNNSpec)
    assert max(spec.input_size, spec.hidden_size) <= 9
    assert spec.num_layers <= 3


@given(
    testing.specs(
        modes=("gru", "lstm"),
        dtypes=("float64",),
        max_size=3,
        max_layers=1,
        bidirectional=True,
        bias=False,
        projection=False,
    )
)
def test_specs_obey(spec):
    assert spec.mode in ("gru", "lstm")
    assert spec.dtype == "float64"
    assert max(spec.input_size, spec.hidden_size) <= 3
    assert spec.num_layers == 1
    assert spec.bidirectional
    assert not spec.bias
    assert spec.proj_size == 0


@given(testing.specs(projection=True, max_size=2))
def test_projection_is_drawn_where_asked_for(spec):
    assert (spec.mode, spec.hidden_size, spec.proj_size) == ("lstm", 2, 1)


@given(testing.specs(modes=("lstm",), max_size=1))
def test_a_size_of_one_leaves_no_room_for_a_projection(spec):
    assert spec.proj_size == 0


@pytest.mark.parametrize("fields", [{"modes": ("gru",)}, {"max_size": 1}], ids=str)
def test_projection_that_cannot_be(fields):
    with pytest.raises(ValueError, match=r"^projection=True needs 'lstm'"):
        find(testing.specs(projection=True, **fields), lambda spec: True)


@pytest.mark.parametrize(
    ("strategy", "error", "message"),
    [
        (
            lambda: testing.problems(layouts=("batch_first",)),
            ValueError,
            r"^layouts must be among sequence_major, batch_major, packed; got 'batch_first'$",
        ),
        (
            lambda: testing.problems(layouts="packed"),
            TypeError,
            r"^layouts must be a tuple of names; got 'packed'; write \('packed',\)$",
        ),
        (
            lambda: testing.specs(modes="gru"),
            TypeError,
            r"^modes must be a tuple of names; got 'gru'; write \('gru',\)$",
        ),
        (
            lambda: testing.specs(modes=("GRU",)),
            ValueError,
            r"^modes must be among rnn_tanh, rnn_relu, gru, lstm; got 'GRU'$",
        ),
        (
            lambda: testing.specs(dtypes="float32"),
            TypeError,
            r"^dtypes must be a tuple of names; got 'float32'; write \('float32',\)$",
        ),
        (lambda: testing.specs(dtypes=()), ValueError, r"^dtypes must have at least one name; "),
        (lambda: testing.specs(modes=1), TypeError, r"^modes must be a tuple of names; got 1$"),
        (
            lambda: testing.options("gru", algorithms="auto"),
            TypeError,
            r"^algorithms must be a tuple of names; got 'auto'; write \('auto',\)$",
        ),
        (
            lambda: testing.options("gru", algorithms=("auto", "standart")),
            ValueError,
            r"^algorithms must be among auto, standard, .*; got 'standart'$",
        ),
        (lambda: testing.options("LSTM"), ValueError, r"^mode must be one of .*; got 'LSTM'"),
        (
            lambda: testing.problems(RNNSpec(mode="gru", input_size=2, hidden_size=3)),
            TypeError,
            r"^networks must be a strategy; got RNNSpec; use st\.just\(spec\)$",
        ),
        (
            lambda: testing.problems("gru"),
            TypeError,
            r"^networks must be a strategy; got str$",
        ),
    ],
)
def test_a_wrong_argument_of_a_strategy_is_named(strategy, error, message):
    with pytest.raises(error) as caught:  # Hypothesis adds a note, which match would read
        find(strategy(), lambda one: True)
    assert re.search(message, str(caught.value))


@pytest.mark.parametrize("function", [lambda one: testing.inputs(one, 0), testing.keywords])
def test_arrays_and_keywords_are_those_of_a_problem(function):
    message = r"^problem must be a RNNProblem; got RNNSpec; use RNNProblem\.dense\(spec, steps="
    with pytest.raises(TypeError, match=message.replace("a RNN", "an RNN")):
        function(RNNSpec(mode="gru", input_size=2, hidden_size=3))


def reached(strategy, condition):
    try:
        find(strategy, condition, settings=settings(max_examples=2000, database=None))
    except NoSuchExample:
        return False
    return True


@pytest.mark.parametrize("mode", testing.MODES)
@pytest.mark.parametrize("dtype", testing.DTYPES)
def test_each_mode_is_drawn_in_each_dtype(mode, dtype):
    assert reached(
        testing.specs(), lambda s: s.mode == mode and s.dtype == dtype and s.bidirectional
    )


HARD = {
    "projection without bias": lambda p: p.spec.proj_size and not p.spec.bias,
    "no row reaches T": lambda p: max(p.row_lengths) < p.steps,
    "lengths not sorted": lambda p: p.row_lengths != tuple(sorted(p.row_lengths, reverse=True)),
    "one step": lambda p: p.steps == 1 and p.batch > 1,
    "packed, rows end early": lambda p: p.layout == PACKED and len(set(p.row_lengths)) > 2,
    "clipped": lambda p: p.options.clip is not None and p.options.clip[0] < 0,
    "odd sizes": lambda p: p.spec.hidden_size == 7 and p.spec.input_size == 5,
}


@pytest.mark.parametrize("name", HARD)
def test_hard_problems_are_drawn(name):
    assert reached(testing.problems(with_options=True), HARD[name])


@given(testing.problems())
def test_problems_have_default_options(problem):
    assert isinstance(problem, RNNProblem)
    assert problem.options == rnn_options(None, problem.spec.mode)
    assert problem.dropout == 0


@given(
    testing.problems(
        testing.specs(modes=("gru",), max_layers=2),
        layouts=("batch_major",),
        max_steps=3,
        max_batch=2,
        padded=True,
        training=True,
        dropout=0.25,
    )
)
def test_problems_obey(problem):
    assert problem.spec.mode == "gru"
    assert problem.layout == "batch_major"
    assert problem.steps <= 3
    assert problem.batch <= 2
    assert (problem.training, problem.dropout) == (True, 0.25)


@given(testing.problems(layouts=("sequence_major",), padded=False, training=False, dropout=0.5))
def test_inference_drops_nothing(problem):
    assert problem.lengths is None
    assert (problem.training, problem.dropout) == (False, 0)


@given(st.data(), st.sampled_from(testing.MODES))
def test_options_are_accepted(data, mode):
    rnn_options(data.draw(testing.options(mode)), mode)


@given(testing.problems(), seeds)
def test_arrays_have_the_shapes_and_dtype_of_the_problem(problem, seed):
    spec, made = problem.spec, testing.inputs(problem, seed)
    assert made.x.shape == problem.x_shape
    assert made.dy.shape == problem.y_shape
    assert made.h_0.shape == made.dh_n.shape == problem.h_shape
    arrays = [made.x, made.dy, made.h_0, made.dh_n, *made.weights]
    if spec.has_cell:
        assert made.c_0.shape == made.dc_n.shape == problem.c_shape
        arrays += [made.c_0, made.dc_n]
        assert made.hx == (made.h_0, made.c_0)
        assert made.dhx == (made.dh_n, made.dc_n)
    else:
        assert made.c_0 is made.dc_n is None
        assert made.hx is made.h_0
        assert made.dhx is made.dh_n
    spec.check_weight_shapes([w.shape for w in made.weights])
    assert {a.dtype for a in arrays} == {dtype_object(spec.dtype)}
    bound = spec.hidden_size**-0.5
    assert all(abs(w.astype("float64")).max() <= bound * 1.01 for w in made.weights)


@given(testing.problems(), seeds)
def test_the_same_seed_gives_the_same_arrays(problem, seed):
    one, other = testing.inputs(problem, seed), testing.inputs(problem, seed)
    for a, b in zip(one.weights, other.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.weights[0], testing.weights(problem.spec, seed)[0])
    assert (testing.inputs(problem, seed + 1).x != one.x).any()


def test_the_same_seed_gives_the_same_numbers_in_each_dtype():
    made = {}
    for dtype in testing.DTYPES:
        spec = RNNSpec(mode="gru", input_size=3, hidden_size=5, dtype=dtype)
        made[dtype] = testing.inputs(RNNProblem.dense(spec, steps=2, batch=2), 1).x
    for dtype, x in made.items():
        np.testing.assert_array_equal(x, made["float64"].astype(dtype_object(dtype)))


@given(testing.problems(training=True))
def test_keywords_fit_the_function_that_they_are_for(problem):
    def of_others(x, *, num_layers, dropout):
        """A wrapper of an embedder."""

    assert "dropout" not in testing.keywords(problem)
    assert "dropout" not in testing.keywords(problem, dnnffi.lstm)
    for function in (dnnffi.lstm_forward, of_others):
        found = testing.keywords(problem, function)
        assert found == testing.keywords(problem) | {"dropout": problem.dropout}


@few
@given(testing.problems(with_options=True), seeds)
def test_keywords_run_the_problem(problem, seed):
    spec, made = problem.spec, testing.inputs(problem, seed)
    function = getattr(dnnffi, spec.mode + ("_forward" if problem.training else ""))
    keywords = testing.keywords(problem, function)
    assert ("dropout" in keywords) == problem.training
    y, state, *_ = function(made.x, made.hx, made.weights, **keywords)
    assert y.shape == problem.y_shape
    h_n = state[0] if spec.has_cell else state
    expected = reference.forward(
        spec,
        made.x,
        made.h_0,
        made.c_0,
        made.weights,
        batch_first=problem.layout == "batch_major",
        lengths=None if problem.layout == PACKED else problem.lengths,
        batch_sizes=keywords.get("batch_sizes"),
        clip=problem.options.clip,
        clip_nan=problem.options.clip_nan,
    )
    np.testing.assert_array_equal(y, expected.y)
    np.testing.assert_array_equal(h_n, expected.h_n)


@given(st.data(), testing.problems(max_steps=4), seeds)
@few
def test_drawn_resets_run_with_a_problem(data, problem, seed):
    a, more = testing.inputs(problem, seed), data.draw(testing.resets(problem))
    call = getattr(dnnffi, problem.spec.mode)
    y, _ = call(a.x, a.hx, a.weights, **testing.keywords(problem), **more)
    plain, _ = call(a.x, a.hx, a.weights, **testing.keywords(problem))
    assert y.shape == problem.y_shape
    if not more["resets"].any():
        np.testing.assert_array_equal(y, plain)


SMALL = RNNProblem.dense(
    RNNSpec(mode="lstm", input_size=1, hidden_size=2), steps=3, batch=2, lengths=[1, 3]
)


@pytest.mark.parametrize(
    "hard",
    [
        lambda more: not more["resets"].any(),
        lambda more: more["resets"].all(),
        lambda more: more["resets"][0, 0] and not more["resets"][1:].any(),
        lambda more: more["resets"][2, 0],  # past the end of the row
        lambda more: more["reset_to"] is not None and more["reset_to"][1].shape == (1, 1, 2),
        lambda more: more["reset_to"] is not None and more["reset_to"][1].shape == (1, 2, 2),
    ],
)
def test_hard_resets_are_drawn(hard):
    assert hard(find(testing.resets(SMALL), hard))


def test_without_hypothesis_the_import_says_what_is_missing():
    code = f"""
import sys
sys.path.insert(0, {str(Path(dnnffi.__file__).parents[1])!r})
sys.modules["hypothesis"] = None
try:
    import dnnffi.testing
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = f"dnnffi.testing needs Hypothesis. Install: {install_extra('testing')}\n"
    assert done.stdout.replace('"', "'") == told.replace('"', "'")  # the child has its own quotes
