"""The example of an autograd framework on the host: it learns, and its gradients are right."""

from __future__ import annotations

import runpy
import subprocess
import sys

import numpy as np
import pytest
from example_runs import EXAMPLES

PATH = EXAMPLES / "autograd_framework.py"
EXAMPLE = runpy.run_path(str(PATH))


def test_as_a_program_it_learns():
    done = subprocess.run([sys.executable, PATH], capture_output=True, text=True, check=True)
    assert "steps on the cpu" in done.stdout
    assert "loss 0.3" in done.stdout


def test_a_loss_that_does_not_fall_is_an_error():
    command = [sys.executable, PATH, "--steps", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the loss did not fall to a fifth" in done.stderr


def test_it_needs_no_array_library_but_numpy():
    code = f"import runpy, sys; sys.path.insert(0, {str(EXAMPLES)!r}); "
    code += f"example = runpy.run_path({str(PATH)!r}); "
    code += "list(example['train'](example['Cpu'](), 2)); "
    code += "sys.exit(bool({'cupy', 'torch', 'jax'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("number", range(3))
def test_gradients_are_those_of_finite_differences(number):
    device, rng = EXAMPLE["Cpu"](), np.random.default_rng(0)
    model = EXAMPLE["Model"](device, 4, rng)
    values = rng.uniform(-1, 1, (3, 2, 1)).astype("float32")
    x, target = device.array(values), device.array(values[0])

    def loss():
        tape = EXAMPLE["Tape"](device)
        return tape, model.loss(tape, x, target)

    tape, result = loss()
    gradient = device.numpy(tape.gradients(result, model.parameters)[number])
    parameter = np.asarray(model.parameters[number])
    along = rng.standard_normal(parameter.shape).astype("float32")
    sides = []
    for step in (1e-2, -1e-2):
        parameter += step * along
        sides.append(device.numpy(loss()[1]).item())
        parameter -= step * along
    assert (gradient * along).sum() == pytest.approx((sides[0] - sides[1]) / 2e-2, rel=1e-2)


def test_an_array_that_is_used_twice_gets_the_sum_of_its_gradients():
    device = EXAMPLE["Cpu"]()
    tape, a = EXAMPLE["Tape"](device), device.array(np.full((2, 3), 3.0, "float32"))
    loss = tape.sum(tape.add(tape.multiply(a, a), tape.scale(a, 5.0)))
    (gradient,) = tape.gradients(loss, [a])
    np.testing.assert_array_equal(device.numpy(gradient), np.full((2, 3), 11.0))
    assert device.numpy(loss).item() == 6 * (9 + 15)
