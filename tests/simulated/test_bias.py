"""The kernels for the gradient of a bias, their CUDA source run as C."""

from __future__ import annotations

import numpy as np
import pytest

from dnnffi.backends.own import bias as own_bias
from dnnffi.backends.own.bias import BiasGradient, can_sum
from dnnffi.convolution import bias as conv_bias
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.graphs import recording
from dnnffi.device.interface import Launch
from dnnffi.errors import CaptureError
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST

DTYPES = ("float16", "bfloat16", "float32", "float64")
DIGITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 1e-6, "float64": 1e-14}


def run(simulator, values, layout):
    """The gradient of the bias of a host array [N, K, ...]."""
    kernel = BiasGradient(values.shape, layout, values.dtype.name, 0, simulator.memory)
    ordered = values if layout == CHANNELS_FIRST else np.moveaxis(values, 1, -1)
    dy = simulator.asarray(np.ascontiguousarray(ordered))
    db = simulator.memory.empty((values.shape[1],), values.dtype)
    workspace = simulator.memory.empty((kernel.workspace_bytes,), np.uint8)
    launch = Launch(simulator.memory.current_stream(), 0)
    kernel.run(launch, *(array.data.ptr for array in (dy, db, workspace)))
    return np.array(db)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [CHANNELS_FIRST, CHANNELS_LAST])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 5, 37), (2, 33, 7, 9), (1, 70, 1, 1), (4, 3, 5, 6, 7), (9, 2, 80, 31)]
)
def test_the_sum(simulator, dtype, layout, shape):
    values = np.random.default_rng(0).standard_normal(shape).astype(dtype_object(dtype))
    wide = values.astype("float64")
    axes = (0, *range(2, len(shape)))
    off = np.abs(run(simulator, values, layout).astype("float64") - wide.sum(axis=axes))
    assert (off <= DIGITS[dtype] * np.abs(wide).sum(axis=axes)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_numbers_of_16_bits_are_read_and_rounded(simulator, dtype):
    # One number a channel: the sum is the number itself.
    values = np.arange(2**16, dtype=np.uint16).view(dtype_object(dtype)).reshape(1, -1, 1)
    found = run(simulator, values, CHANNELS_FIRST)
    expected = values.reshape(-1).astype("float32")
    np.testing.assert_array_equal(found.astype("float32"), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_are_rounded_to_even(simulator, dtype):
    random = np.random.default_rng(0)
    # Sums of two numbers that the type cannot hold, ties and overflows and subnormals among them.
    bits = random.integers(0, 2**16, (2, 2**16), dtype=np.uint16)
    bits[1] = (bits[0] & 0x7F80) - random.integers(0, 2**11, 2**16, dtype=np.uint16)
    values = bits.view(dtype_object(dtype))
    with np.errstate(all="ignore"):
        wide = values.astype("float32")
        expected = (wide[0] + wide[1]).astype(values.dtype)
    found = run(simulator, values[..., None], CHANNELS_LAST)
    np.testing.assert_array_equal(found.astype("float32"), expected.astype("float32"))


def test_infinity_and_nan_stay(simulator):
    values = np.array([[1, np.inf, np.nan], [1, 2, 3]], "float16")[..., None]
    assert run(simulator, values, CHANNELS_FIRST).tolist()[:2] == [2, np.inf]
    assert np.isnan(run(simulator, values, CHANNELS_FIRST)[2])


def test_many_parts_of_few_channels(simulator):
    values = np.ones((2, 2, 300, 200), "float32")
    for layout in (CHANNELS_FIRST, CHANNELS_LAST):
        kernel = BiasGradient(values.shape, layout, "float32", 0, simulator.memory)
        assert kernel.workspace_bytes > 2 * 4 * 8
        assert run(simulator, values, layout).tolist() == [120000.0] * 2


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((0, 3, 4), False),
        ((2, 0, 5), False),
        ((2, 3, 4), True),
        ((1, 3, 2**15, 2**15), True),
        ((2**16, 1, 2**15), False),
    ],
)
def test_what_it_is_for(shape, expected):
    assert can_sum(shape) == expected


def test_a_long_sum_of_16_bits_does_not_stop_growing(simulator):
    # In float16 a sum of ones stays at 2048.
    assert run(simulator, np.ones((3, 1, 1500), "f2"), CHANNELS_FIRST).tolist() == [4500.0]


@pytest.fixture
def on_host(simulator, monkeypatch):
    """The functions for CuPy arrays, on arrays of the host."""
    own_bias._gradient.cache_clear()
    monkeypatch.setattr(conv_bias, "cupy_memory", lambda: simulator.memory)
    yield simulator
    own_bias._gradient.cache_clear()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2)])
