"""Wrong arguments of the convolutions: the type of the error, and that it names the argument.

Each is tried before and after a right call of the same problem, whose plan may then be found.
"""

from __future__ import annotations

from math import nan
from typing import Any, NamedTuple

import numpy as np
import pytest

import dnnffi
from dnnffi.convolution.backend import conv_backends

# N = 2, C = 4, K = 6, two groups, images of 5 x 7, kernels of 3 x 3 with padding 1, in float32


class Arguments(NamedTuple):
    """The arguments of a function: arrays by position, and keywords."""

    arrays: tuple
    keywords: dict

    def with_(self, **keywords):
        return self._replace(keywords=self.keywords | keywords)

    def at(self, index, value):
        """Replace one positional argument; ``value`` may be a function of the old one."""
        arrays = list(self.arrays)
        arrays[index] = value(arrays[index]) if callable(value) else value
        return self._replace(arrays=tuple(arrays))


def zeros(*shape):
    return np.zeros(shape, "f4")


X, Y, W, TRANSPOSED_W = (2, 4, 5, 7), (2, 6, 5, 7), (6, 2, 3, 3), (4, 3, 3, 3)
KEYWORDS: dict[str, Any] = {"padding": 1, "groups": 2}


def right(name):
    """Right arguments of a function."""
    w = TRANSPOSED_W if "transpose" in name else W
    if name.endswith("data"):
        return Arguments((zeros(*Y), zeros(*w), X), KEYWORDS)
    if name.endswith("weights"):
        return Arguments((zeros(*Y), zeros(*X), w), KEYWORDS)
    return Arguments((zeros(*X), zeros(*w), zeros(6)), KEYWORDS | {"residual": zeros(*Y)})


FORWARDS = ("conv", "conv_transpose")
DATA = ("conv_backward_data", "conv_transpose_backward_data")
WEIGHTS = ("conv_backward_weights", "conv_transpose_backward_weights")
ALL = (*FORWARDS, *DATA, *WEIGHTS)


def call(name, arguments):
    return getattr(dnnffi, name)(*arguments.arrays, **arguments.keywords)


def refused(name, make, error, message):
    """``make`` turns right arguments into wrong ones."""
    for warm in (False, True):
        conv_backends.of("reference").plans.clear()
        if warm:
            call(name, right(name))
            call(name, right(name).with_(stride=1, dilation=1))
        with pytest.raises(error, match=message) as caught:
            call(name, make(right(name)))
        # The very class: a subclass of dnnffi's own is another thing.
        assert type(caught.value) is error


def cases(names, table):
    """Each case of a table with each function: (name, how to make it wrong, error, message)."""
    return pytest.mark.parametrize(
        ("name", "make", "error", "message"),
        [(name, *case) for name in names for case in table.values()],
        ids=[f"{name}-{what}" for name in names for what in table],
    )


@pytest.mark.parametrize("name", ALL)
def test_right_arguments_are_taken(name):
    call(name, right(name))


def keyword(error, message, **keywords):
    return (lambda a: a.with_(**keywords), error, message)


