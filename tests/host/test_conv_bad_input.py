"""Wrong arguments of the convolutions are refused before any call of the library, counted.

The cases are those of `test_convolution_bad_input`, on arrays of the stand-in.
"""

from __future__ import annotations

import numpy as np
import pytest
import test_convolution_bad_input as bad

import dnnffi

TABLES = (
    (bad.ALL, bad.EACH),
    (bad.FORWARDS, bad.FUSED),
    (("conv_transpose", bad.DATA[1], bad.WEIGHTS[1]), bad.OUTPUT_PADDING),
    ((*bad.DATA, *bad.WEIGHTS), bad.BACKWARD),
    *(
        (names, {what: (make, ValueError, message)})
        for what, (names, make, message) in bad.SHAPES.items()
    ),
)
CASES = [
    pytest.param(name, *case, id=f"{name}-{what}")
    for names, table in TABLES
    for name in names
    for what, case in table.items()
]


@pytest.mark.parametrize(("name", "make", "error", "message"), CASES)
def test_refused_before_any_call(shared_host, name, make, error, message):
    arguments = make(bad.right(name))

    def on_host(value):
        return shared_host.asarray(value) if isinstance(value, np.ndarray) else value

    arrays = [on_host(value) for value in arguments.arrays]
    keywords = {"backend": "cudnn"} | {
        name: on_host(value) if name == "residual" else value
        for name, value in arguments.keywords.items()
    }
    before = shared_host.calls("*")
    with pytest.raises(error, match=message) as caught:
        getattr(dnnffi, name)(*arrays, **keywords)
    assert type(caught.value) is error
    assert shared_host.calls("*") == before


def test_an_array_that_is_not_on_the_device(shared_host):
    x, w = bad.zeros(*bad.X), bad.zeros(*bad.W)
    for arrays, name in (((x, shared_host.asarray(w)), "x"), ((shared_host.asarray(x), w), "w")):
        with pytest.raises(TypeError, match=rf"^{name} must be a CuPy array .*; got ndarray$"):
            dnnffi.conv(*arrays, groups=2, backend="cudnn")
