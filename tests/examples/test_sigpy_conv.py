"""The example of sigpy's convolution computes what SciPy does, and its adjoints are adjoint."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import signal

PATH = Path(__file__).parents[2] / "examples" / "sigpy_conv.py"
EXAMPLE = runpy.run_path(str(PATH))
SIZES, KERNEL = (9, 8, 7), (3, 4, 2)


def draw(rng, shape, dtype):
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def problem(rank, dtype, multi_channel):
    rng = np.random.default_rng(rank)
    data = draw(rng, (2, *((3,) if multi_channel else ()), *SIZES[:rank]), dtype)
    filt = draw(rng, (*((5, 3) if multi_channel else ()), *KERNEL[:rank]), dtype)
    return rng, data, filt


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("mode", ["full", "valid"])
@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_it_convolves_as_scipy_does(rank, dtype, mode, step):
    _, data, filt = problem(rank, dtype, False)
    found = EXAMPLE["convolve"](data, filt, mode, (step,) * rank)
    every = (slice(None, None, step),) * rank
    expected = np.stack([signal.convolve(row, filt, mode=mode)[every] for row in data])
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 if dtype[-2:] == "64" else 0)


def test_channels_are_summed():
    _, data, filt = problem(2, "complex128", True)
    expected = sum(
        np.stack([[signal.convolve(row[c], out[c]) for out in filt] for row in data])
        for c in range(3)
    )
    found = EXAMPLE["convolve"](data, filt, multi_channel=True)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("multi_channel", [False, True])
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("mode", ["full", "valid"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_adjoints_are_adjoint(rank, mode, step, multi_channel):
    rng, data, filt = problem(rank, "complex128", multi_channel)
    keywords = {"mode": mode, "strides": (step,) * rank, "multi_channel": multi_channel}
    output = EXAMPLE["convolve"](data, filt, **keywords)
    other = draw(rng, output.shape, "complex128")
    expected = np.vdot(other, output)
    of_data = EXAMPLE["convolve_data_adjoint"](other, filt, data.shape, **keywords)
    assert np.vdot(of_data, data) == pytest.approx(expected)
    of_filter = EXAMPLE["convolve_filter_adjoint"](other, data, filt.shape, **keywords)
    assert np.vdot(of_filter, filt) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shapes", "keywords", "said"),
    [
        (((9, 9, 9, 9), (2, 2, 2, 2)), {}, "one to three dimensions to convolve; got 4"),
        (((9, 9), (2, 2)), {"mode": "same"}, "mode must be 'full' or 'valid'; got 'same'"),
        (((9, 9), (2, 2)), {"strides": (1,)}, "strides must have length 2; got 1"),
        (((3, 9), (4, 2)), {"mode": "valid"}, r"as large as filt; got \(3, 9\) and \(4, 2\)"),
        (((2, 9, 9), (5, 3, 2, 2)), {"multi_channel": True}, "must have 3 channels; got 2"),
    ],
)
def test_what_does_not_fit_is_named(shapes, keywords, said):
    with pytest.raises(ValueError, match=said):
        EXAMPLE["convolve"](*(np.ones(shape) for shape in shapes), **keywords)


def test_as_a_program():
    done = subprocess.run(
        [sys.executable, PATH, "--size", "16", "--filter", "3"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("SciPy") == 4
    assert "Sizes: --size 16, --filter 3" in done.stdout


def test_sizes_are_at_least_one():
    done = subprocess.run(
        [sys.executable, PATH, "--size", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "argument --size: must be at least 1; got 0" in done.stderr


def test_a_filter_larger_than_the_picture_is_refused():
    done = subprocess.run(
        [sys.executable, PATH, "--size", "2", "--filter", "3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "error: --filter must be at most --size, 2; got 3" in done.stderr