EACH = {
    "stride 0": keyword(ValueError, r"^stride must be from 1 to .*; got 0$", stride=0),
    "one stride 0": keyword(ValueError, r"^stride\[1\] must be from 1 .*; got 0$", stride=(1, 0)),
    "stride of True": keyword(TypeError, r"^stride must be an integer; got bool$", stride=True),
    "stride of a float": keyword(TypeError, r"^stride must be an integer; got float", stride=1.0),
    "a stride of a float": keyword(TypeError, r"^stride\[0\] must be an integer", stride=(1.0, 1)),
    "stride of None": keyword(TypeError, r"^stride must be an integer; got NoneType", stride=None),
    "stride of text": keyword(TypeError, r"^stride must be an integer; got str$", stride="11"),
    "three strides": keyword(ValueError, r"^stride must be one integer, or 2", stride=(1, 1, 1)),
    "an array of strides": keyword(TypeError, r"^stride must be an integer", stride=np.ones(2)),
    "negative padding": keyword(ValueError, r"^padding must be from 0 to .*; got -1$", padding=-1),
    "one negative padding": keyword(ValueError, r"^padding\[0\] must be from 0", padding=(-1, 1)),
    "padding of True": keyword(TypeError, r"^padding must be an integer; got bool$", padding=True),
    "padding of text": keyword(
        ValueError, r"^padding must be integers, pairs .*; got 'full'$", padding="full"
    ),
    "a negative side of padding": keyword(
        ValueError, r"^padding\[0\]\[1\] must be from 0 to .*; got -1$", padding=((0, -1), 1)
    ),
    "a side of padding of True": keyword(
        TypeError, r"^padding\[1\]\[0\] must be an integer; got bool$", padding=(1, (True, 1))
    ),
    "three sides of padding": keyword(
        ValueError, r"^padding\[0\] must be an integer or a pair", padding=((0, 1, 1), 1)
    ),
    "padding as begins and ends": keyword(
        ValueError, r"^padding must be one integer, or 2 .*give a pair", padding=(0, 0, 1, 1)
    ),
    "dilation 0": keyword(ValueError, r"^dilation must be from 1 to .*; got 0$", dilation=0),
    "dilation of a float": keyword(TypeError, r"^dilation must be an integer", dilation=1.0),
    "no groups": keyword(ValueError, r"^groups must be from 1 to .*; got 0$", groups=0),
    "negative groups": keyword(ValueError, r"^groups must be from 1 to .*; got -2$", groups=-2),
    "groups of a float": keyword(TypeError, r"^groups must be an integer; got float", groups=2.0),
    "unknown backend": keyword(
        ValueError,
        r"^backend must be one of cudnn, miopen, vulkan, reference or None; got 'cuda'",
        backend="cuda",
    ),
    "backend of a number": keyword(ValueError, r"^backend must be one of .*; got 0$", backend=0),
    "options of a list": keyword(TypeError, r"^options must be a dict", options=["math"]),
    "unknown option": keyword(ValueError, r"^options: unknown key 'algo'", options={"algo": 1}),
    "wrong option": keyword(
        ValueError, r"^options\['math'\] must be one", options={"math": "tf32"}
    ),
}


@cases(ALL, EACH)
def test_keywords_of_all(name, make, error, message):
    refused(name, make, error, message)


def test_groups_that_do_not_divide_the_output_channels():
    with pytest.raises(ValueError, match=r"^groups must divide the output channels, 6; got 4$"):
        dnnffi.conv(zeros(2, 8, 5, 5), zeros(6, 2, 3, 3), groups=4)


def test_groups_that_do_not_divide_the_input_channels():
    message = r"^x must have 6 channels \(from the weights, 3 group\(s\)\); got shape \(2, 7, "
    with pytest.raises(ValueError, match=message):
        dnnffi.conv(zeros(2, 7, 5, 5), zeros(6, 2, 3, 3), groups=3)
    with pytest.raises(ValueError, match=r"^groups must divide the input channels, 4; got 3$"):
        dnnffi.conv_transpose(zeros(2, 4, 5, 5), zeros(4, 3, 3, 3), groups=3)


