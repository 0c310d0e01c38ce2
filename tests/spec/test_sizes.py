"""Impossible sizes: refused at once and by name, before memory is allocated for them."""

from __future__ import annotations

import bounded
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi import ConvProblem, ConvSpec, DropoutState, RNNProblem, RNNSpec, weight_layout
from dnnffi.spec.checks import INT64_MAX, check_number, check_range, shown
from dnnffi.spec.conv import check_shape
from dnnffi.spec.conv_options import conv_options
from dnnffi.spec.options import rnn_options
from dnnffi.spec.sequences import MAX_ENTRIES, batch_sizes_to_lengths, check_lengths

SPEC = RNNSpec(mode="lstm", input_size=1, hidden_size=1)
MANY = 2**31 - 1

BOUNDED = """
from itertools import repeat
from dnnffi import RNNProblem, RNNSpec, weight_layout
from dnnffi.spec.sequences import *
MANY = 2**31 - 1
def spec(layers):
    return RNNSpec(mode="lstm", input_size=1, hidden_size=1, num_layers=layers)
try:
    {}
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""

LAYERS = "num_layers must be from 1 to 10000; got 2147483647"
ENTRIES = "lengths must have at most 16777216 entries"
ROWS = "batch_sizes must be at most 16777216; got 2147483647"
ENDLESS = {
    "weight_layout(spec(MANY), 'cudnn')": LAYERS,
    "spec(MANY).parameter_shapes()": LAYERS,
    "spec(MANY).check_weight_shapes([])": LAYERS,
    "RNNSpec.from_weight_shapes('gru', [(3, 1)] * 4, num_layers=MANY)": LAYERS,
    "RNNProblem.dense(spec(1), steps=1, batch=MANY)": (
        "x must have at most 16777216 rows in its batch; got B = 2147483647"
    ),
    "RNNProblem.dense(spec(1), steps=MANY, batch=MANY).x_shape": (
        "x must have at most 16777216 time steps; got T = 2147483647"
    ),
    "RNNProblem.packed(spec(1), (MANY,))": ROWS,
    "batch_sizes_to_lengths([MANY])": ROWS,
    "lengths_to_batch_sizes([1, MANY])": (
        "lengths must be one or more integers from 1 to 16777216; they go from 1 to 2147483647"
    ),
    "RNNProblem.dense(spec(1), steps=1, batch=2, lengths=repeat(1))": ENTRIES,
    "RNNProblem.dense(spec(1), steps=1, batch=2, lengths=range(1, 2**40))": ENTRIES,
}


@pytest.mark.parametrize(("code", "message"), ENDLESS.items(), ids=list(ENDLESS))
def test_what_would_take_minutes_or_all_memory_is_refused(code, message):
    assert bounded.run(BOUNDED.format(code)) == f"ValueError: {message}\n"


def test_the_largest_problem_costs_nothing_to_ask():
    made = "p = RNNProblem.dense(spec(1), steps=2**24, batch=2**24)"
    code = f"{made}; print(p.x_shape, p.h_shape, hash(p) != 0)"
    assert bounded.run(BOUNDED.format(code)) == "(16777216, 16777216, 1) (1, 16777216, 1) True\n"


def test_the_most_layers_have_a_layout():
    spec = RNNSpec(mode="rnn_tanh", input_size=1, hidden_size=1, num_layers=10_000)
    assert weight_layout(spec, "cudnn").size == 4 * 10_000


# Arrays of more bytes than 64 bits count


def test_weights_of_more_bytes_than_64_bits_count():
    spec = RNNSpec(mode="lstm", input_size=MANY, hidden_size=MANY)
    with pytest.raises(ValueError, match=rf"^weights must have at most {INT64_MAX} bytes; got sh"):
        weight_layout(spec, "cudnn")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("x", {"input_size": 2**15, "hidden_size": 1}),
        ("y", {"input_size": 1, "hidden_size": 2**15}),
        ("h_0", {"input_size": 1, "hidden_size": MANY, "num_layers": 1000}),
        ("c_0", {"input_size": 1, "hidden_size": MANY, "num_layers": 1000, "proj_size": 1}),
    ],
)
def test_a_problem_of_more_bytes_than_64_bits_count(name, sizes):
    spec = RNNSpec(mode="lstm", dtype="float64", **sizes)
    steps = 2**24 if name in ("x", "y") else 1
    with pytest.raises(ValueError, match=rf"^{name} must have at most {INT64_MAX} bytes"):
        RNNProblem.dense(spec, steps=steps, batch=2**24)


def test_a_packed_problem_of_more_bytes_than_64_bits_count():
    spec = RNNSpec(mode="lstm", input_size=1, hidden_size=MANY, num_layers=1000)
    with pytest.raises(ValueError, match=rf"^h_0 must have at most {INT64_MAX} bytes"):
        RNNProblem.packed(spec, (2**21,))


@pytest.mark.parametrize(
    ("name", "changes", "shape"),
    [
        ("x", {}, (1, 1, 2**61)),
        ("y", {"transposed": True, "stride": 2**30}, (1, 1, 2**40)),
        ("w", {"in_channels": MANY, "out_channels": MANY}, (0, MANY, 1)),
    ],
)
def test_a_convolution_of_more_bytes_than_64_bits_count(name, changes, shape):
    spec = ConvSpec(**{"in_channels": 1, "out_channels": 1, "kernel": (1,)} | changes)
    with pytest.raises(ValueError, match=rf"^{name} must have at most {INT64_MAX} bytes; got sha"):
        ConvProblem.of("forward", spec, shape)


# Integers that Python does not write


DIGITS = 10**5000
UNPRINTABLE = {
    "hidden_size": lambda n: RNNSpec(mode="gru", input_size=1, hidden_size=n),
    "num_layers": lambda n: RNNSpec.from_weight_shapes("gru", [(3, 1)] * 4, num_layers=n),
    "kernel[0]": lambda n: ConvSpec(in_channels=1, out_channels=1, kernel=(n,)),
    "stride": lambda n: ConvSpec(in_channels=1, out_channels=1, kernel=(1,), stride=n),
    "x_shape[2]": lambda n: check_shape("x_shape", (1, 1, n)),
    "x[2]": lambda n: ConvProblem.of(
        "forward", ConvSpec(in_channels=1, out_channels=1, kernel=(1,)), (1, 1, n)
    ),
    "x must have": lambda n: RNNProblem.dense(SPEC, steps=n, batch=1),
    "x must have ": lambda n: RNNProblem.dense(SPEC, steps=1, batch=n),
    "lengths[1]": lambda n: check_lengths((1, n), 3, 2),
    "batch_sizes must": lambda n: batch_sizes_to_lengths((n,)),
    "batch_sizes must never rise": lambda n: batch_sizes_to_lengths((1, n) if n > 0 else (1, n, 0)),
    "seed": DropoutState,
}


@pytest.mark.parametrize(("name", "take"), UNPRINTABLE.items(), ids=list(UNPRINTABLE))
@pytest.mark.parametrize("number", [DIGITS, -DIGITS], ids=["huge", "far below 0"])
def test_an_integer_that_python_does_not_write_is_refused_by_name(name, take, number):
    with pytest.raises(ValueError, match="an integer of 16610 bits") as caught:
        take(number)
    assert str(caught.value).startswith(name)


def test_an_integer_of_up_to_128_bits_is_shown():
    assert shown(2**128 - 1) == "340282366920938463463374607431768211455"
    assert shown(-(2**128) + 1) == "-340282366920938463463374607431768211455"
    assert shown(2**128) == "an integer of 129 bits"


def test_a_workspace_limit_far_below_0_is_refused_by_name():
    assert conv_options({"workspace_limit": DIGITS}).workspace_limit == DIGITS
    with pytest.raises(ValueError, match=r"^options\['workspace_limit'\] must be 0 bytes or more"):
        conv_options({"workspace_limit": -DIGITS})


@pytest.mark.parametrize("number", [10**400, -DIGITS], ids=["10**400", "-10**5000"])
def test_a_number_that_no_float_comes_near_is_refused_by_name(number):
    message = "must be a number that float64 holds; got a larger one$"
    with pytest.raises(ValueError, match=rf"^alpha {message}"):
        check_number("alpha", number)
    with pytest.raises(ValueError, match=rf"^dropout {message}"):
        RNNProblem.dense(SPEC, steps=1, batch=1, dropout=number)
    with pytest.raises(ValueError, match=rf"^options\['clip'\] {message}"):
        rnn_options({"clip": (number, number)}, "lstm")


@given(st.integers(), st.integers(-5, 5), st.integers(0, 2**40))
def test_a_range_is_taken_with_its_ends(value, least, span):
    most = least + span
    if least <= value <= most:
        assert check_range("size", value, least, most) == value
    else:
        with pytest.raises(ValueError, match=rf"^size must be from {least} to {most}; got "):
            check_range("size", value, least, most)


@given(st.integers(1, 2**25), st.integers(1, 2**25))
def test_steps_and_rows_are_at_most_2_to_the_24(steps, batch):
    if max(steps, batch) <= MAX_ENTRIES:
        assert RNNProblem.dense(SPEC, steps=steps, batch=np.int64(batch)).x_shape == (
            steps,
            batch,
            1,
        )
    else:
        with pytest.raises(ValueError, match=r"^x must have at most 16777216 (time steps|rows)"):
            RNNProblem.dense(SPEC, steps=steps, batch=batch)


@pytest.mark.parametrize("value", [2.0, "2", True, None], ids=repr)
def test_steps_and_rows_are_integers(value):
    with pytest.raises(TypeError, match=r"^steps must be an integer; got "):
        RNNProblem.dense(SPEC, steps=value, batch=2)
    with pytest.raises(TypeError, match=r"^batch must be an integer; got "):
        RNNProblem.dense(SPEC, steps=2, batch=value)
