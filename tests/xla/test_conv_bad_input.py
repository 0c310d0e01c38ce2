"""Wrong arguments of convolutions on JAX arrays: an error while tracing that names the argument."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dnnffi import jax as djax
from dnnffi.errors import UnsupportedError

X, W, BIAS = jnp.ones((2, 4, 5, 6)), jnp.ones((6, 2, 3, 3)), jnp.ones(6)


def conv(x=X, w=W, bias=BIAS, **keywords):
    return djax.conv(x, w, bias, **{"groups": 2} | keywords)


CASES = {
    "x of a list": (TypeError, "x must be an array", lambda: conv([[1.0]])),
    "x of two dimensions": (ValueError, "x must have 3, 4 or 5 dim", lambda: conv(X[0, 0])),
    "x of other dimensions": (ValueError, "x must have 4 dimensions", lambda: conv(X[0])),
    "x of other channels": (ValueError, "x must have 4 channels", lambda: conv(X[:, :3])),
    "x smaller than the kernel": (
        ValueError,
        "x is smaller than the kernel",
        lambda: conv(X[:, :, :2]),
    ),
    "x of integers": (TypeError, "x must have one of the dtypes", lambda: conv(X.astype("int32"))),
    "w of another dtype": (
        TypeError,
        "w must have the dtype of x, float32; got float16",
        lambda: conv(w=W.astype("float16")),
    ),
    "w of two dimensions": (ValueError, "w must have 3, 4 or 5 dim", lambda: conv(w=W[0, 0])),
    "w of nothing": (ValueError, "w must have no dimension of size 0", lambda: conv(w=W[:0])),
    "bias of another shape": (
        ValueError,
        "bias must have shape (6,); got (5,)",
        lambda: conv(bias=BIAS[1:]),
    ),
    "bias of a number": (TypeError, "bias must be an array", lambda: conv(bias=1.0)),
    "residual of another shape": (
        ValueError,
        "residual must have shape (2, 6, 3, 4); got (2, 4, 5, 6)",
        lambda: conv(residual=X),
    ),
    "residual of the other layout": (
        ValueError,
        "residual must have shape (2, 3, 4, 6); got (2, 6, 3, 4)",
        lambda: conv(
            jnp.moveaxis(X, 1, -1),
            jnp.moveaxis(W, 1, -1),
            residual=jnp.ones((2, 6, 3, 4)),
            layout="channels_last",
        ),
    ),
    "stride": (ValueError, "stride", lambda: conv(stride=0)),
    "strides": (ValueError, "stride must be one integer, or 2", lambda: conv(stride=(1, 1, 1))),
    "padding": (ValueError, "padding must be integers, pairs", lambda: conv(padding="full")),
    "a side of padding": (
        ValueError,
        "padding[1][0] must be from 0",
        lambda: conv(padding=(0, (-1, 0))),
    ),
    "dilation": (TypeError, "dilation must be an integer", lambda: conv(dilation=1.5)),
    "groups": (ValueError, "groups must divide the output channels", lambda: conv(groups=4)),
    "activation": (ValueError, "activation must be 'relu'", lambda: conv(activation="tanh")),
    "alpha": (TypeError, "alpha must be a number", lambda: conv(residual=X, alpha="1")),
    "layout": (ValueError, "layout must be one of", lambda: conv(layout="NHWC")),
    "an unhashable layout": (TypeError, "layout must be one of", lambda: conv(layout=[])),
    "implementation": (
        ValueError,
        "implementation must be one of cudnn, reference, lax or None; got 'scan'",
        lambda: conv(implementation="scan"),
    ),
    "an implementation that is not there": (
        UnsupportedError,
        "no device of cuda, where implementation 'cudnn' runs",
        lambda: conv(implementation="cudnn"),
    ),
    "options": (ValueError, "options", lambda: conv(options={"maths": "strict"})),
    "a stream": (
        ValueError,
        "options['stream'] is of dnnffi's own functions; in JAX",
        lambda: conv(options={"stream": 1}),
    ),
    "validate": (
        ValueError,
        "options['validate'] is of dnnffi's own functions",
        lambda: conv(options={"validate": True}),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_named(case):
    error, words, call = CASES[case]
    with pytest.raises(error, match=re.escape(words)):
        call()


def test_a_wrong_shape_is_found_while_tracing():
    with pytest.raises(ValueError, match="x must have 4 channels"):
        jax.eval_shape(conv, jax.ShapeDtypeStruct((2, 9, 5, 6), np.float32))