FUSED = {
    "activation of another name": keyword(
        ValueError, r"^activation must be 'relu' or None; got 'tanh'$", activation="tanh"
    ),
    "activation of True": keyword(ValueError, r"^activation must be .*; got True", activation=True),
    "activation of a list": keyword(ValueError, r"^activation must be", activation=["relu"]),
    "alpha of text": keyword(TypeError, r"^alpha must be a number; got str$", alpha="1"),
    "alpha of True": keyword(TypeError, r"^alpha must be a number; got bool$", alpha=True),
    "complex alpha": keyword(TypeError, r"^alpha must be a number; got complex$", alpha=1j),
    "alpha of None": keyword(TypeError, r"^alpha must be a number; got NoneType$", alpha=None),
    "bias too long": (
        lambda a: a.at(2, zeros(7)),
        ValueError,
        r"^bias must have shape \(6,\); got \(7,\)$",
    ),
    "bias of rank 2": (
        lambda a: a.at(2, zeros(1, 6)),
        ValueError,
        r"^bias must have shape \(6,\); got \(1, 6\)$",
    ),
    "bias of rank 0": (
        lambda a: a.at(2, zeros()),
        ValueError,
        r"^bias must have shape \(6,\); got \(\)$",
    ),
    "bias of a number": (lambda a: a.at(2, 0.0), TypeError, r"^bias must be a NumPy or CuPy array"),
    "bias of another dtype": (
        lambda a: a.at(2, zeros(6).astype("f8")),
        TypeError,
        r"^bias must have the dtype of x, float32; got float64; (use bias\.ast|convert it)",
    ),
    "residual that would broadcast": keyword(
        ValueError,
        r"^residual must have shape \(2, 6, 5, 7\); got \(1, 6, 1, 1\)$",
        residual=zeros(1, 6, 1, 1),
    ),
    "residual of the input's shape": keyword(
        ValueError, r"^residual must have shape \(2, 6, 5, 7\)", residual=zeros(*X)
    ),
    "residual of a number": keyword(TypeError, r"^residual must be a NumPy or CuPy", residual=1.0),
    "residual of another dtype": keyword(
        TypeError,
        r"^residual must have the dtype of x, float32; got float16; (use residual|convert it)",
        residual=zeros(*Y).astype("f2"),
    ),
    "x of a list": (
        lambda a: a.at(0, np.ndarray.tolist),
        TypeError,
        r"^x must be .*; got list(; use |$)",
    ),
    "x of None": (lambda a: a.at(0, None), TypeError, r"^x must be a NumPy .*; got NoneType$"),
    "x of rank 2": (
        lambda a: a.at(0, zeros(4, 5)),
        ValueError,
        r"^x must have 3, 4 or 5 dimensions, \[N, channels, ...\]; got shape \(4, 5\)$",
    ),
    "x of rank 6": (lambda a: a.at(0, zeros(*X, 1, 1)), ValueError, r"^x must have 3, 4 or 5 dim"),
    "x of rank 0": (lambda a: a.at(0, zeros()), ValueError, r"^x must have 3, 4 or 5 dimensions"),
    "x of rank 3 with such a w": (
        lambda a: a.at(0, zeros(2, 4, 5)),
        ValueError,
        r"^x must have 4 dimensions, as the weights; got \(2, 4, 5\)$",
    ),
    "x of other channels": (
        lambda a: a.at(0, zeros(2, 8, 5, 7)),
        ValueError,
        r"^x must have 4 channels \(from the weights, 2 group\(s\)\); got shape \(2, 8, 5, 7\)$",
    ),
    "x of no width": (
        lambda a: a.at(0, zeros(2, 4, 5, 0)),
        ValueError,
        r"^x must have no spatial dimension of size 0; dimension 1 has size 0$",
    ),
    "x of integers": (
        lambda a: a.at(0, np.zeros(X, int)),
        TypeError,
        r"^x must have one of the dtypes float16, bfloat16, float32, float64; got int64; (u|c)",
    ),
    "x of bools": (lambda a: a.at(0, np.zeros(X, bool)), TypeError, r"^x must have one of the dt"),
    "all of integers": (
        lambda a: Arguments(tuple(b.astype("i4") for b in a.arrays), KEYWORDS),
        TypeError,
        r"^x must have one of the dtypes .*; got int32; (use|convert)",
    ),
    "all complex": (
        lambda a: Arguments(tuple(b.astype("c8") for b in a.arrays), KEYWORDS),
        TypeError,
        r"^x must have one of the dtypes .*; got complex64; (use|convert)",
    ),
    "w of another dtype": (
        lambda a: a.at(1, lambda w: w.astype("f8")),
        TypeError,
        r"^w must have the dtype of x, float32; got float64; (use w\.ast|convert it)",
    ),
    "x of another dtype": (
        lambda a: a.at(0, lambda x: x.astype("f8")),
        TypeError,
        r"^w must have the dtype of x, float64; got float32; (use w\.ast|convert it)",
    ),
    "w of integers": (
        lambda a: a.at(1, lambda w: w.astype(int)),
        TypeError,
        r"^w must have the dtype of x, float32; got int64; (use w\.ast|convert it)",
    ),
    "w of rank 2": (lambda a: a.at(1, zeros(6, 2)), ValueError, r"^w must have 3, 4 or 5 dimensi"),
    "w of rank 3": (
        lambda a: a.at(1, lambda w: w[..., 0]),
        ValueError,
        r"^x must have 3 dimensions, as the weights; got \(2, 4, 5, 7\)$",
    ),
    "w of no output channels": (
        lambda a: a.at(1, lambda w: w[:0]),
        ValueError,
        r"^w must have no dimension of size 0; got",
    ),
    "w of no kernel": (
        lambda a: a.at(1, lambda w: w[..., :0]),
        ValueError,
        r"^w must have no dimension of size 0",
    ),
    "w of a list": (
        lambda a: a.at(1, [1.0]),
        TypeError,
        r"^w must be a NumPy .*; got list(; use |$)",
    ),
}


@cases(FORWARDS, FUSED)
def test_arrays_and_keywords_of_a_forward(name, make, error, message):
    refused(name, make, error, message)


