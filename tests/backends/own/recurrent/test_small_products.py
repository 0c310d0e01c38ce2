"""Tests of the products of small networks in one launch, against NumPy."""

from __future__ import annotations

import re
from itertools import groupby

import numpy as np
import pytest
from backends.own.recurrent.emulated_network import address
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16

from dnnffi.backends.own import source
from dnnffi.backends.own.recurrent import small_products
from dnnffi.backends.own.recurrent import source as recurrent_source
from dnnffi.backends.own.recurrent.config import Kind
from dnnffi.backends.own.recurrent.kernels import small_products_kernel
from dnnffi.backends.own.recurrent.small_products import (
    MAX_MACS,
    NetworkProducts,
    ProductShape,
    SmallProducts,
    can_be_small,
)
from dnnffi.device.interface import Launch, StreamAt
from simulators.cuda.emulator import EmulatedMemory

DTYPES = {"float16": np.float16, "bfloat16": bfloat16, "float32": np.float32}
TOLERANCES = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-3}  # float32 in TF32
LAUNCH = Launch(StreamAt(0), 0)


def kernel_of(memory, dtype, is_strict=False):
    return memory.kernel(*small_products_kernel(dtype, is_strict=is_strict))


def drawn(rng, dtype, *shape):
    return rng.uniform(-1, 1, shape).astype(DTYPES[dtype])


def assert_close(found, expected, dtype, terms):
    allowed = TOLERANCES[dtype] * max(1.0, terms) ** 0.5
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=allowed)


@st.composite
def products(draw):
    """Draw a product of strided matrices, transposed or not, with a batch and segments of k."""
    m, n, k = (draw(st.integers(1, 70)) for _ in range(3))
    batch, segments = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    gaps = [draw(st.sampled_from([0, 1, 8])) for _ in range(3)]
    return m, n, k, batch, segments, gaps, draw(st.booleans()), draw(st.booleans())


@given(
    products(), st.sampled_from(list(DTYPES)), st.booleans(), st.booleans(), st.integers(0, 2**32)
)
def test_strided_products_are_those_of_numpy(product, dtype, is_split, accumulate, seed):
    m, n, k, batch, segments, gaps, a_transposed, b_transposed = product
    rng = np.random.default_rng(seed)
    memory = EmulatedMemory()

    def matrix(rows, columns, transposed, gap, *, parts):
        """Return an array [parts, lines, line], its view as matrices, strides and part size."""
        lines, line = (columns, rows) if transposed else (rows, columns)
        array = memory.array(drawn(rng, dtype, parts, lines, line + gap))
        view = array[:, :, :line]
        strides = (1, line + gap) if transposed else (line + gap, 1)
        return array, view.transpose(0, 2, 1) if transposed else view, strides, array[0].size

    parts = batch * segments
    a, a_view, (a_m, a_k), a_part = matrix(m, k, a_transposed, gaps[0], parts=parts)
    b, b_view, (b_k, b_n), b_part = matrix(k, n, b_transposed, gaps[1], parts=parts)
    c = memory.array(drawn(rng, dtype, batch, m, n + gaps[2]))
    before = c.astype(np.float64)
    shape = ProductShape(
        *(a_m, a_k, b_k, b_n, n + gaps[2]),
        *(segments * a_part, segments * b_part, c[0].size, a_part, b_part),
        *(m, n, k, batch, segments),
    )
    made = SmallProducts(kernel_of(memory, dtype), [shape], 1)
    if not is_split:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(small_products, "MIN_WHOLE_TILES", 0)
            made = SmallProducts(kernel_of(memory, dtype), [shape], 1)
    made.run(LAUNCH, 1, [(address(a), address(b), address(c))], accumulate=accumulate)
    expected = np.einsum(
        "bsmk,bskn->bmn",
        a_view.astype(np.float64).reshape(batch, segments, m, k),
        b_view.astype(np.float64).reshape(batch, segments, k, n),
    )
    if accumulate:
        expected += before[:, :, :n]
    assert_close(c[:, :, :n], expected, dtype, k * segments)
    np.testing.assert_array_equal(c[:, :, n:].astype(np.float64), before[:, :, n:])
    memory.check_margins()


