"""The reference on CuPy arrays: the same values as on NumPy arrays, and they stay on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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

    tolerance = {"float16": 4e-3, "float32": 5e-5, "float64": 1e-12}[dtype]
    for found, expected in zip(run(cupy.asarray), run(np.asarray), strict=True):
        assert isinstance(found, cupy.ndarray)
        assert found.dtype == dtype
        expected = expected.astype(np.float64)
        error = abs(cupy.asnumpy(found).astype(np.float64) - expected).max()
        assert error <= tolerance * max(1.0, abs(expected).max())