def test_a_kernel_larger_than_the_padded_input():
    message = r"^x is smaller than the kernel: spatial dimension 1 has size 2, 4 with its padding, "
    with pytest.raises(ValueError, match=message):
        dnnffi.conv(zeros(1, 1, 9, 2), zeros(1, 1, 3, 3), dilation=2, padding=1)
    with pytest.raises(ValueError, match=r"^x_shape is smaller than the kernel"):
        dnnffi.conv_backward_data(zeros(1, 1, 1), zeros(1, 1, 3), (1, 1, 2))
    with pytest.raises(ValueError, match=r"^x is smaller than the kernel"):
        dnnffi.conv_backward_weights(zeros(1, 1, 1), zeros(1, 1, 2), (1, 1, 3))


def test_padding_that_leaves_nothing_of_a_transposed_output():
    with pytest.raises(ValueError, match=r"^padding\[0\] cuts off all of the output"):
        dnnffi.conv_transpose(zeros(1, 1, 2), zeros(1, 1, 2), padding=2)


OUTPUT_PADDING = {
    "as large as stride and dilation": keyword(
        ValueError,
        r"^output_padding\[0\] must be smaller than the larger of stride and dilation, 1; got 1$",
        output_padding=1,
    ),
    "as large as the stride": keyword(
        ValueError, r"^output_padding\[1\] must be .*, 2; got 2", stride=2, output_padding=(0, 2)
    ),
    "as large as the dilation": keyword(
        ValueError, r"^output_padding\[0\] must be .*, 3; got 3$", dilation=3, output_padding=3
    ),
    "negative": keyword(ValueError, r"^output_padding must be from 0", output_padding=-1),
    "of False": keyword(TypeError, r"^output_padding must be an integer", output_padding=False),
}


@cases(("conv_transpose", DATA[1], WEIGHTS[1]), OUTPUT_PADDING)
def test_output_padding(name, make, error, message):
    refused(name, make, error, message)


@pytest.mark.parametrize("name", ["conv", DATA[0], WEIGHTS[0]])
def test_an_ordinary_convolution_takes_no_output_padding(name):
    with pytest.raises(TypeError, match="unexpected keyword argument 'output_padding'"):
        call(name, right(name).with_(output_padding=0))


BACKWARD = {
    "dy of a list": (
        lambda a: a.at(0, np.ndarray.tolist),
        TypeError,
        r"^dy must be .*; got list(; use |$)",
    ),
    "dy of rank 2": (lambda a: a.at(0, zeros(2, 6)), ValueError, r"^dy must have 3, 4 or 5 dimen"),
    "dy of another size": (
        lambda a: a.at(0, zeros(2, 6, 5, 6)),
        ValueError,
        r"^dy must have shape \(2, 6, 5, 7\); got \(2, 6, 5, 6\)$",
    ),
    "dy of another batch": (
        lambda a: a.at(0, zeros(3, 6, 5, 7)),
        ValueError,
        r"^dy must have shape \(2, 6, 5, 7\); got \(3, 6, 5, 7\)$",
    ),
    "dy of other channels": (
        lambda a: a.at(0, zeros(2, 5, 5, 7)),
        ValueError,
        r"^dy must have shape \(2, 6, 5, 7\); got \(2, 5, 5, 7\)$",
    ),
    "dy of rank 3": (
        lambda a: a.at(0, zeros(2, 6, 5)),
        ValueError,
        r"^(dy|x|x_shape|padding) must",
    ),
    "dy of integers": (
        lambda a: a.at(0, lambda dy: dy.astype(int)),
        TypeError,
        r"^dy must have one of the dtypes",
    ),
    "the other of another dtype": (
        lambda a: a.at(1, lambda array: array.astype("f2")),
        TypeError,
        r"^[wx] must have the dtype of dy, float32; got float16; (use [wx]\.ast|convert it)",
    ),
    "the other of a number": (lambda a: a.at(1, 1.0), TypeError, r"^[wx] must be a NumPy or CuPy"),
    "shape of a number": (
        lambda a: a.at(2, 3),
        TypeError,
        r"^[wx]_shape must be a tuple of integers; got int$",
    ),
    "shape of None": (
        lambda a: a.at(2, None),
        TypeError,
        r"^[wx]_shape must be a tuple of integers; got NoneType",
    ),
    "shape of text": (lambda a: a.at(2, "2457"), TypeError, r"^[wx]_shape must be a tuple"),
    "shape of bytes": (lambda a: a.at(2, b"\2\4\5\7"), TypeError, r"^[wx]_shape must be a tuple"),
    "shape of floats": (
        lambda a: a.at(2, tuple(map(float, a.arrays[2]))),
        TypeError,
        r"^[wx]_shape\[0\] must be an integer; got float$",
    ),
    "shape of bools": (
        lambda a: a.at(2, (True, *a.arrays[2][1:])),
        TypeError,
        r"^[wx]_shape\[0\] must be an int",
    ),
    "shape of rank 2": (
        lambda a: a.at(2, (2, 4)),
        ValueError,
        r"^[wx]_shape must be a shape of 3, 4 or 5 dim",
    ),
    "negative shape": (
        lambda a: a.at(2, (-1, *a.arrays[2][1:])),
        ValueError,
        r"^[wx]_shape\[0\] must be from 0 to 9223372036854775807; got -1$",
    ),
    "huge shape": (
        lambda a: a.at(2, (*a.arrays[2][:-1], 10**5000)),
        ValueError,
        r"^[wx]_shape\[3\] must be from 0 to .*; got an integer of 16610 bits$",
    ),
}


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", ALL)
def test_a_masked_array_is_refused(name, index):
    message = r"^(x|w|dy) must be a plain array; got MaskedArray$"
    refused(name, lambda a: a.at(index, np.ma.masked_array), TypeError, message)