def test_a_strict_product_is_not_rounded_to_tf32():
    rng, memory = np.random.default_rng(0), EmulatedMemory()
    a, b = (memory.array(drawn(rng, "float32", 20, 33)) for _ in range(2))
    c = memory.array(np.zeros((20, 20), np.float32))
    shape = ProductShape(a_m=33, a_k=1, b_k=1, b_n=33, c_m=20, m=20, n=20, k=33)
    kernel = kernel_of(memory, "float32", is_strict=True)
    SmallProducts(kernel, [shape], 1).run(LAUNCH, 1, [tuple(map(address, (a, b, c)))])
    np.testing.assert_allclose(c, np.float64(a) @ np.float64(b).T, rtol=0, atol=1e-5)


def test_products_of_one_launch_are_independent():
    rng, memory = np.random.default_rng(0), EmulatedMemory()
    positions, sizes = 7, [(5, 40), (70, 3), (1, 1)]
    shapes, addresses, checks = [], [], []
    for inputs, columns in sizes:
        x = memory.array(drawn(rng, "float32", positions, inputs))
        weights = memory.array(drawn(rng, "float32", columns, inputs))
        result = memory.array(np.zeros((positions, columns), np.float32))
        strides = {"a_m": inputs, "a_k": 1, "b_k": 1, "b_n": inputs, "c_m": columns}
        shapes.append(ProductShape(**strides, n=columns, k=inputs))
        addresses.append((address(x), address(weights), address(result)))
        checks.append((result, x, weights))
    SmallProducts(kernel_of(memory, "float32"), shapes, positions).run(LAUNCH, positions, addresses)
    for result, x, weights in checks:
        expected = np.float64(x) @ np.float64(weights).T
        assert_close(result, expected, "float32", x.shape[1])


def test_gradients_of_many_matrices_take_as_few_launches_as_hold_them():
    kind = Kind("gru", 8, "float32", training=True)
    bound = NetworkProducts(None, kind, [3, 16, 16], directions=2).bind(64)
    assert [launch.count for launch in bound._dweights] == [15, 3]
    assert [launch.count for launch in bound.of_x] == [2, 2, 2]


def test_inference_has_no_products_for_gradients():
    bound = NetworkProducts(None, Kind("lstm", 8, "float32"), [3], directions=1).bind(64)
    assert (bound.dx, bound._dweights) == ([], [])


def test_products_are_small_up_to_a_number_of_multiply_adds():
    network = NetworkProducts(None, Kind("rnn_tanh", 16, "float32"), [4], directions=1)
    assert network.are_small(MAX_MACS // 64)
    assert not network.are_small(MAX_MACS // 64 + 1)


@pytest.mark.parametrize(("hidden", "is_small"), [(64, True), (4096, False)])
def test_only_networks_that_may_have_small_products_get_their_kernel(hidden, is_small):
    assert can_be_small(Kind("lstm", hidden, "float16"), [hidden]) == is_small


def test_a_shape_has_the_fields_of_the_struct_in_their_order():
    text = re.sub(r"/\*.*?\*/", "", source.text_of(recurrent_source.FOLDER, "small_products.cu"))
    (declared,) = re.findall(r"struct ProductShape\s*{(.*?)};", text, re.DOTALL)
    fields = [
        (name.strip(), {"int": "i", "long long": "q"}[kind])
        for kind, names in re.findall(r"(int|long long) ([^;]+);", declared)
        for name in names.split(",")
    ]
    assert [name for name, _ in fields] == list(ProductShape._fields)
    packed = "".join(f"{len(list(group))}{kind}" for kind, group in groupby(k for _, k in fields))
    assert small_products._SHAPE.format == f"<{packed}"
