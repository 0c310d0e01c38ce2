"""ConvProblem: shapes by operation, refusals, words; options of a convolution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from dnnffi import ConvProblem, ConvSpec, testing
from dnnffi.spec.conv_options import DEFAULTS, ConvOptions, conv_options
from dnnffi.spec.conv_problem import check_activation
from dnnffi.spec.options import rnn_options

SPEC = ConvSpec(in_channels=4, out_channels=6, kernel=(3, 3), padding=1, groups=2)
X = (2, 4, 5, 7)


def test_a_forward_reads_x_and_w_and_perhaps_bias_and_residual():
    problem = ConvProblem.of("forward", SPEC, X)
    assert problem.argument_shapes == (X, (6, 2, 3, 3), (6,), (2, 6, 5, 7))
    assert problem.result_shape == problem.y_shape == (2, 6, 5, 7)


def test_backward_data_reads_dy_and_w():
    problem = ConvProblem.of("backward_data", SPEC, X)
    assert problem.argument_shapes == ((2, 6, 5, 7), (6, 2, 3, 3))
    assert problem.result_shape == problem.x_shape == X


def test_backward_weights_reads_dy_and_x():
    problem = ConvProblem.of("backward_weights", SPEC, X)
    assert problem.argument_shapes == ((2, 6, 5, 7), X)
    assert problem.result_shape == (6, 2, 3, 3)


@given(testing.conv_problems(with_options=True))
def test_equal_problems_have_equal_hashes(problem):
    again = ConvProblem.of(
        problem.operation,
        problem.spec,
        problem.x_shape,
        layout=problem.layout,
        activation=problem.activation,
        residual=problem.residual,
        alpha=problem.alpha,
        bias=problem.bias,
        options=problem.options,
    )
    assert again == problem
    assert hash(again) == hash(problem)


def test_alpha_counts_only_with_a_residual():
    assert ConvProblem.of("forward", SPEC, X, alpha=2.0).alpha == 1.0
    assert ConvProblem.of("forward", SPEC, X, alpha=2, residual=True).alpha == 2.0


def test_words_of_a_problem():
    problem = ConvProblem.of(
        "forward", SPEC, X, layout="channels_last", activation="relu", residual=True, bias=True
    )
    text = str(problem)
    assert text.startswith("forward + 1.0 * residual + bias + relu of ConvSpec(in_channels=4, ")
    assert text.endswith(", x [2, 4, 5, 7] channels_last")


REFUSED = {
    "rank": ({"x_shape": (2, 4, 5)}, r"^x must have 4 dimensions, as the weights; got \(2, 4, 5\)"),
    "channels": (
        {"x_shape": (2, 6, 5, 5)},
        r"^x must have 4 channels \(from the weights, 2 group\(s\)\); got shape \(2, 6, 5, 5\)$",
    ),
    "channels of x_shape": (
        {"x_shape": (2, 6, 5, 5), "operation": "backward_data"},
        r"^x_shape must have 4 channels",
    ),
    "batch": ({"x_shape": (-1, 4, 5, 5)}, r"^x\[0\] must be from 0 to .*; got -1$"),
    "kernel": ({"x_shape": (2, 4, 0, 5)}, r"^x must have no spatial dimension of size 0"),
    "operation": ({"operation": "inference"}, r"^operation must be one of forward, .*'inference'"),
    "layout": ({"layout": "NHWC"}, r"^layout must be one of channels_first, .*; got 'NHWC'$"),
    "activation": ({"activation": "tanh"}, r"^activation must be 'relu' or None; got 'tanh'$"),
    "bias of backward weights": (
        {"operation": "backward_weights", "bias": True},
        r"^activation, residual and bias are for 'forward'; got 'backward_weights'$",
    ),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=list(REFUSED))
def test_wrong_problems_are_refused(fields, message):
    arguments = {"operation": "forward", "spec": SPEC, "x_shape": X, **fields}
    with pytest.raises(ValueError, match=message):
        ConvProblem.of(**arguments)


OF_A_WRONG_TYPE = {
    "spec": ("conv", r"^spec must be a ConvSpec; got str$"),
    "x_shape": (3, r"^x must be a tuple of integers; got int$"),
    "residual": (1, r"^residual must be True or False; got 1$"),
    "bias": ("no", r"^bias must be True or False; got 'no'$"),
    "options": ("tune", r"^options must be a dict or None; got str$"),
}


@pytest.mark.parametrize("name", OF_A_WRONG_TYPE)
def test_an_argument_of_a_wrong_type_is_named(name):
    value, message = OF_A_WRONG_TYPE[name]
    with pytest.raises(TypeError, match=message):
        ConvProblem.of(**{"operation": "forward", "spec": SPEC, "x_shape": X, name: value})


def test_options_of_a_problem_may_be_a_dict():
    problem = ConvProblem.of("forward", SPEC, X, options={"tune": "now"})
    assert problem.options == ConvOptions(tune="now")
    assert ConvProblem.of("forward", SPEC, X, options=None).options == ConvOptions()


@pytest.mark.parametrize("value", [True, 0, ["relu"], np.array(["relu"]), "RELU"], ids=repr)
def test_an_activation_is_relu_or_none(value):
    with pytest.raises(ValueError, match=r"^activation must be 'relu' or None; got "):
        check_activation(value)


# Options


@pytest.mark.parametrize("options", [None, {}, ConvOptions()], ids=["None", "empty", "checked"])
def test_default_options(options):
    assert conv_options(options) == DEFAULTS == ("default", False, "auto", None, False)


@given(testing.conv_options())
def test_options_that_are_given_are_kept_and_the_rest_is_default(given_options):
    checked = conv_options(given_options)
    assert checked._asdict() == DEFAULTS._asdict() | given_options
    assert conv_options(checked) == checked


@pytest.mark.parametrize("key", ["algorithm", "clip", "Math", 1, None], ids=repr)
def test_unknown_options_are_refused(key):
    message = r"^options: unknown key .*; known are math, deterministic, tune, workspace_lim"
    with pytest.raises(ValueError, match=message):
        conv_options({key: 1, "math": "strict"})


@pytest.mark.parametrize("key", ["math", "tune"])
@pytest.mark.parametrize("value", ["", None, 1, ["strict"]], ids=repr)
def test_options_of_choices(key, value):
    expected = TypeError if isinstance(value, list) else ValueError
    with pytest.raises(expected, match=rf"^options\['{key}'\] must be one of .*; got "):
        conv_options({key: value})


@pytest.mark.parametrize("checked", [conv_options, lambda given: rnn_options(given, "gru")])
@pytest.mark.parametrize(("value", "meant"), [(True, "'now'"), (False, "'auto'")])
def test_tune_is_a_name_for_networks_and_convolutions(checked, value, meant):
    with pytest.raises(
        TypeError,
        match=rf"^options\['tune'\] must be one of auto, off, now; got {value}: {meant} ",
    ):
        checked({"tune": value})


def test_find_is_refused_with_what_to_write_instead():
    with pytest.raises(ValueError, match=r"^options: unknown key 'find'; write 'tune': 'now' "):
        conv_options({"find": "search"})


@pytest.mark.parametrize("key", ["deterministic", "validate"])
@pytest.mark.parametrize("value", [1, 0, None, "yes"], ids=repr)
def test_options_that_are_flags(key, value):
    assert getattr(conv_options({key: True}), key) is True  # 1 == True is not to find this again
    assert getattr(conv_options({key: False}), key) is False
    with pytest.raises(TypeError, match=rf"^options\['{key}'\] must be True or False; got "):
        conv_options({key: value})


@pytest.mark.parametrize("value", [1.5, "1", True, [1]], ids=repr)
def test_the_workspace_limit_is_an_integer(value):
    with pytest.raises(TypeError, match=r"^options\['workspace_limit'\] must be an integer; got "):
        conv_options({"workspace_limit": value})


def test_the_workspace_limit_is_not_below_0():
    assert conv_options({"workspace_limit": 0}).workspace_limit == 0
    with pytest.raises(ValueError, match=r"^options\['workspace_limit'\] must be 0 bytes or more"):
        conv_options({"workspace_limit": -1})


@pytest.mark.parametrize("options", ["strict", ["math"], 1, True], ids=repr)
def test_options_are_a_dict(options):
    with pytest.raises(TypeError, match=r"^options must be a dict or None; got "):
        conv_options(options)