@cases((*DATA, *WEIGHTS), BACKWARD)
def test_arguments_of_a_backward(name, make, error, message):
    refused(name, make, error, message)


SHAPES = {
    "x_shape of other channels": (
        DATA,
        lambda a: a.at(2, (2, 6, 5, 7)),
        r"^x_shape must have 4 channels",
    ),
    "x_shape of another size": (
        DATA,
        lambda a: a.at(2, (2, 4, 5, 9)),
        r"^dy must have shape \(2, 6, 5, 9\); got",
    ),
    "x_shape of another batch": (
        DATA,
        lambda a: a.at(2, (1, 4, 5, 7)),
        r"^dy must have shape \(1, 6, 5, 7\); got",
    ),
    "w of other output channels": (
        DATA[:1],
        lambda a: a.at(1, zeros(8, 2, 3, 3)),
        r"^dy must have shape \(2, 8, 5, 7\); got",
    ),
    "w_shape of other input channels": (
        WEIGHTS,
        lambda a: a.at(2, (8, 8, 3, 3)),
        r"^x must have (16|8) channels",
    ),
    "w_shape of another kernel": (
        WEIGHTS[:1],
        lambda a: a.at(2, (6, 2, 1, 3)),
        r"^dy must have shape \(2, 6, 7, 7\); got",
    ),
    "w_shape of size 0": (
        WEIGHTS,
        lambda a: a.at(2, (6, 0, 3, 3)),
        r"^w_shape must have no dimension of size 0",
    ),
    "x of another batch": (
        WEIGHTS,
        lambda a: a.at(1, zeros(3, 4, 5, 7)),
        r"^dy must have shape \(3, 6, 5, 7\); got",
    ),
}


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [(name, make, message) for names, make, message in SHAPES.values() for name in names],
    ids=[f"{name}-{what}" for what, (names, *_) in SHAPES.items() for name in names],
)
def test_shapes_that_disagree(name, make, message):
    refused(name, make, ValueError, message)


BIAS_GRADIENT = {
    "a list": ([1.0], TypeError, r"^dy must be a NumPy or CuPy array"),
    "of rank 2": (zeros(2, 6), ValueError, r"^dy must have 3, 4 or 5 dimensions"),
    "of integers": (
        np.zeros(Y, int),
        TypeError,
        r"^dy must have one of the dtypes .*; got int64; (use|convert)",
    ),
}


@pytest.mark.parametrize(
    ("dy", "error", "message"), BIAS_GRADIENT.values(), ids=list(BIAS_GRADIENT)
)
def test_the_gradient_of_the_bias(dy, error, message):
    with pytest.raises(error, match=message):
        dnnffi.conv_backward_bias(dy)


@pytest.mark.parametrize("name", ALL)
def test_an_empty_batch_is_checked_as_any_other(name):
    def empty(arguments):
        arrays = tuple(
            (0, *X[1:]) if array is X else array[:0] if np.shape(array) in (X, Y) else array
            for array in arguments.arrays
        )
        return Arguments(arrays, KEYWORDS)

    call(name, empty(right(name)))
    refused(
        name,
        lambda a: empty(a).at(1, lambda array: array.astype("f8")),
        TypeError,
        r"^[wx] must have the dtype of (x|dy), float32; got float64; (use [wx]\.ast|convert it)",
    )


def test_an_alpha_of_nan_is_a_number():
    y = dnnffi.conv(zeros(*X), zeros(*W), **KEYWORDS, residual=zeros(*Y), alpha=nan)
    assert np.isnan(y).all()
