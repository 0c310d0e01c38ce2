"""A brief run of `benchmarks/own_stress.py`, and a test that it detects a wrong bit."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

cupy = pytest.importorskip("cupy")

from dnnffi.backends.own.recurrent.candidates import why_not_here  # noqa: E402
from dnnffi.device.cupy import cupy_memory  # noqa: E402

STRESS = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "own_stress.py"))


@pytest.fixture(autouse=True)
def _able():
    if reason := why_not_here(cupy_memory()):
        pytest.skip(reason)


@pytest.mark.alone  # its threads have a hundred seconds
def test_mixed_problems_on_eight_threads_give_the_same_bits():
    found = STRESS["stress"](launches=20_000, seconds=100)
    assert found["differing_words"] == 0
    assert found["launches"] >= 20_000
    assert found["problems"] == 56


def test_a_wrong_bit_is_counted():
    worker = STRESS["Worker"](STRESS["draw"](0)[:2], 0)
    worker.prepare()
    worker.capture()
    worker.run(100, lambda: True)
    assert int(worker.differing.get()[0]) == 0
    worker.networks[0].expected[0] ^= 1
    worker.run(1_000, lambda: True)
    assert int(worker.differing.get()[0]) > 0
