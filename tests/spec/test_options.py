"""options of a call: defaults, and refusal of wrong keys and values."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi import testing
from dnnffi.errors import UnsupportedError
from dnnffi.spec.options import (
    ALGORITHMS,
    DEFAULTS,
    VENDOR_ALGORITHMS,
    RNNOptions,
    check_algorithm,
    rnn_options,
)

MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@pytest.mark.parametrize("options", [None, {}, RNNOptions()], ids=["None", "empty", "checked"])
@pytest.mark.parametrize("mode", MODES)
def test_defaults(options, mode):
    assert rnn_options(options, mode) == DEFAULTS
    assert DEFAULTS == ("auto", "default", None, "propagate", False, "auto")


@given(st.data(), st.sampled_from(MODES))
def test_what_is_given_is_kept_and_the_rest_is_default(data, mode):
    given_options = data.draw(testing.options(mode, algorithms=ALGORITHMS))
    checked = rnn_options(given_options, mode)
    assert checked._asdict() == DEFAULTS._asdict() | given_options
    assert rnn_options(checked, mode) == checked
    assert rnn_options(checked._asdict(), mode) == checked


@pytest.mark.parametrize("key", ["algo", "Algorithm", "clip_min", 1, None, ("clip",)], ids=repr)
def test_unknown_key(key):
    with pytest.raises(
        ValueError, match=r"^options: unknown key .*; known are algorithm, math, cl"
    ):
        rnn_options({key: 1, "math": "strict"}, "lstm")


@pytest.mark.parametrize("key", ["allocator", "stream"])
def test_options_of_the_functions_alone_are_not_called_unknown(key):
    with pytest.raises(ValueError, match=rf"^options\['{key}'\] is for the functions, "):
        rnn_options({key: 1}, "lstm")


@pytest.mark.parametrize("options", ["strict", ["math"], 1, True, (("math", "strict"),)], ids=repr)
def test_options_are_a_dict(options):
    with pytest.raises(TypeError, match=r"^options must be a dict or None; got "):
        rnn_options(options, "lstm")


BAD_CHOICES = ["AUTO", "", None, 1, True, ["auto"], np.zeros(2)]


@pytest.mark.parametrize("value", BAD_CHOICES, ids=repr)
@pytest.mark.parametrize("key", ["algorithm", "math", "clip_nan"])
def test_choices(key, value):
    expected = TypeError if isinstance(value, list | np.ndarray) else ValueError
    with pytest.raises(expected, match=rf"^options\['{key}'\] must be one of .*; got "):
        rnn_options({key: value}, "lstm")


@pytest.mark.parametrize("value", [1, 0, None, "yes", [True]], ids=repr)
def test_validate_is_a_bool(value):
    assert rnn_options({"validate": True}, "lstm").validate  # 1 == True is not to find this again
    assert not rnn_options({"validate": False}, "lstm").validate
    with pytest.raises(TypeError, match=r"^options\['validate'\] must be True or False; got "):
        rnn_options({"validate": value}, "lstm")


@pytest.mark.parametrize("clip", [(-1, 1), [-1, 1], (np.float32(-1), np.int64(1))], ids=repr)
def test_clip_is_two_numbers(clip):
    assert rnn_options({"clip": clip}, "lstm").clip == (-1.0, 1.0)


@pytest.mark.parametrize("clip", [(0, 0), (-inf, 1), (-inf, inf)], ids=repr)
def test_clip_may_be_narrow_or_infinite(clip):
    assert rnn_options({"clip": clip}, "lstm").clip == clip


@pytest.mark.parametrize(
    "clip", [1, (), (1,), (1, 2, 3), "01", {-1: 1}, np.array([-1, 1])], ids=repr
)
def test_clip_is_a_pair(clip):
    with pytest.raises(TypeError, match=r"^options\['clip'\] must be \(low, high\) or None; got "):
        rnn_options({"clip": clip}, "lstm")


@pytest.mark.parametrize("clip", [(None, 1), (-1, None), ("-1", "1"), (-1, 1j), ([1], 2)], ids=repr)
def test_bounds_are_numbers(clip):
    with pytest.raises(TypeError, match=r"^options\['clip'\] must be two numbers; got "):
        rnn_options({"clip": clip}, "lstm")


@pytest.mark.parametrize("clip", [(1, -1), (nan, 1), (-1, nan)], ids=repr)
def test_bounds_are_in_order(clip):
    with pytest.raises(
        ValueError, match=r"^options\['clip'\] must be \(low, high\) with low <= hi"
    ):
        rnn_options({"clip": clip}, "lstm")


@pytest.mark.parametrize("options", [{"clip": (-1, 1)}, RNNOptions(clip=(-1, 1))], ids=repr)
@pytest.mark.parametrize("mode", MODES[1:])
def test_only_an_lstm_is_clipped(mode, options):
    with pytest.raises(ValueError, match=rf"^options\['clip'\]: only an LSTM .*mode is '{mode}'"):
        rnn_options(options, mode)


@pytest.mark.parametrize(
    ("backend", "owner"), [("cudnn", "miopen"), ("miopen", "cudnn")], ids=["cudnn", "miopen"]
)
def test_an_algorithm_is_one_of_its_backends(backend, owner):
    own = VENDOR_ALGORITHMS[backend]
    for algorithm in ("auto", *own):
        options = RNNOptions(algorithm=algorithm)
        assert check_algorithm(backend, "Vendor", "1.0", options) == algorithm
    for algorithm in VENDOR_ALGORITHMS[owner]:
        message = (
            rf"^Vendor 1.0: has no algorithm {algorithm!r}, which is one of backend {owner!r}; "
            rf"it has auto, {', '.join(own)}$"
        )
        with pytest.raises(UnsupportedError, match=message):
            check_algorithm(backend, "Vendor", "1.0", RNNOptions(algorithm=algorithm))
