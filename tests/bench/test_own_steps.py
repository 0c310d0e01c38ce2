"""The arithmetic of benchmarks/own_steps.py: slopes, and what a device allows."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

own_steps = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "own_steps.py"))
limit, slope = own_steps["limit"], own_steps["slope"]
DEVICE = own_steps["Device"](
    multiprocessors=100,
    register_bytes=200_000,
    shared_bytes=100_000,
    l2_bytes=20_000_000,
    l2_rate=5e6,
    memory_rate=1e6,
    exchange_us=0.5,
    barrier_us=0.01,
    peak=1e9,
)


def test_products_bound_a_large_batch():
    # 4 * 1000**2 weights of 2 bytes fit on the chip.
    assert limit(DEVICE, 1000, 64) == pytest.approx(8e6 * 64 / 1e9 + 0.5)


def test_weights_that_do_not_fit_are_read_from_l2():
    streamed = 4 * 3000**2 * 2 - 30_000_000
    assert 0 < streamed < DEVICE.l2_bytes * 3
    assert limit(DEVICE, 3000, 1) == pytest.approx(
        max(streamed / 5e6, (streamed - 20_000_000) / 1e6) + 0.5
    )
    assert limit(DEVICE._replace(l2_bytes=10**9), 3000, 1) == pytest.approx(streamed / 5e6 + 0.5)


def test_multiprocessors_that_keep_all_weights_exchange_nothing():
    # 4 * 100**2 * 2 bytes fit into one; a row of each is 8e4 operations at a hundredth of the peak.
    assert limit(DEVICE, 100, 800) == pytest.approx(8 * 0.008 + 0.01)
    assert limit(DEVICE, 100, 801) == pytest.approx(9 * 0.008 + 0.01)


def test_fewer_rows_than_an_instruction_multiplies_take_as_long():
    for hidden_size in (100, 1000):
        one, eight, sixteen = (limit(DEVICE, hidden_size, n) for n in (1, 8, 1600))
        assert one == eight < sixteen


def test_a_device_without_a_data_sheet_has_no_limit():
    assert limit(DEVICE._replace(peak=None), 100, 1) is None


def test_a_slope_is_that_of_the_fastest_on_long_arrays():
    short, long = {"a": 0.10, "b": 0.02, "c": 9.0}, {"a": 0.30, "b": 0.42, "d": 0.01}
    assert slope(short, long, (50, 250)) == {"candidate": "a", "us": pytest.approx(1.0)}


def test_where_nothing_ran_there_is_no_slope():
    assert slope({"a": 1.0}, {"b": 1.0}, (50, 250)) is None
    assert slope({}, {}, (50, 250)) is None
