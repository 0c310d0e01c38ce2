"""The reference on CuPy arrays: the same values as on NumPy arrays, and they stay on the device."""

from __future__ import annotations

from typing import Any

import conformance_conv
import numpy as np
import pytest
from comparison import TOLERANCES, assert_near

import dnnffi
from dnnffi.reference.rnn import backward, dropout_masks, forward
from dnnffi.spec.rnn import RNNSpec

pytestmark = pytest.mark.gpu

LAYOUTS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "dense": ((5, 4), {}),
    "batch_first": ((4, 5), {"batch_first": True, "lengths": (2, 5, 1, 3)}),
    "packed": ((9,), {"batch_sizes": (4, 2, 1, 1, 1)}),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_cupy_gives_what_numpy_gives(mode: str, layout: str, dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU")
    shape, options = LAYOUTS[layout]
    lstm = mode == "lstm"
    spec = RNNSpec(
        mode=mode,
        input_size=3,
        hidden_size=6,
        num_layers=2,
        bidirectional=True,
        proj_size=2 if lstm else 0,
        dtype=dtype,
    )
    if lstm:
        options = options | {"clip": (-0.5, 0.5), "clip_nan": "clip"}
    rng = np.random.default_rng(0)

    def normal(shape: tuple[int, ...]) -> np.ndarray:
        return rng.normal(size=shape).astype(dtype)

    x, h_0 = normal((*shape, 3)), normal(spec.h_shape(4))
    c_0 = normal(spec.c_shape(4)) if lstm else None
    weights = [normal(p.shape) for p in spec.parameter_shapes()]
    masks = dropout_masks(spec, 5, 4, 0.5, rng)
    dy, dh_n = normal((*shape, 2 * spec.output_size)), normal(h_0.shape)

    def run(put: Any) -> list[Any]:
        c = None if c_0 is None else put(c_0)
        on = {"masks": [put(mask) for mask in masks], **options}
        result = forward(spec, put(x), put(h_0), c, [put(w) for w in weights], **on)
        g = backward(result.tape, put(dy), put(dh_n))
        found = [result.y, result.h_n, result.c_n, g.x, g.h_0, g.c_0, *g.weights]
        return [a for a in found if a is not None]

    for found, expected in zip(run(cupy.asarray), run(np.asarray), strict=True):
        assert isinstance(found, cupy.ndarray)
        assert found.dtype == dtype
        assert_near(cupy.asnumpy(found), expected, TOLERANCES[dtype])


@pytest.mark.parametrize(
    "case",
    [case for case in conformance_conv.matrix() if case.problem.spec.dtype != "bfloat16"],
    ids=str,
)
def test_convolutions_on_cupy_are_within_the_tolerance(case) -> None:
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU")
    conformance_conv.check(case, cupy.asarray, "reference")


def test_an_empty_batch_of_cupy_arrays_gives_one() -> None:
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU")
    x, w = cupy.zeros((0, 4, 5, 5), "f4"), cupy.zeros((6, 4, 3, 3), "f4")
    y = dnnffi.conv(x, w, backend="reference")
    assert isinstance(y, cupy.ndarray)
    assert y.shape == (0, 6, 3, 3)
    dw = dnnffi.conv_backward_weights(y, x, w.shape, backend="reference")
    assert not dw.any()


def test_convolutions_refuse_arrays_of_both_kinds() -> None:
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU")
    x, w = np.zeros((1, 4, 5, 5), "f4"), cupy.zeros((6, 4, 3, 3), "f4")
    with pytest.raises(ValueError, match=r"^w must be where x is, host; it is on cuda:0$"):
        dnnffi.conv(x, w)
    with pytest.raises(ValueError, match=r"^w must be where x is, cuda:0; it is on host$"):
        dnnffi.conv(cupy.asarray(x), w.get(), backend="reference")


def test_the_gradient_of_the_bias_needs_no_vendor() -> None:
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU")
    db = dnnffi.conv_backward_bias(cupy.ones((3, 2, 1500), "f2"))
    assert isinstance(db, cupy.ndarray)
    assert db.get().tolist() == [4500.0] * 2
