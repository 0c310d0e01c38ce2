"""The example of thinc's LSTM computes what its definition says, and its gradients."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "examples" / "thinc_lstm.py"
EXAMPLE = runpy.run_path(str(PATH))
LENGTHS = [5, 4, 4, 1]


def problem(layers=2, directions=2, lengths=LENGTHS):
    rng = np.random.default_rng(layers * directions)
    *arrays, sizes = EXAMPLE["problem"](rng, 3, 4, layers, directions, lengths)
    return *(array.astype("float64") for array in arrays), sizes


@pytest.mark.parametrize("lengths", [[1], [4, 4, 4], LENGTHS])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_computes_what_the_definition_says(layers, directions, lengths):
    arguments = problem(layers, directions, lengths)
    expected = EXAMPLE["by_loop"](*arguments)
    found = EXAMPLE["lstm_forward_inference"](*arguments)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    y, _ = EXAMPLE["lstm_forward_training"](*arguments)
    np.testing.assert_allclose(y, expected, atol=1e-12)


def test_weights_come_back_as_they_were():
    params, h_0, _, x, _ = problem()
    spec = EXAMPLE["spec_of"](params, h_0, x)
    back = EXAMPLE["to_thinc"](EXAMPLE["from_thinc"](params, spec), np.empty_like(params))
    assert (back == params).all()


@pytest.mark.parametrize("size", [-1, 1])
def test_a_buffer_of_another_size_is_refused(size):
    params, h_0, c_0, x, sizes = problem()
    params = np.resize(params, params.size + size)
    with pytest.raises(ValueError, match=rf"must have shape \(736,\); got \({params.size},\)"):
        EXAMPLE["lstm_forward_inference"](params, h_0, c_0, x, sizes)


def test_gradients_are_those_of_finite_differences():
    params, h_0, c_0, x, sizes = problem()
    rng = np.random.default_rng(1)
    y, state = EXAMPLE["lstm_forward_training"](params, h_0, c_0, x, sizes)
    dy = rng.standard_normal(y.shape)
    dx, dparams = EXAMPLE["backprop_lstm"](dy, sizes, params, state)
    for array, gradient in ((params, dparams), (x, dx)):
        along = 1e-6 * rng.standard_normal(array.shape)
        sides = []
        for sign in (1, -1):
            array += sign * along
            sides.append((dy * EXAMPLE["by_loop"](params, h_0, c_0, x, sizes)).sum())
            array -= sign * along
        assert (gradient * along).sum() == pytest.approx((sides[0] - sides[1]) / 2, rel=1e-5)


def test_as_a_program():
    done = subprocess.run(
        [sys.executable, PATH, "--rows", "3", "--steps", "4", "--hidden", "5"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "dnnffi on" in done.stdout
    assert "gradients: dX" in done.stdout
    assert "Sizes: --rows 3, --steps 4, --hidden 5" in done.stdout


def test_sizes_are_at_least_one():
    done = subprocess.run(
        [sys.executable, PATH, "--steps", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "argument --steps: must be at least 1; got 0" in done.stderr