def test_an_array_is_summed_where_it_is(on_host, order):
    dy = on_host.asarray(np.arange(2 * 5 * 6 * 4, dtype="f4").reshape(2, 5, 6, 4)).transpose(order)
    found = conv_bias.backward_bias(dy)
    np.testing.assert_array_equal(found, np.array(dy).sum(axis=(0, 2, 3)))
    dy += 1
    again = conv_bias.backward_bias(dy)
    np.testing.assert_array_equal(again, np.array(dy).sum(axis=(0, 2, 3)))
    assert own_bias._gradient.cache_info().hits == 1


def test_an_array_that_is_not_aligned_to_its_elements(on_host, monkeypatch):
    values = np.arange(2 * 5 * 6 * 4, dtype="f4").reshape(2, 5, 6, 4)
    room = on_host.memory.empty((values.nbytes + 1,), np.uint8)[1:]
    dy = room.view("f4").reshape(values.shape)
    dy[...] = values
    addresses, kernel = [], BiasGradient.run

    def run(self, launch, dy, *rest):
        addresses.append(dy)
        kernel(self, launch, dy, *rest)

    monkeypatch.setattr(BiasGradient, "run", run)
    np.testing.assert_array_equal(conv_bias.backward_bias(dy), values.sum(axis=(0, 2, 3)))
    assert [address % 4 for address in addresses] == [0]
    with pytest.raises(ValueError, match=r"^dy must begin at a multiple of its elements' 4 bytes"):
        conv_bias.backward_bias(dy[..., ::2])


@pytest.mark.parametrize(
    ("shape", "strides", "layout"),
    [
        ((2, 3, 4, 5), (60, 20, 5, 1), CHANNELS_FIRST),
        ((2, 3, 4, 5), (60, 1, 15, 3), CHANNELS_LAST),
        ((2, 3, 4, 5), (80, 20, 5, 1), None),
        ((2, 3, 4, 5), (80, 1, 20, 4), None),
        ((2, 3, 4, 5), (60, 20, 1, 4), None),
        ((2, 3, 4, 5), (0, 0, 0, 0), None),
        ((1, 3, 4), (7, 4, 1), CHANNELS_FIRST),
        ((1, 3, 4), (7, 1, 3), CHANNELS_LAST),
    ],
)
def test_only_arrays_without_gaps_are_summed_as_they_are(
    on_host, monkeypatch, shape, strides, layout
):
    monkeypatch.setattr(own_bias, "BiasGradient", lambda shape, layout, *rest: layout)
    in_bytes = tuple(4 * stride for stride in strides)
    assert own_bias._gradient(shape, in_bytes, np.dtype("f4"), 0, on_host.memory) == layout


@pytest.mark.parametrize("channels_last", [False, True])
def test_an_array_with_gaps_is_copied_in_its_layout(on_host, monkeypatch, channels_last):
    values = np.arange(2 * 6 * 6 * 6, dtype="f4").reshape(2, 6, 6, 6)
    dy = on_host.asarray(values)[:, :5]
    dy = dy.transpose(0, 3, 1, 2) if channels_last else dy
    copied = []

    def in_layout(array, *, channels_last):
        copied.append(channels_last)
        if channels_last:
            return on_host.asarray(np.moveaxis(array, 1, -1)).transpose(0, 3, 1, 2)
        return on_host.asarray(array)

    monkeypatch.setattr(own_bias, "in_layout", in_layout)
    np.testing.assert_array_equal(conv_bias.backward_bias(dy), np.array(dy).sum(axis=(0, 2, 3)))
    assert copied == [channels_last]


@pytest.mark.parametrize("device", [0, 1])
def test_the_sum_is_made_on_the_device_of_the_array(on_host, device):
    on_host.memory.devices = 2
    with on_host.memory.use(device):
        dy = on_host.asarray(np.ones((2, 5, 6, 4), "f4"))
    found = conv_bias.backward_bias(dy)
    assert found.device_number == device
    assert found.tolist() == [48.0] * 5


@pytest.mark.parametrize("shape", [(0, 5, 6), (2, 5, 0)])
def test_the_sum_of_nothing_is_0(on_host, shape):
    found = conv_bias.backward_bias(on_host.memory.zeros(shape))
    assert found.tolist() == [0.0] * 5


def test_without_channels_there_are_no_sums(on_host):
    assert conv_bias.backward_bias(on_host.memory.zeros((2, 0, 5))).shape == (0,)


def test_nothing_is_allocated_for_a_sum_in_a_capture(on_host):
    dy, stream = on_host.asarray(np.ones((2, 5, 6), "f4")), on_host.memory.new_stream()
    on_host.memory.stream = stream
    allocations = on_host.memory.allocations
    with recording(stream), pytest.raises(CaptureError):
        conv_bias.backward_bias(dy)
    assert on_host.memory.allocations == allocations
